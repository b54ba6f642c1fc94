"""What everything in a host stands on."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.config import Config
from txnframework.environment import Environment
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.plugin import PluginRegistry


@dataclass(frozen=True, slots=True)
class Foundation:
    """A configuration, the plugins that it may name, time and randomness, and the two open stores."""

    config: Config
    registry: PluginRegistry
    environment: Environment
    metadata: IMetadataStore
    ledgers: ILedgerStore
