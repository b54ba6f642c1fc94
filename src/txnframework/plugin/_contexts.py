"""
What a plugin's ``open`` is given, one value for each role.

``options`` is the plugin's table of the configuration, decoded as the ``Provider.options`` type; None where the
provider names no such type. ``options_as`` gives it back with its type. ``metrics`` is where the plugin may measure
what it does (``txnframework.metrics``); None: nobody asks for it, so nothing may be spent on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from txnframework.errors import PluginError
from txnframework.model.layout import FIRST_LIFE
from txnframework.plugin._transactions import TransactionsSection
from txnframework.urls import redact_url

if TYPE_CHECKING:
    from txnframework.environment import Environment
    from txnframework.interfaces import (
        ICoordinatorShare,
        ICursor,
        ILedgerStore,
        IManagedLedger,
        IMetadataStore,
        IParticipants,
        ITransactionCoordinator,
    )
    from txnframework.metrics import Metrics

T = TypeVar("T")


def options_as(options: object, kind: type[T]) -> T:
    """
    Return a context's ``options`` with their type; the defaults of ``kind`` if there are none.

    :raises PluginError: they are of another type, so the provider's ``options`` and its ``open`` disagree.
    """
    if options is None:
        return kind()
    if not isinstance(options, kind):
        raise PluginError(f"expected options of type {kind.__name__}, got {type(options).__name__}")
    return options


@dataclass(frozen=True, slots=True)
class StoreContext:
    """
    What a metadata store or ledger store is opened with.

    ``url`` may hold a password: print it with ``txnframework.config.redact_url`` only, as ``repr`` does, which shows no
    options either. ``identity`` is given to
    ledger stores: the identity of the metadata store to belong to, which a new ledger store takes on; None: that of
    whichever it belongs to.
    """

    url: str
    environment: Environment
    options: object = None
    identity: str | None = None

    def __repr__(self) -> str:
        """Return what is opened, without passwords."""
        return f"StoreContext(url={redact_url(self.url)!r}, identity={self.identity!r})"


@dataclass(frozen=True, slots=True)
class CoordinatorContext:
    """
    What a coordinator is opened with; ``transactions`` holds the timeouts and bounds to keep to.

    ``share``: which of the family's coordinator ids this host serves; None: nobody spreads them, any will do.
    """

    store: IMetadataStore
    ledgers: ILedgerStore
    participants: IParticipants
    environment: Environment
    options: object = None
    transactions: TransactionsSection = field(default_factory=TransactionsSection)
    share: ICoordinatorShare | None = None
    metrics: Metrics | None = None


@dataclass(frozen=True, slots=True)
class SegmentContext:
    """
    What the transaction buffer of one segment or topic is opened with.

    ``life``: how many topics of its topic's name there were, this one included, where a later one can have a segment of
    this very name.
    """

    segment: str
    ledger: IManagedLedger
    ledgers: ILedgerStore
    store: IMetadataStore
    coordinator: ITransactionCoordinator
    environment: Environment
    options: object = None
    transactions: TransactionsSection = field(default_factory=TransactionsSection)
    metrics: Metrics | None = None
    life: int = FIRST_LIFE


@dataclass(frozen=True, slots=True)
class SubscriptionContext:
    """
    What the pending-ack store of one subscription on one segment is opened with.

    ``topic`` is the topic that the segment belongs to (the segment itself for ``persistent://``); ``cursor`` is
    where committed acknowledgments take effect; ``life`` is that of the segment's context.
    """

    topic: str
    segment: str
    subscription: str
    cursor: ICursor
    ledgers: ILedgerStore
    store: IMetadataStore
    coordinator: ITransactionCoordinator
    environment: Environment
    options: object = None
    transactions: TransactionsSection = field(default_factory=TransactionsSection)
    metrics: Metrics | None = None
    life: int = FIRST_LIFE


@dataclass(frozen=True, slots=True)
class DispatcherContext:
    """What the dispatcher of one subscription on one segment is made with."""

    segment: str
    subscription: str
    environment: Environment
    options: object = None
