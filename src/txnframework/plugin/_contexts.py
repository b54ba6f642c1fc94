"""
Arguments of a plugin's ``open``, one class for each role.

``options`` is the plugin's table of the configuration, decoded as the ``Provider.options`` type; None if the provider
names no such type. ``options_as`` returns it with its type. ``metrics`` is where the plugin may record measurements
(``txnframework.metrics``). If it is None, nothing is measured, and nothing may be spent on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from msgspec import Meta

from txnframework.errors import PluginError
from txnframework.model.layout import FIRST_LIFE
from txnframework.urls import redact_url

if TYPE_CHECKING:
    from txnframework.environment import Environment
    from txnframework.instruments import Instruments
    from txnframework.interfaces import (
        ICoordinatorShare,
        ICursor,
        ILedgerStore,
        IManagedLedger,
        IMetadataStore,
        IParticipants,
        ITransactionCoordinator,
    )

T = TypeVar("T")


def options_as(options: object, kind: type[T]) -> T:
    """
    Return a context's ``options`` with their type; the defaults of ``kind`` if there are none.

    :raises PluginError: the options are of another type, so the provider's ``options`` and its ``open`` disagree.
    """
    if options is None:
        return kind()
    if not isinstance(options, kind):
        raise PluginError(f"expected options of type {kind.__name__}, got {type(options).__name__}")
    return options


class TransactionsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timeouts and retention of transactions, and limits of sweeps."""

    timeout_ms: Annotated[
        int, Meta(ge=1, description="Default timeout of transactions; they are aborted after this time.")
    ] = 60_000
    timeout_ms_max: Annotated[int, Meta(ge=1, description="Maximum timeout that a client can request.")] = 86_400_000
    end_timeout_ms: Annotated[
        int, Meta(ge=1, description="How long ending a transaction waits for its participants before it raises.")
    ] = 30_000
    retention_ms: Annotated[int, Meta(ge=0, description="How long the outcome of an ended transaction is kept.")] = (
        3_600_000
    )
    abort_retention_ms: Annotated[
        int,
        Meta(ge=0, description="How long an abort record is kept after the last entry that it hides was trimmed."),
    ] = 3_600_000
    max_clock_skew_ms: Annotated[
        int, Meta(ge=0, description="Maximum difference between the clocks of two hosts; added to every deadline.")
    ] = 1_000
    coordinators: Annotated[
        int,
        Meta(
            ge=1,
            le=0x8000,
            description="Number of coordinators of each family, distributed over the hosts; the same on every host.",
        ),
    ] = 16
    timers_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of open transactions with a timer in one process; others wait for a sweep.",
        ),
    ] = 100_000
    settling_delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="Longest time from the end of a transaction to its settling. The outcome is visible earlier;"
            " what ends within the delay is settled together, and does not slow down readers of the outcome.",
        ),
    ] = 20
    settling_max: Annotated[
        int,
        Meta(ge=1, description="Maximum number of ended transactions that a process settles at the same time."),
    ] = 32
    settling_waiting_max: Annotated[
        int,
        Meta(ge=0, description="Maximum number of ended transactions that wait for settling; others wait for a sweep."),
    ] = 10_000
    sweep: Annotated[
        bool,
        Meta(
            description="Whether this process serves coordinators, and takes part in aborting overdue transactions and"
            " deleting settled ones."
        ),
    ] = True
    sweep_transactions_max: Annotated[
        int, Meta(ge=1, description="Maximum number of transactions that one sweep aborts or deletes before it yields.")
    ] = 100
    sweep_interval_ms: Annotated[
        int, Meta(ge=1, description="Maximum time between two sweeps; a deadline starts one earlier.")
    ] = 30_000

    def __post_init__(self) -> None:
        """Refuse a default timeout that no client may request."""
        if self.timeout_ms > self.timeout_ms_max:
            raise ValueError(f"timeout_ms ({self.timeout_ms}) is longer than timeout_ms_max ({self.timeout_ms_max})")


@dataclass(frozen=True, slots=True)
class StoreContext:
    """
    The arguments with which a metadata store or ledger store is opened.

    ``url`` may contain a password, so print it only with ``txnframework.config.redact_url``. ``repr`` does so, and
    shows no options. ``identity`` is given to ledger stores: the identity of the metadata store to which it has to
    belong, and which a new ledger store adopts. None: the ledger store may belong to any metadata store.
    """

    url: str
    environment: Environment
    options: object = None
    identity: str | None = None

    def __repr__(self) -> str:
        """Return the context without passwords."""
        return f"StoreContext(url={redact_url(self.url)!r}, identity={self.identity!r})"


@dataclass(frozen=True, slots=True)
class CoordinatorContext:
    """
    The arguments with which a coordinator is opened; ``transactions`` holds its timeouts and bounds.

    ``share``: which of the family's coordinator ids this host serves; None: ids are not distributed, and any of them
    may be used.
    """

    store: IMetadataStore
    ledgers: ILedgerStore
    participants: IParticipants
    environment: Environment
    options: object = None
    transactions: TransactionsSection = field(default_factory=TransactionsSection)
    share: ICoordinatorShare | None = None
    metrics: Instruments | None = None


@dataclass(frozen=True, slots=True)
class SegmentContext:
    """
    The arguments with which the transaction buffer of one segment or topic is opened.

    ``life``: the number of topics that had its topic's name, this one included, if a later topic can have a segment of
    the same name, or the topic has migrated. ``settled_families``: other families that wrote to the segment before its
    topic migrated; their transactions have ended, and their outcomes are abort records (``IAdoptingBuffer``).
    ``topic``: the topic to which the segment belongs; empty: the one that its name contains.
    """

    segment: str
    ledger: IManagedLedger
    ledgers: ILedgerStore
    store: IMetadataStore
    coordinator: ITransactionCoordinator
    environment: Environment
    options: object = None
    transactions: TransactionsSection = field(default_factory=TransactionsSection)
    metrics: Instruments | None = None
    life: int = FIRST_LIFE
    settled_families: tuple[str, ...] = ()
    topic: str = ""


@dataclass(frozen=True, slots=True)
class SubscriptionContext:
    """
    The arguments with which the pending-ack store of one subscription on one segment is opened.

    ``topic`` is the topic to which the segment belongs (the segment itself for ``persistent://``). Committed
    acknowledgments take effect in ``cursor``. ``life`` is that of the segment's context.
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
    metrics: Instruments | None = None
    life: int = FIRST_LIFE


@dataclass(frozen=True, slots=True)
class ObserverContext:
    """The arguments with which an observer is opened, once for each host."""

    environment: Environment
    options: object = None


@dataclass(frozen=True, slots=True)
class DispatcherContext:
    """The arguments with which the dispatcher of one subscription on one segment is created."""

    segment: str
    subscription: str
    environment: Environment
    options: object = None
