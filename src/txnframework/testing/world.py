"""The subscription cursor of the suites: one record in the metadata store, shared by all processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zope.interface import implementer

from txnframework.config import TransactionsSection
from txnframework.errors import Unavailable, VersionMismatch
from txnframework.interfaces import (
    ICursor,
    ILedgerStore,
    IManagedLedger,
    IMetadataStore,
    IParticipants,
    IPendingAckStore,
    ITransactionBuffer,
    ITransactionCoordinator,
)
from txnframework.model import Participant, Transaction
from txnframework.model.acks import Ack, ProcessedRange
from txnframework.model.cursor import BranchAcks, Cursor, CursorMove, from_record, to_record, unite
from txnframework.model.metadata import Expect, Put, Record
from txnframework.model.paths import cursor_key
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.records import CursorRecord, decode, encode
from txnframework.plugin import CoordinatorContext, Provider, SegmentContext, SubscriptionContext
from txnframework.testing.clock import VirtualEnvironment
from txnframework.testing.connection import StoreConnection, intercept_calls
from txnframework.testing.harness import Colocated, Harness, Paired

ATTEMPTS_MAX = 100


@implementer(ICursor)
class SuiteCursor:
    """
    A cursor that exists from the start, at the earliest position; ``history`` holds the ranges that were applied here.

    The broker's own cursor depends on a topic, and the suites have no topics.
    """

    def __init__(self, store: IMetadataStore, segment: str, subscription: str) -> None:
        self.segment: str = segment
        self.subscription: str = subscription
        self.history: list[ProcessedRange] = []
        self._store = store
        self._key = cursor_key(segment, subscription)

    async def load(self) -> Cursor:
        """Return the current cursor."""
        return _cursor_of(await self._store.get(self._key))

    async def apply(self, incarnation: int, acks: tuple[Ack, ...], processed: ProcessedRange | None) -> bool:
        """Merge ``acks`` into the cursor by compare-and-set; return False if its incarnation differs."""
        for _ in range(ATTEMPTS_MAX):
            record = await self._store.get(self._key)
            cursor = _cursor_of(record)
            if cursor.incarnation != incarnation:
                return False
            if processed is not None and processed not in self.history:
                self.history.append(processed)
            try:
                await self._write(record, unite(cursor, acks))
            except VersionMismatch:
                continue
            return True
        raise Unavailable("the cursor changes too often")

    async def seek(self, to: Position) -> None:
        """Move the cursor as a user does, which begins a new incarnation: earlier acknowledgments no longer apply."""
        record = await self._store.get(self._key)
        await self._write(record, Cursor(_cursor_of(record).incarnation + 1, to))

    async def plan(self, incarnation: int, parts: tuple[BranchAcks, ...]) -> CursorMove | None:  # noqa: ARG002
        """Return None: each move is a write of its own."""
        return None

    async def finish(self, move: CursorMove, written: Record | None) -> None:
        """Note nothing: each call reads the record."""

    async def _write(self, record: Record | None, cursor: Cursor) -> None:
        await self._store.put(self._put(record, cursor))

    def _put(self, record: Record | None, cursor: Cursor) -> Put:
        expected = Expect.ABSENT if record is None else record.version
        return Put(self._key, encode(to_record(cursor)), expected)


class PlannedSuiteCursor(SuiteCursor):
    """A cursor that can move in the step of a transaction; a plan starts from the record as it is now."""

    async def plan(self, incarnation: int, parts: tuple[BranchAcks, ...]) -> CursorMove | None:
        """Return the compare-and-set that unites acknowledgments with the cursor, or None."""
        record = await self._store.get(self._key)
        before = _cursor_of(record)
        after = unite(before, (ack for _, acks in parts for ack in acks))
        if before.incarnation != incarnation or after == before:
            return None
        return CursorMove(self._put(record, after), incarnation, parts, before)


def _cursor_of(record: Record | None) -> Cursor:
    return Cursor(1, EARLIEST) if record is None else from_record(decode(CursorRecord, record))


TOPIC = "topic://public/default/suite"
SEGMENT = "segment://public/default/suite/0000-ffff-0"
SUBSCRIPTION = "suite"
OTHER_SUBSCRIPTION = "suite-2"
"""Its name starts with the name of the first one; their records must stay separate."""

PendingAckProvider = Provider[SubscriptionContext, IPendingAckStore]


@dataclass(eq=False)
class Subscription:
    """What one process has open for one subscription on the segment."""

    cursor: SuiteCursor
    acks: IPendingAckStore


@dataclass(eq=False)
class World:
    """What one process has open for one segment; every call to its stores passes through ``connection``."""

    store: IMetadataStore
    ledgers: ILedgerStore
    ledger: IManagedLedger
    coordinator: ITransactionCoordinator
    buffer: ITransactionBuffer
    participants: OneSegment
    connection: StoreConnection

    @property
    def cursor(self) -> SuiteCursor:
        """The cursor of the subscription that most tests use."""
        return self.participants.subscriptions[SUBSCRIPTION].cursor

    @property
    def acks(self) -> IPendingAckStore:
        """The pending acknowledgments of the subscription that most tests use."""
        return self.participants.subscriptions[SUBSCRIPTION].acks


@implementer(IParticipants)
class OneSegment:
    """The participants of a process with one open segment; those in ``out_of_reach`` cannot be settled."""

    def __init__(self) -> None:
        self.buffer: ITransactionBuffer | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.out_of_reach: set[Participant] = set()

    async def settle(self, participant: Participant, ended: Transaction) -> None:
        """
        Settle at the buffer or at a subscription.

        :raises Unavailable: the participant is not open in this process, or is in ``out_of_reach``.
        """
        subscription = self.subscriptions.get(participant.subscription)
        if self.buffer is None or participant.segment != self.buffer.segment or participant in self.out_of_reach:
            raise Unavailable(f"{participant} is not open here")
        if not participant.subscription:
            await self.buffer.settle(ended)
        elif subscription is not None:
            await subscription.acks.settle(ended)
        else:
            raise Unavailable(f"{participant} is not open here")


_ROUNDS_MAX = 20
"""The limit of ``settle`` rounds, so that work that never ends cannot block a test."""


class WorldHarness(Harness[World]):
    """
    Opens processes over one metadata store and one ledger store; each ``open`` is another process.

    Subclass it and set the harnesses of the stores and the providers of the coordinator and the buffer; a pending-ack
    provider is optional. The providers run with default ``options``. ``one_database``: the harness of the ledgers is
    ``Colocated``, and opens the records, too. The cursors can then move in the step of a transaction.
    """

    stores: ClassVar[type[Harness[IMetadataStore]]]
    ledgers: ClassVar[type[Harness[ILedgerStore]]]
    coordinator: ClassVar[Provider[CoordinatorContext, ITransactionCoordinator]]
    buffer: ClassVar[Provider[SegmentContext, ITransactionBuffer]]
    pending_acks: ClassVar[PendingAckProvider | None] = None
    transactions: ClassVar[TransactionsSection] = TransactionsSection()
    one_database: ClassVar[bool] = False
    segment: ClassVar[str] = SEGMENT

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self._stores = self.stores(_made(directory / "metadata"), self.environment)
        self._ledgers = self.ledgers(_made(directory / "ledgers"), self.environment)
        self._connections: list[StoreConnection] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[World]:
        """Open one process; its parts are closed in reverse order."""
        async with AsyncExitStack() as stack:
            connection = StoreConnection()
            self._connections.append(connection)
            stack.callback(self._connections.remove, connection)
            store, ledgers = await self._open_stores(stack, connection)
            ledger = await ledgers.create(self.segment)
            stack.push_async_callback(ledger.close)
            participants = OneSegment()
            environment, transactions = self.environment, self.transactions
            coordinator = await self.coordinator.open(
                CoordinatorContext(store, ledgers, participants, environment, transactions=transactions)
            )
            stack.push_async_callback(coordinator.close)
            buffer = await self.buffer.open(
                SegmentContext(
                    self.segment, ledger, ledgers, store, coordinator, environment, transactions=transactions
                )
            )
            stack.push_async_callback(buffer.close)
            participants.buffer = buffer
            world = World(store, ledgers, ledger, coordinator, buffer, participants, connection)
            if self.pending_acks is not None:
                for name in (SUBSCRIPTION, OTHER_SUBSCRIPTION):
                    subscription = await self._subscribe(self.pending_acks, world, name)
                    stack.push_async_callback(subscription.acks.close)
                    participants.subscriptions[name] = subscription
            # Closing uses the connection, so it is restored first, whatever the test did to it.
            stack.callback(connection.restore)
            yield world

    async def _open_stores(
        self, stack: AsyncExitStack, connection: StoreConnection
    ) -> tuple[IMetadataStore, ILedgerStore]:
        if self.one_database:
            assert isinstance(self._ledgers, Colocated), "its database has both"
            both, records = await stack.enter_async_context(self._ledgers.open_with_records())
            return intercept_calls(records, connection), intercept_calls(both, connection)
        store = intercept_calls(await stack.enter_async_context(self._stores.open()), connection)
        opening = self._ledgers.open_as(store.identity) if isinstance(self._ledgers, Paired) else self._ledgers.open()
        return store, intercept_calls(await stack.enter_async_context(opening), connection)

    async def _subscribe(self, provider: PendingAckProvider, world: World, name: str) -> Subscription:
        kind = PlannedSuiteCursor if self.one_database else SuiteCursor
        cursor = kind(world.store, self.segment, name)
        context = SubscriptionContext(
            TOPIC,
            self.segment,
            name,
            cursor,
            world.ledgers,
            world.store,
            world.coordinator,
            self.environment,
            transactions=self.transactions,
        )
        return Subscription(cursor, await provider.open(context))

    async def settle(self) -> None:
        """Wait for delayed work of both stores, and for the work that it causes in the other store."""
        for _ in range(_ROUNDS_MAX):
            asked = self._asked()
            await self._stores.settle()
            await self._ledgers.settle()
            if self._asked() == asked:
                return

    async def pass_time(self, by_ms: int) -> None:
        """Advance the clock of everything that was opened."""
        await self._stores.pass_time(by_ms)

    async def destroy(self) -> None:
        """Remove the data of both stores."""
        await self._stores.destroy()
        await self._ledgers.destroy()

    def _asked(self) -> int:
        return sum(connection.asked for connection in self._connections)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
