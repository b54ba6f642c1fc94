"""The requests and confirmations of one world, and the resulting conditions at its end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import crash_log_family

from txnframework import Client, Consumer, Message, Producer, State, Transaction, TransactionPart, TxnID
from txnframework.model import Record, Step
from txnframework.model.paths import txn_id_of
from txnframework.model.records import TransactionHeader, decode
from txnframework_memory.space import MemorySpace

T = TypeVar("T")
Branch = tuple[TxnID, int] | None


class Due(Enum):
    """Whether an effect has to be there."""

    MUST = "must"
    MAY = "may"
    NEVER = "must not"


@dataclass
class Attempt:
    """One attempt at an effect, in a branch or outside transactions."""

    branch: Branch
    confirmed: bool = False


@dataclass
class Effect:
    """A message that was sent, or one that a subscription acknowledged, by one or several attempts."""

    key: bytes | None = None
    attempts: list[Attempt] = field(default_factory=list)


class Story:
    """What the simulated users did, and what the stores decided.

    Decisions are noted where they are made, in the space itself, so that they are known after the headers are gone.
    ``former``: the names under which topics that migrate are known here, by their new names. ``trimmed`` says what may
    be gone for late readers, ``violations`` collects those that no caller waits for; ``writes`` counts changes of
    records, ``told`` confirmations.
    """

    def __init__(self, space: MemorySpace) -> None:
        self.sent: dict[str, dict[bytes, Effect]] = defaultdict(dict)
        self.acked: dict[tuple[str, str], dict[bytes, Effect]] = defaultdict(dict)
        self.decided: dict[TxnID, tuple[State, frozenset[int]]] = {}
        self.promised: dict[TxnID, State] = {}
        self.seen: dict[tuple[str, str], list[Message]] = defaultdict(list)
        self.skipped: dict[tuple[str, str], dict[bytes, Due]] = defaultdict(dict)
        self.trimmed: dict[str, frozenset[bytes]] = defaultdict(frozenset)
        self.violations: list[str] = []
        self.former: dict[str, str] = {}
        self.writes = 0
        self.told = 0
        self._note_decisions(space)
        crash_log_family.note_decisions(space, self._note_decided)

    # -- what users do --------------------------------------------------------------------------------

    async def send(
        self,
        producer: Producer,
        value: bytes,
        *,
        key: bytes | None = None,
        sequence_id: int | None = None,
        txn: TransactionPart | None = None,
    ) -> None:
        """Send a message; a value is sent once in a story, or repeated as the same message."""
        attempt = Attempt(_branch(txn))
        effect = self.sent[self.former.get(producer.topic, producer.topic)].setdefault(value, Effect(key))
        effect.attempts.append(attempt)
        await producer.send(value, key=key, sequence_id=sequence_id, txn=txn)
        attempt.confirmed = True
        self.told += 1

    async def ack(self, consumer: Consumer, *messages: Message, txn: TransactionPart | None = None) -> None:
        """Acknowledge messages."""
        await self._acked(consumer, messages, txn, consumer.ack(*messages, txn=txn))

    async def ack_cumulative(
        self, consumer: Consumer, messages: tuple[Message, ...], txn: TransactionPart | None = None
    ) -> None:
        """Acknowledge all of ``messages`` by their last one."""
        await self._acked(consumer, messages, txn, consumer.ack_cumulative(messages[-1], txn=txn))

    async def transact(
        self, client: Client, sends: Mapping[bytes, Producer], consumer: Consumer, acked: Message
    ) -> None:
        """Send messages and acknowledge one in a transaction that is known in advance, whose id is not."""
        attempt = Attempt(None)
        for value, producer in sends.items():
            self.sent[producer.topic].setdefault(value, Effect(value)).attempts.append(attempt)
        self.acked[acked.topic, consumer.subscription].setdefault(acked.value, Effect()).attempts.append(attempt)
        await client.transact(
            *(producer.outgoing(value, key=value) for value, producer in sends.items()), consumer.acknowledging(acked)
        )
        attempt.confirmed = True
        self.told += 1

    async def commit(self, txn: Transaction, branches: Iterable[int] = ()) -> None:
        """Commit a transaction."""
        await txn.commit(branches)
        self.promise(txn.id, State.COMMITTED)

    async def abort(self, txn: Transaction) -> None:
        """Abort a transaction."""
        await txn.abort()
        self.promise(txn.id, State.ABORTED)

    def promise(self, txn_id: TxnID, state: State) -> None:
        """A caller received this outcome."""
        self.told += 1
        before = self.promised.setdefault(txn_id, state)
        if before is not state:
            self.violations.append(f"{txn_id} was told to be {before.value} and then {state.value}")

    def saw(self, who: str, message: Message) -> None:
        """A consumer received a message."""
        self.seen[who, self.former.get(message.topic, message.topic)].append(message)
        if message.txn_id is not None:
            state = self.decided.get(message.txn_id, (State.OPEN, frozenset()))[0]
            if state is not State.COMMITTED:
                self.violations.append(f"{who} was shown {message.value!r} of {message.txn_id}, which is {state.value}")

    async def _acked(
        self, consumer: Consumer, messages: tuple[Message, ...], txn: TransactionPart | None, acking: Awaitable[None]
    ) -> None:
        attempt = Attempt(_branch(txn))
        for message in messages:
            topic = self.former.get(message.topic, message.topic)
            self.acked[topic, consumer.subscription].setdefault(message.value, Effect()).attempts.append(attempt)
        await acking
        attempt.confirmed = True
        self.told += 1

    # -- what must be true ----------------------------------------------------------------------------

    def shown(self, topic: str, value: bytes) -> Due:
        """Return whether a sent message must be visible."""
        return self._due(self.sent[topic][value], f"message {value!r}")

    def gone(self, topic: str, subscription: str, value: bytes) -> Due:
        """Return whether a message must not be delivered: acknowledged, or before the subscription's start."""
        skipped = self.skipped[topic, subscription].get(value, Due.NEVER)
        effect = self.acked[topic, subscription].get(value)
        if effect is None or skipped is Due.MUST:
            return skipped
        due = self._due(effect, f"acknowledgment of {value!r}")
        return Due.MAY if Due.MAY in (due, skipped) and due is not Due.MUST else due

    def check_promises(self) -> None:
        """Every outcome that a caller received is the decided one."""
        for txn_id, state in self.promised.items():
            decided = self.decided.get(txn_id, (State.OPEN, frozenset()))[0]
            assert decided is state, f"{txn_id} was told to be {state.value} and is {decided.value}"
        assert not self.violations, "; ".join(self.violations)

    def check_topic(self, topic: str, messages: Iterable[Message], who: str, late: bool = False) -> None:
        """
        A topic shows what it must, once, nothing that it must not, and each key in the order it was sent in.

        Who is ``late`` may miss what was trimmed.
        """
        dues = {value: self.shown(topic, value) for value in self.sent[topic]}
        if late:
            dues |= {value: Due.MAY for value in self.trimmed[topic] if dues.get(value) is Due.MUST}
        self._check(dues, [message.value for message in messages], f"{topic} as {who} reads it")

    def check_delivered(self, topic: str, subscription: str, messages: Iterable[Message]) -> None:
        """A subscription delivers what is visible and not acknowledged, once, in order."""
        dues = {}
        for value in self.sent[topic]:
            shown, gone = self.shown(topic, value), self.gone(topic, subscription, value)
            if Due.NEVER is shown or gone is Due.MUST:
                dues[value] = Due.NEVER
            else:
                dues[value] = Due.MUST if (shown, gone) == (Due.MUST, Due.NEVER) else Due.MAY
        self._check(dues, [message.value for message in messages], f"{topic} as {subscription} receives it")

    def _check(self, dues: dict[bytes, Due], values: list[bytes], where: str) -> None:
        counted = Counter(values)
        wrong = [
            f"{value!r} {due.value} be there, and is {counted[value]} times"
            for value, due in dues.items()
            if counted[value] > 1 or (due is Due.MUST and not counted[value]) or (due is Due.NEVER and counted[value])
        ]
        assert not wrong, f"{where}: {'; '.join(wrong)}"
        assert not counted.keys() - dues.keys(), f"{where}: nobody sent {counted.keys() - dues.keys()}"
        keys = {value: effect.key for effects in self.sent.values() for value, effect in effects.items()}
        for key in set(keys.values()):
            got = [value for value in values if keys[value] == key]
            sent = [value for value in dues if value in counted and keys[value] == key]
            assert key is None or got == sent, f"{where}: {key!r} is out of order: {got}"

    def _due(self, effect: Effect, what: str) -> Due:
        due = Due.NEVER
        for attempt in effect.attempts:
            if attempt.branch is None:
                counts = Due.MUST if attempt.confirmed else Due.MAY
            else:
                state, branches = self.decided.get(attempt.branch[0], (State.OPEN, frozenset()))
                counts = Due.MUST if state is State.COMMITTED and attempt.branch[1] in branches else Due.NEVER
                assert attempt.confirmed or counts is Due.NEVER, f"{what} was never confirmed, and is committed"
            due = min(due, counts, key=list(Due).index)
        return due

    def _note_decisions(self, space: MemorySpace) -> None:
        apply = space.records.apply

        def noting(batch: Step, *versions: Sequence[int] | None) -> tuple[Record, ...]:
            written = apply(batch, *versions)
            self.writes += 1
            for record in written:
                if record.key.path.startswith("/txn/"):
                    self._note(record)
            return written

        space.records.apply = noting  # type: ignore[method-assign]

    def _note_decided(self, txn_id: TxnID, state: State, branches: frozenset[int]) -> None:
        self.decided[txn_id] = (state, branches)

    def _note(self, record: Record) -> None:
        header, txn_id = decode(TransactionHeader, record), txn_id_of(record.key.path)
        if txn_id in self.decided:
            self.violations.append(f"{txn_id} had ended and was written again")
        if header.finalized_ms is not None:
            self.decided[txn_id] = (State(header.state), frozenset(header.branches or ()))


def _branch(txn: TransactionPart | None) -> Branch:
    return None if txn is None else (txn.id, txn.branch)


def values_of(messages: Iterable[Any]) -> list[bytes]:
    """Return the values of messages."""
    return [message.value for message in messages]
