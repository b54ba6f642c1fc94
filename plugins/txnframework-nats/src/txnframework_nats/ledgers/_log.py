"""
The log of one managed ledger: its state in this process, and changes that are stored directly behind it.

A record is stored with the number of the record before it as expectation. So it is stored only if this process had read
the whole log when it decided, and a record of a process that was paused is refused. The expectation is stored with the
record, and chains it to the one before: a log that is read with a gap is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar
from uuid import uuid4

import msgspec

from txnframework.environment import Environment
from txnframework.errors import Corrupt, InvalidInput, LedgerNotFound, OutcomeUnknown, Unavailable
from txnframework.runtime.tasks import start_task
from txnframework_nats.connection._failures import SUBJECT_IN_PROCESS, take_error
from txnframework_nats.ledgers._records import (
    Added,
    Asked,
    Created,
    Deleted,
    Imported,
    LogRecord,
    StoredRecord,
    decode,
    encode,
    frame,
)
from txnframework_nats.ledgers._requests import LIFETIME, Draft, Refusal, Requests, StoredMessage, Unanswered
from txnframework_nats.ledgers._snapshot_subject import SnapshotSubject
from txnframework_nats.ledgers._state import LedgerState
from txnframework_nats.ledgers._turns import TurnQueue

R = TypeVar("R")

_BATCH_MAX = 1_000
_READ_ITEMS = 256
_READ_BYTES = 8 * 1024 * 1024
_REMEMBERED = 64
_PIECE_HEAD = 8
_BUSY = (10_176, 10_210, 10_211)
_PRESENCE_S = 3_600.0
_LOADS_MAX = 100
_RETRY_S = 0.001
_RETRY_S_MAX = 0.25


class Change(msgspec.Struct, Generic[R], frozen=True):
    """What a call does: its result, and the record that makes it true; None: the result is true without one."""

    result: R
    content: LogRecord | None = None
    data: tuple[bytes, ...] = ()
    beside: tuple[Draft, ...] = ()
    lifetime_s: int = 0


class LogSubjects(msgspec.Struct, frozen=True):
    """
    The stream of a log, and its subjects there: records, pieces of large entries, snapshots.

    ``turns`` is not in the stream: there the writers tell each other whose turn it is.
    """

    stream: str
    records: str
    pieces: str
    snapshots: str
    turns: str


class LedgerLog:
    """The log of one managed ledger, shared by all handles of a store. ``read`` is called with each record."""

    def __init__(
        self,
        requests: Requests,
        subjects: LogSubjects,
        name: str,
        window: int,
        environment: Environment,
        read: Callable[[StoredRecord], None],
    ) -> None:
        self.name = name
        self.subjects = subjects
        self.state = LedgerState(window)
        self.snapshots = SnapshotSubject(requests, subjects.stream, subjects.snapshots, name, window)
        self.unsaved = 0
        self.unsaved_bytes = 0
        self.requests = requests
        self._read = read
        self._turns = TurnQueue(environment, requests.connection, subjects.turns)
        self._tokens: dict[int, tuple[int, bytes]] = {}
        self._seen_s = asyncio.get_running_loop().time()
        self._writing = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """
        Read the whole log, from the last snapshot on.

        :raises LedgerNotFound: it was deleted.
        """
        for _ in range(_LOADS_MAX):
            self.state = await self.snapshots.load()
            try:
                await self._catch_up()
            except _GapError:
                # Records were removed after the snapshot was read; a later snapshot covers them.
                continue
            if not self.state.number or self.state.deleted:
                raise LedgerNotFound(self.name)
            return
        raise Corrupt(f"the log of {self.name} has a gap that no snapshot covers")

    async def refresh(self) -> None:
        """
        Apply every record that was stored before the call; the state says whether the managed ledger was deleted.

        :raises Unavailable: the leader of the stream did not answer.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = start_task(self._refresh())
            self._refreshing.add_done_callback(take_error)
            running = self._refreshing
        else:
            # A read that is under way may have missed what was confirmed before this call: wait for the next one.
            if self._following is None or self._following.done():
                self._following = start_task(self._refresh_after(self._refreshing))
                self._following.add_done_callback(take_error)
            running = self._following
        # Others may wait for the same read: a cancelled caller does not end it.
        await asyncio.shield(running)

    async def change(self, decide: Callable[[LedgerState], Change[R]], refusals_max: int) -> R:
        """
        Store what ``decide`` makes of the state, and return its result; ``decide`` is called again after a refusal.

        :param refusals_max: after so many refusals, the others are asked to wait.

        :raises OutcomeUnknown: the record may have been stored.
        :raises Unavailable: it was not stored.
        """
        async with self._writing:
            try:
                return await self._change(decide, refusals_max)
            finally:
                await self._turns.over()

    async def _change(self, decide: Callable[[LedgerState], Change[R]], refusals_max: int) -> R:
        fresh, refusals = False, 0
        while True:
            if await self._turns.wait():
                await self._follow(self.state.number)
                fresh = False
            change = decide(self.state)
            if change.content is None:
                if fresh:
                    return change.result
                await self.refresh()
                change = decide(self.state)
                if change.content is None:
                    return change.result
            if await self._store(change, self.state.number):
                return change.result
            # Refusal, and the log was read since.
            fresh, refusals = True, refusals + 1
            if refusals % refusals_max == 0:
                await self._turns.ask(uuid4().bytes, self._ask)
            else:
                await self._turns.refused(refusals)

    def close(self) -> None:
        """Take part in no turns any more."""
        self._turns.close()

    async def take_snapshot(self) -> None:
        """Store the state, unless a snapshot covers it already, and remove the earlier snapshot."""
        if await self.snapshots.store(self.state):
            self.unsaved = self.unsaved_bytes = 0

    async def _ask(self, asked: Asked) -> None:
        with suppress(Unanswered):
            # Whether it is stored does not matter: it is a matter of politeness.
            await self.requests.store([Draft(self.subjects.records, encode(asked))])
        await self.refresh()

    async def _store(self, change: Change[R], expected: int) -> bool:
        """
        Store a record directly behind the record ``expected``; return whether it is there.

        False: another record is there, so this one can never be stored any more.
        """
        assert change.content is not None
        content, drafts = self._drafts(change, expected)
        loop = asyncio.get_running_loop()
        attempts, in_doubt, reason = self.requests.attempts(_RETRY_S, _RETRY_S_MAX), False, ""
        while True:
            begun_s = loop.time()
            try:
                stored = await self.requests.store(drafts)
            except Unanswered as error:
                in_doubt, reason = in_doubt or error.sent, str(error)
            else:
                self._turns.measure(loop.time() - begun_s)
                if not isinstance(stored, Refusal):
                    self._stored(stored, expected, content, change.data)
                    return True
                reason = stored.reason
                if stored.code == SUBJECT_IN_PROCESS:
                    await self._turns.pause_for_one()
                if not stored.is_outrun and stored.code not in _BUSY and not in_doubt:
                    raise Unavailable(f"the servers do not store a record of {self.name}: {stored.reason}")
            # The reply to an earlier attempt may have been lost. What is in the log now decides: the record with this
            # token, or another one, which keeps this one out for good.
            try:
                await self._follow(expected)
                found = self._tokens.get(expected)
                if found is not None:
                    return found[1] == change.content.token
                if self.state.number > expected:
                    if not in_doubt:
                        return False
                    raise OutcomeUnknown(f"{self.name} has changed so much that a lost reply cannot be found out")
            except Unavailable as error:
                reason = str(error)
            if attempts.are_over:
                if in_doubt:
                    raise OutcomeUnknown(f"{self.name}: a record may have been stored: {reason}")
                raise Unavailable(f"{self.name}: a record was not stored: {reason}")
            # Nothing is there yet: the same record with the same expectation is sent again. It cannot be stored twice.
            await attempts.pause()

    def _drafts(self, change: Change[R], expected: int) -> tuple[LogRecord, list[Draft]]:
        """Return the messages of a record; data that is too large for one message goes into pieces before it."""
        content, limit = change.content, self.requests.message_bytes
        assert content is not None
        headers = ((LIFETIME, f"{change.lifetime_s}s"),) if change.lifetime_s else ()
        message = encode(content, b"".join(change.data))
        pieces: list[Draft] = []
        if len(message) > limit and isinstance(content, Added):
            data, size = b"".join(change.data), limit - _PIECE_HEAD
            pieces = [Draft(self.subjects.pieces, frame(data[at : at + size])) for at in range(0, len(data), size)]
            content = msgspec.structs.replace(content, pieces=len(pieces))
            message = encode(content)
        if len(message) > limit or len(pieces) >= _BATCH_MAX - len(change.beside):
            raise InvalidInput(f"a record of {self.name} with {len(change.data)} entries is too large for the servers")
        return content, [*change.beside, *pieces, Draft(self.subjects.records, message, expected, headers)]

    def _stored(self, number: int, expected: int, content: LogRecord, data: Sequence[bytes]) -> None:
        """Apply an own record, unless it was read in the meantime."""
        if self.state.number == expected:
            inline = b"" if isinstance(content, Added) and content.pieces else b"".join(data)
            self._apply(StoredRecord(number, expected, content, inline))

    async def _follow(self, expected: int) -> None:
        """Read at least one record behind ``expected``, if there is any; whether it is the last does not matter."""
        stream, records = self.subjects.stream, self.subjects.records
        try:
            for message in await self.requests.some(stream, records, expected + 1, _READ_ITEMS, _READ_BYTES):
                await self._take(message)
        except _GapError:
            pass
        if self.state.number == expected:
            await self.refresh()

    async def _refresh(self) -> None:
        try:
            await self._catch_up()
        except _GapError:
            await self.load()

    async def _refresh_after(self, running: asyncio.Task[None]) -> None:
        await asyncio.wait((running,))
        await self._refresh()

    async def _take(self, message: StoredMessage) -> None:
        """Apply the message that follows the state, unless records between them were removed."""
        record = self._decoded(message)
        if record.before < 0 and record.number > self.state.number:
            # It names no record before it. Only the beginning of a log is removed: so nothing is missing if the record
            # that this process has read last is there.
            read = self.state.number
            last = await self.requests.next_at_leader(self.subjects.stream, self.subjects.records, read)
            if last is None or last.number != read or self.state.number != read:
                raise _GapError
            record = msgspec.structs.replace(record, before=read)
        self._apply(record)

    async def _catch_up(self) -> None:
        """Apply the records behind the state until the leader has no further one."""
        stream, records = self.subjects.stream, self.subjects.records
        while True:
            number = self.state.number
            found = await self.requests.next_at_leader(stream, records, number + 1)
            if found is None:
                if number != self.state.number:
                    continue
                await self._require_log()
                return
            self._seen_s = asyncio.get_running_loop().time()
            await self._take(found)
            if self.state.number > number:
                for message in await self.requests.some(
                    stream, records, self.state.number + 1, _READ_ITEMS, _READ_BYTES
                ):
                    await self._take(message)

    async def _require_log(self) -> None:
        """
        Note a deletion whose record has expired.

        The last record of a deleted log is kept for days. A process that read nothing new for an hour checks whether
        the log is there at all.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s - self._seen_s > _PRESENCE_S:
            if await self.requests.last_at_leader(self.subjects.stream, self.subjects.records) is None:
                self.state.deleted = True
            self._seen_s = now_s

    def _apply(self, record: StoredRecord) -> None:
        if record.number <= self.state.number:
            return
        if record.before != self.state.number and not isinstance(record.content, Deleted):
            # After a deletion the records before it are removed without a snapshot.
            raise _GapError
        before = self.state.number
        self.state.apply(record.number, record.content)
        self._turns.applied(record.content)
        self._tokens[before] = (record.number, record.content.token)
        if len(self._tokens) > _REMEMBERED:
            del self._tokens[next(iter(self._tokens))]
        self.unsaved += 1
        self.unsaved_bytes += len(record.data)
        self._read(record)

    def _decoded(self, message: StoredMessage) -> StoredRecord:
        return decode(message.number, message.expected, message.data, self.name)


class _GapError(Exception):
    """A record does not follow the one before: those between were removed."""


def creation(first: Created | Imported, subjects: LogSubjects) -> Draft:
    """Return the first record of a log."""
    return Draft(subjects.records, encode(first), 0)
