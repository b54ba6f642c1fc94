"""The workload: writers in the source, and replicators on several hosts that take over from each other."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from txnframework.client import Client
from txnframework.errors import InvalidInput, TxnFrameworkError
from txnframework.model.names import TopicName
from txnframework_geo._origins import ID_HEADER
from txnframework_geo._replicator import Replicator
from txnframework_geo._values import Replication
from txnframework_simulation.checkers import Violation
from txnframework_simulation.history import (
    Call,
    DeleteTopic,
    Drained,
    DrainRows,
    DrainTopic,
    EventKind,
    History,
    RowsFound,
    SeenMessage,
)
from txnframework_simulation.workloads import ActorContext, Options, RecordedClient, Workload
from txnframework_simulation.workloads.oracles import sends_of
from txnframework_simulation.workloads.workload import NAMESPACE

LEFT, RIGHT = TOPICS = (f"{NAMESPACE}/left", f"{NAMESPACE}/right")
NAMES: Final = tuple(map(TopicName.parse, TOPICS))
SNAPSHOT, COPIES = "snapshot of the target", "copies in the target"
LOST, DOUBLED, TORN, REORDERED = (
    "every committed message is copied",
    "every message is copied once",
    "the target never shows a part of a transaction",
    "each key keeps its order",
)
KEYS: Final = 4
PARTS_MAX: Final = 4
REPLICATION_MS_MAX: Final = 8_000


class ReplicatedOptions(Options, frozen=True, kw_only=True):
    """The weights of the actions; ``recreates``: of deleting a topic of the source and creating it again."""

    segments: int = 2
    messages_min: int = 5
    sends: float = 2.0
    transactions: float = 4.0
    replications: float = 3.0
    snapshots: float = 1.0
    splits: float = 0.2
    recreates: float = 0.0
    aborts: float = 0.15
    forgotten: float = 0.05


class Replicated(Workload[ReplicatedOptions]):
    """
    The second deployment gets every committed message once, transactions whole, and each key in its order.

    The value of each message says how many messages its transaction has, ``TRANSACTION/COUNT/NUMBER``. So a reader of
    the target sees by itself whether a transaction is whole. If a topic was deleted and created again, the replication
    ends, and what is not copied then is not judged; nor are the parts that transactions had in the deleted topic.
    """

    options_type = ReplicatedOptions

    @property
    def topics(self) -> dict[str, int]:
        """The topics of the source."""
        return dict.fromkeys(TOPICS, self.options.segments)

    async def run(self, context: ActorContext) -> None:
        """Write, replicate and look."""
        actor, options = _Actor(context, self.options), self.options
        await context.repeat(
            {
                actor.send: options.sends,
                actor.transact: options.transactions,
                actor.replicate: options.replications,
                actor.look: options.snapshots,
                actor.split: options.splits,
                actor.recreate: options.recreates,
            }
        )

    async def restore(self, recorded: RecordedClient) -> None:
        """Create what was deleted, and not created again."""
        for topic in TOPICS:
            await recorded.create_topic(topic, self.options.segments)

    async def finish(self, context: ActorContext) -> None:
        """Replicate what is left, and read the target."""
        actor = _Actor(context, self.options)
        try:
            await actor.replicator().run(once=True)
        except InvalidInput:
            if not self.options.recreates:
                raise
        (target,) = context.others
        for topic in NAMES:
            await target.create_topic(topic, exist_ok=True)
        await actor.look()
        await context.recorded.record(DrainRows(COPIES), lambda: _copies(target), RowsFound)

    def violations(self, history: History) -> list[Violation]:
        """Compare the target with the source, and judge each snapshot of the target."""
        calls = [call for call in history.calls() if call.kind is EventKind.OK]
        deletions = [call.began for call in history.calls() if isinstance(call.operation, DeleteTopic)]
        found = []
        for call in calls:
            if _reads(call, SNAPSHOT):
                torn = _torn(_rows(call), deleted=any(began < call.ended for began in deletions))
                found += [Violation(TORN, sentence, ()) for sentence in torn]
        copies = [_rows(call) for call in calls if _reads(call, COPIES)]
        if not copies:
            return found
        lines = [_Copy(place, row) for place, row in copies[-1].items()]
        for origin, times in Counter(one.origin for one in lines).items():
            if times > 1:
                found.append(Violation(DOUBLED, f"{origin} was copied {times} times", ()))
        if self.options.recreates:
            return found
        for topic in TOPICS:
            sent = _drained(calls, topic)
            copied = [one for one in lines if one.topic == topic]
            found += _differences(history, topic, sent, copied)
        return found


class _Copy:
    """A line of what the target has at the end."""

    def __init__(self, place: str, row: str) -> None:
        self.topic = place.partition(" ")[0]
        self.origin, self.value, self.key = row.split(" ", 2)


def _reads(call: Call, table: str) -> bool:
    return call.operation == DrainRows(table)


def _rows(call: Call) -> Mapping[str, str]:
    assert isinstance(call.reply, RowsFound)
    return call.reply.rows


def _drained(calls: Sequence[Call], topic: str) -> tuple[SeenMessage, ...]:
    for call in reversed(calls):
        if call.operation == DrainTopic(topic) and isinstance(call.reply, Drained):
            return call.reply.messages
    return ()


def _torn(rows: Mapping[str, str], *, deleted: bool) -> list[str]:
    """
    Say which transactions a snapshot shows in part.

    ``deleted``: ``left`` may have been deleted in the source before, with the parts that transactions had in it. A
    replication that begins after that copies what is left of them, so only the messages in ``right`` are judged.
    """
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    wanted = {}
    for place, value in rows.items():
        if value.count("/") == 2:
            txn, count, _ = value.split("/")
            seen[txn][place.partition(" ")[0]] += 1
            wanted[txn] = int(count)
    return [
        f"{seen[txn].total()} of {count} messages of {txn} can be read"
        for txn, count in wanted.items()
        if (seen[txn][RIGHT] != count // 2 if deleted else seen[txn].total() != count)
    ]


def _differences(history: History, topic: str, sent: Iterable[SeenMessage], copied: Iterable[_Copy]) -> list[Violation]:
    by_key: dict[str, list[str]] = defaultdict(list)
    copies: dict[str, list[str]] = defaultdict(list)
    for message in sent:
        by_key[message.key or ""].append(message.value)
    for one in copied:
        copies[one.key].append(one.value)
    found = []
    for key in by_key.keys() | copies.keys():
        missing = Counter(by_key[key]) - Counter(copies[key])
        found += [Violation(LOST, f"{value} of {topic} was not copied", sends_of(history, value)) for value in missing]
        unknown = Counter(copies[key]) - Counter(by_key[key])
        found += [
            Violation(DOUBLED, f"{value} is in the target too often", sends_of(history, value)) for value in unknown
        ]
        if not missing and not unknown and by_key[key] != copies[key]:
            found.append(Violation(REORDERED, f"key {key} of {topic} has another order in the target", ()))
    return found


async def _copies(target: Client) -> dict[str, str]:
    """Return origin, value and key of each message of the target, in the order of its topic."""
    found = {}
    for topic in NAMES:
        number = 0
        async with await target.reader(topic) as reader:
            async for message in reader:
                number += 1
                texts = (message.headers[ID_HEADER], message.value or b"", message.key or b"")
                found[f"{topic} {number:06}"] = " ".join(text.decode() for text in texts)
    return found


class _Actor:
    """One actor."""

    def __init__(self, context: ActorContext, options: ReplicatedOptions) -> None:
        self._context = context
        self._options = options
        self._recorded = context.recorded

    def replicator(self) -> Replicator:
        """Return a replicator to the other deployment."""
        (target,) = self._context.others
        replication = Replication(NAMES, messages_min=self._options.messages_min)
        return Replicator(self._recorded.client, target, replication)

    async def send(self) -> None:
        """Send a message outside transactions."""
        chance = self._context.chance
        producer = await self._recorded.producer(chance.choice(TOPICS))
        await producer.send(self._recorded.unique(), key=f"k{chance.randrange(KEYS)}")

    async def transact(self) -> None:
        """Send a few messages to both topics in a transaction."""
        chance, recorded = self._context.chance, self._recorded
        count, name = chance.randint(2, PARTS_MAX), recorded.unique()
        txn = await recorded.begin(timeout_ms=chance.choice((2_000, 10_000)))
        try:
            for number in range(count):
                producer = await recorded.producer(TOPICS[number % 2])
                await producer.send(f"{name}/{count}/{number}", key=f"k{chance.randrange(KEYS)}", txn=txn)
        except TxnFrameworkError:
            await recorded.abort(txn)
            raise
        drawn = chance.random()
        if drawn < self._options.aborts:
            await recorded.abort(txn)
        elif drawn > self._options.forgotten + self._options.aborts:
            await recorded.commit(txn)

    async def replicate(self) -> None:
        """Replicate for some time, or until nothing is left."""
        context = self._context
        working = asyncio.ensure_future(self.replicator().run(once=context.likely(0.5)))
        over = asyncio.ensure_future(context.wait(REPLICATION_MS_MAX))
        await asyncio.wait({working, over}, return_when=asyncio.FIRST_COMPLETED)
        for one in (working, over):
            one.cancel()
        await asyncio.wait({working, over})
        if working.cancelled():
            return
        try:
            working.result()
        except InvalidInput:
            if not self._options.recreates:
                raise

    async def look(self) -> None:
        """Read both topics of the target at one moment."""
        (target,) = self._context.others

        async def read() -> dict[str, str]:
            found = {}
            snapshot = await target.snapshot(*NAMES)
            for topic in NAMES:
                number = 0
                async for message in await snapshot.reader(topic):
                    number += 1
                    found[f"{topic} {number:06}"] = (message.value or b"").decode()
            return found

        await self._recorded.record(DrainRows(SNAPSHOT), read, RowsFound)

    async def split(self) -> None:
        """Split a segment of the source."""
        topic = self._context.chance.choice(TOPICS)
        layout = await self._recorded.client.layout(topic)
        await self._recorded.split(topic, self._context.chance.choice(sorted(one.id for one in layout.active())))

    async def recreate(self) -> None:
        """Delete a topic of the source, and create it again."""
        await self._recorded.delete_topic(LEFT)
        await self._recorded.create_topic(LEFT, self._options.segments)
