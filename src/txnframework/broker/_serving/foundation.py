"""The objects that all parts of a host share."""

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
    The configuration, the plugins, time and randomness, and the two open stores.

    ``metrics`` records metrics; with None there are none.
    """

    config: Config
    registry: PluginRegistry
    environment: Environment
    metadata: IMetadataStore
    ledgers: ILedgerStore
    metrics: Metrics | None = None
