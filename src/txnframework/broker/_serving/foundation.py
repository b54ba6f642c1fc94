"""What everything in a host stands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnframework.config import Config
from txnframework.environment import Environment
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.plugin import PluginRegistry

if TYPE_CHECKING:
    from txnframework.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Foundation:
    """
    A configuration, the plugins that it may name, time and randomness, and the two open stores.

    ``metrics``: what is measured goes there; None: nothing is.
    """

    config: Config
    registry: PluginRegistry
    environment: Environment
    metadata: IMetadataStore
    ledgers: ILedgerStore
    metrics: Metrics | None = None
