"""A small world for these tests: one space in memory, and as many processes in it as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from zope.interface import implementer

from txnframework.broker.cursors import StoredCursor
from txnframework.config import TransactionsSection
from txnframework.errors import OutcomeUnknown, SubscriptionNotFound, Unavailable
from txnframework.interfaces import (
    ICoCommitStore,
    ICursor,
    IDatabaseTransaction,
    ILease,
    IManagedLedger,
    IParticipants,
    IWatch,
)
from txnframework.model import (
    EARLIEST,
    Ack,
    AckRequest,
    Action,
    Append,
    Appended,
    Applied,
    Begin,
    Branch,
    End,
    Expect,
    Expected,
    IndexRange,
    Isolation,
    Key,
    KeyRange,
    Limit,
    Participant,
    Position,
    ProcessedRange,
    ProducerSequence,
    Put,
    PutSequential,
    Reach,
    ReadRequest,
    Record,
    RecordPage,
    Step,
    Tail,
    Transaction,
)
from txnframework.model.cursor import BranchAcks, Cursor, CursorMove, to_record, unite
from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.paths import cursor_key
from txnframework.model.records import encode
from txnframework.model.steps import require_valid
from txnframework.plugin import CoordinatorContext, SegmentContext, SubscriptionContext
from txnframework.testing.clock import VirtualEnvironment, run_ready
from txnframework_memory.space import MemorySpace
from txnframework_metadata.buffer.buffer import MetadataBuffer
from txnframework_metadata.coordinator.coordinator import MetadataCoordinator
from txnframework_metadata.options import BufferOptions, CoordinatorOptions, PendingAckOptions
from txnframework_metadata.pending_acks.store import MetadataPendingAcks

SEGMENT = "segment://public/default/orders/0000-ffff-0"
OTHER_SEGMENT = "segment://public/default/audit/0000-ffff-0"
SUBSCRIPTION = "billing"
TOPIC = "topic://public/default/orders"
FIRST, SECOND, THIRD = Position(1, 0), Position(1, 1), Position(1, 2)


T = TypeVar("T")
Match = Callable[[str, Any], bool]

WRITES = ("put", "delete", "apply")


# -- a store that a test can hold up and cut off ------------------------------------------------------


@dataclass(eq=False)
class Stop:
    """Blocks the first step that matches: ``reached`` notifies the test, ``go`` lets the step continue."""

    match: Match
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


@implementer(ICoCommitStore)
class Wire:
    """The way to a store: steps can be counted, held up before they are sent, refused, or lose their reply."""

    def __init__(self, store: Any, reach: Reach = Reach.PARTITION) -> None:
        self.reach = reach
        self.location: object = store.location if reach is Reach.DATABASE else None
        self.identity: str = store.identity
        self.session: str = store.session
        self.inner = store
        self.steps: list[tuple[str, Any]] = []
        self.fault: Callable[[], str] = lambda: ""
        self._stops: list[Stop] = []
        self._lost: list[Match] = []
        self._refused: list[Match] = []
        self._dropped: list[Match] = []

    def stop(self, match: Match) -> Stop:
        """Hold up the next step that matches, before it is sent."""
        stop = Stop(match)
        self._stops.append(stop)
        return stop

    def lose_reply(self, match: Match) -> None:
        """Apply the next matching step and lose its reply."""
        self._lost.append(match)

    def refuse(self, match: Match) -> None:
        """Make the next matching step fail without being applied."""
        self._refused.append(match)

    def drop(self, match: Match) -> None:
        """Lose the next matching step on its way; the outcome is unknown."""
        self._dropped.append(match)

    async def _step(self, name: str, argument: Any, call: Callable[[], Awaitable[T]]) -> T:
        self.steps.append((name, argument))
        for stop in self._stops:
            if stop.match(name, argument):
                self._stops.remove(stop)
                stop.reached.set()
                await stop.go.wait()
                break
        for refused in self._refused:
            if refused(name, argument):
                self._refused.remove(refused)
                raise Unavailable("refused by the test")
        for dropped in self._dropped:
            if dropped(name, argument):
                self._dropped.remove(dropped)
                raise OutcomeUnknown("dropped by the test")
        fault = self.fault()
        if fault == "refused":
            raise Unavailable("refused by chance")
        answer = await call()
        if fault == "lost" and name in WRITES:
            raise OutcomeUnknown("the reply was lost by chance")
        for lost in self._lost:
            if lost(name, argument):
                self._lost.remove(lost)
                raise OutcomeUnknown("the reply was lost by the test")
        return answer

    async def get(self, key: Key) -> Record | None:
        return await self._step("get", key, lambda: self.inner.get(key))

    async def put(self, write: Put) -> int:
        return await self._step("put", write, lambda: self.inner.put(write))

    async def delete(self, key: Key, expected: Expected) -> None:
        await self._step("delete", key, lambda: self.inner.delete(key, expected))

    async def apply(self, step: Step, transaction: IDatabaseTransaction | None = None) -> Applied:
        require_valid(step, self.reach)  # the space would make wider ones
        return await self._step("apply", step, lambda: self.inner.apply(step, transaction))

    has_one_writer = False

    async def join(self, connection: object) -> IDatabaseTransaction:
        found: IDatabaseTransaction = await self.inner.join(connection)
        return found

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        return await self._step("scan", keys, lambda: self.inner.scan(keys, items_max))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        return await self._step("scan_index", entries, lambda: self.inner.scan_index(entries, items_max))

    async def watch(self, target: Key | KeyRange | IndexRange) -> IWatch:
        return await self._step("watch", target, lambda: self.inner.watch(target))

    async def acquire_lease(self, name: str, holder: str) -> ILease:
        return await self._step("acquire_lease", name, lambda: self.inner.acquire_lease(name, holder))

    async def break_lease(self, name: str, version: int) -> None:
        await self._step("break_lease", name, lambda: self.inner.break_lease(name, version))

    async def close(self) -> None:
        await self.inner.close()


def path_of(argument: Any) -> str:
    """Return the path of a step: that of its first put, otherwise of its first delete."""
    if isinstance(argument, Step):
        intended = () if argument.intent is None else (argument.intent.put_at(Tail(EARLIEST, 0, False)),)
        argument = (*argument.puts, *argument.deletes, *intended)[0]
    if isinstance(argument, PutSequential):
        return argument.prefix.path
    if isinstance(argument, KeyRange):
        return argument.start
    if isinstance(argument, IndexRange):
        return argument.index
    key: Key = getattr(argument, "key", argument)
    return key.path


def step(names: str, prefix: str) -> Match:
    """Match steps of these names (separated by spaces) on a path that begins with ``prefix``."""
    return lambda name, argument: name in names.split() and path_of(argument).startswith(prefix)


PUT_OPERATION = step("apply", "/txn-op/")
LOOK = step("scan_index", "acks-by-segment-subscription")


# -- cursors ------------------------------------------------------------------------------------------


@implementer(ICursor)
class SharedCursor:
    """A cursor that every process sees; ``applied`` is its history, in order."""

    def __init__(self, segment: str, subscription: str) -> None:
        self.segment: str = segment
        self.subscription: str = subscription
        self.cursor: Cursor | None = Cursor(1, EARLIEST)
        self.history: list[ProcessedRange] = []
        self.applied: list[Ack] = []
        self.refused = 0

    async def load(self) -> Cursor:
        await asyncio.sleep(0)
        if self.cursor is None:
            raise SubscriptionNotFound(TOPIC, self.subscription)
        return self.cursor

    async def apply(self, incarnation: int, acks: tuple[Ack, ...], processed: ProcessedRange | None) -> bool:
        await asyncio.sleep(0)
        if self.refused:
            self.refused -= 1
            raise Unavailable("refused by the test")
        if self.cursor is None or self.cursor.incarnation != incarnation:
            return False
        if processed is not None and processed not in self.history:
            self.history.append(processed)
        self.applied += acks
        self.cursor = unite(self.cursor, acks)
        return True

    async def plan(self, incarnation: int, parts: tuple[BranchAcks, ...]) -> CursorMove | None:
        return None

    async def finish(self, move: CursorMove, written: Record | None) -> None: ...

    def seek(self, to: Position) -> None:
        """Seek as a user does: earlier acknowledgments have no effect any more."""
        assert self.cursor is not None
        self.cursor = Cursor(self.cursor.incarnation + 1, to)


# -- processes ----------------------------------------------------------------------------------------


@implementer(IParticipants)
class Process:
    """One process: its own connections, coordinator, buffers and pending-ack stores."""

    def __init__(self, world: World, wire: Wire, ledgers: Any) -> None:
        self.world = world
        self.wire = wire
        self.ledgers = ledgers
        self.buffers: dict[str, MetadataBuffer] = {}
        self.rows: dict[str, IManagedLedger] = {}
        self.stores: dict[tuple[str, str], MetadataPendingAcks] = {}
        self.cursors: dict[tuple[str, str], StoredCursor] = {}
        self.settled: list[Participant] = []
        self.unavailable: set[str] = set()
        self.coordinator = MetadataCoordinator(
            CoordinatorContext(wire, ledgers, self, world.environment, world.coordinator_options, world.transactions)
        )

    async def settle(self, participant: Participant, ended: Transaction) -> None:
        self.settled.append(participant)
        if participant.segment in self.unavailable:
            raise Unavailable(f"{participant.segment} cannot be opened")
        if participant.subscription:
            await self.pending_acks(participant.segment, participant.subscription).settle(ended)
        else:
            await (await self.buffer(participant.segment)).settle(ended)

    async def ledger(self, segment: str = SEGMENT) -> IManagedLedger:
        if segment not in self.rows:
            self.rows[segment] = await self.ledgers.create(segment)
        return self.rows[segment]

    async def buffer(self, segment: str = SEGMENT) -> MetadataBuffer:
        ledger = await self.ledger(segment)
        if segment not in self.buffers:
            self.buffers[segment] = MetadataBuffer(
                SegmentContext(
                    segment,
                    ledger,
                    self.ledgers,
                    self.wire,
                    self.coordinator,
                    self.world.environment,
                    self.world.buffer_options,
                    self.world.transactions,
                )
            )
        return self.buffers[segment]

    def pending_acks(self, segment: str = SEGMENT, subscription: str = SUBSCRIPTION) -> MetadataPendingAcks:
        if (segment, subscription) not in self.stores:
            self.stores[segment, subscription] = MetadataPendingAcks(
                SubscriptionContext(
                    TOPIC,
                    segment,
                    subscription,
                    self.cursor(segment, subscription),
                    self.ledgers,
                    self.wire,
                    self.coordinator,
                    self.world.environment,
                    self.world.pending_ack_options,
                    self.world.transactions,
                )
            )
        return self.stores[segment, subscription]

    def cursor(self, segment: str, subscription: str) -> ICursor:
        """Return the shared cursor; in a wide world, this process's access to the stored one."""
        if self.world.reach is Reach.PARTITION:
            return self.world.cursor(segment, subscription)
        cursor = self.cursors.get((segment, subscription)) or StoredCursor(self.wire, TOPIC, segment, subscription)
        return self.cursors.setdefault((segment, subscription), cursor)

    # -- what most tests do ---------------------------------------------------------------------------

    async def begin(self, timeout_ms: int = 60_000) -> Transaction:
        return await self.coordinator.begin(Begin(timeout_ms))

    async def send(self, value: str, branch: Branch | None = None, segment: str = SEGMENT) -> Position:
        (appended,) = await (await self.buffer(segment)).append((entry(value, branch),))
        return appended.position

    async def send_once(self, value: str, sequence: int, branch: Branch | None = None) -> Appended:
        (appended,) = await (await self.buffer()).append((entry(value, branch, sequence),))
        return appended

    async def acknowledge(self, txn: Transaction, *acks: Ack, branch: int = 0, incarnation: int = 1) -> None:
        await self.pending_acks().add(AckRequest(Branch(txn.txn_id, branch), acks, incarnation))

    async def commit(self, txn: Transaction, *branches: int) -> Transaction:
        return await self.coordinator.end(End(txn.txn_id, Action.COMMIT, branches=frozenset(branches or (0,))))

    async def abort(self, txn: Transaction) -> Transaction:
        return await self.coordinator.end(End(txn.txn_id, Action.ABORT))

    async def values(self, after: Position = EARLIEST, segment: str = SEGMENT) -> list[str]:
        """Return everything that may be read after a position, to the end for now."""
        buffer = await self.buffer(segment)
        found: list[str] = []
        while True:
            page = await buffer.read(ReadRequest(after, Limit(3)))
            found += [value_of(readable.data) for readable in page.entries]
            if page.upto <= after:
                return found
            after = page.upto

    async def shown(self, after: Position = EARLIEST) -> list[tuple[str, str]]:
        """Return value and visibility of everything that is there."""
        page = await (await self.buffer()).read(ReadRequest(after, Limit(100), Isolation.READ_UNCOMMITTED))
        return [(value_of(readable.data), readable.visibility.value) for readable in page.entries]


class World:
    """A space, its time, its cursors and the options of everything in it."""

    def __init__(
        self,
        *,
        reach: Reach = Reach.PARTITION,
        transactions: TransactionsSection | None = None,
    ) -> None:
        self.reach = reach
        self.environment = VirtualEnvironment()
        self.space = MemorySpace(self.environment, "space-1")
        self.transactions = transactions or TransactionsSection(max_clock_skew_ms=500)
        self.coordinator_options = CoordinatorOptions(id_block_size=10, page_records=3)
        self.buffer_options = BufferOptions(page_records=3)
        self.pending_ack_options = PendingAckOptions(page_records=3, acks_per_record_max=3)
        self._cursors: dict[tuple[str, str], SharedCursor] = {}

    async def process(self) -> Process:
        """Start a process."""
        store = await self.space.open_metadata()
        wire = Wire(store, self.reach)
        if self.reach >= Reach.STORE and not self.paths("/cursor/"):
            record = to_record(Cursor(1, Position(1, -1)))
            await store.put(Put(cursor_key(SEGMENT, SUBSCRIPTION), encode(record), Expect.ABSENT))
        return Process(self, wire, await self.space.open_ledgers())

    def cursor(self, segment: str = SEGMENT, subscription: str = SUBSCRIPTION) -> SharedCursor:
        """Return the one cursor of a subscription."""
        return self._cursors.setdefault((segment, subscription), SharedCursor(segment, subscription))

    def paths(self, prefix: str) -> list[str]:
        """Return the paths of the records below a prefix."""
        page = self.space.records.scan(KeyRange(prefix, prefix + "\uffff"), 1_000_000)
        return [record.key.path for record in page.records]

    def operations(self) -> int:
        """Return how many operation records there are."""
        return len(self.paths("/txn-op/"))


def applied(world: World) -> list[Position]:
    return [ack.position for ack in world.cursor().applied]


def entry(value: str, branch: Branch | None = None, *sequences: int) -> Append:
    """Return an entry with one message, or with one for each sequence."""
    numbers = sequences or (0,)
    messages = [EntryMessage(None, value.encode(), (), number, 0) for number in numbers]
    sequence = ProducerSequence("p", numbers[0], numbers[-1]) if sequences else None
    return Append(encode_entry(messages, "p", branch), len(messages), branch, sequence)


def value_of(data: bytes) -> str:
    """Return the value of an entry's first message."""
    return EntryView(data).message(0).value.decode()


def branch_of(txn: Transaction, number: int = 0) -> Branch:
    """Return a branch of a transaction."""
    return Branch(txn.txn_id, number)


async def waiting(awaitable: Awaitable[T]) -> asyncio.Future[T]:
    """Start a coroutine that has to wait, and let it run until it waits."""
    task = asyncio.ensure_future(awaitable)
    await run_ready(200)
    return task
