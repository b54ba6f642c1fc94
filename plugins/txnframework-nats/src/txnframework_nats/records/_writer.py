"""Sends the messages of writes, and finds out what became of those whose reply was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

from txnframework.environment import Environment
from txnframework.errors import InvalidInput, OutcomeUnknown, Unavailable
from txnframework.model import PutSequential, Record, Step
from txnframework_nats._options import MetadataOptions
from txnframework_nats.connection._connection import Message, NatsConnection
from txnframework_nats.connection._failures import SUBJECT_IN_PROCESS, WRONG_LAST_SEQUENCE, ReplyLost, RequestRefused
from txnframework_nats.records._feed import Feed
from txnframework_nats.records._layout import (
    EXPECTED_HEADER,
    EXPECTED_SUBJECT_HEADER,
    ROLLUP,
    WRITE_HEADER,
    RecordID,
    decode,
)
from txnframework_nats.records._plans import needs_look, parts_of, plan, records_of, require_expected
from txnframework_nats.records._stream import LastMessage, RecordStream

_CLIENT_BITS = 64
_NUMBERS_TOGETHER = 10_000
_PAUSE_S = 0.002
_PAUSE_STEPS = 8
_BATCH_REFUSALS = range(10174, 10220)
"""JetStream's reasons to refuse a whole batch, such as too many open ones: nothing was stored, and it may be tried."""


class NumberBlocks:
    """
    Numbers of sequential records, reserved in blocks.

    A message reserves a block. Its number in the stream is never used again, so the numbers of the block are not,
    whatever becomes of this process. Numbers of one process grow; they are lost if the process ends.
    """

    def __init__(self, connection: NatsConnection, stream: RecordStream) -> None:
        self._connection = connection
        self._stream = stream
        self._after: int | None = None
        self._next = self._end = 0
        self._reserving = asyncio.Lock()

    async def take(self, wanted: int) -> list[int]:
        """
        Return numbers that no caller has had.

        :raises Unavailable: no block could be reserved.
        """
        if not wanted:
            return []
        async with self._reserving:
            if self._next + wanted > self._end:
                after = self._after
                if after is None:
                    # It changes only while no other process has the store open.
                    after = self._after = await self._stream.numbers_after()
                try:
                    block = await self._connection.publish(Message(self._stream.layout.numbers, b"", ROLLUP))
                except (ReplyLost, RequestRefused) as error:
                    # A block may be reserved that is never used.
                    raise Unavailable(str(error)) from error
                self._next, self._end = after + block * _NUMBERS_TOGETHER, after + (block + 1) * _NUMBERS_TOGETHER
            first, self._next = self._next, self._next + wanted
            return list(range(first, first + wanted))

    async def last(self) -> int:
        """
        Return a number that is not below any that was given.

        :raises Unavailable: the leader did not answer.
        """
        try:
            state = await self._stream.state()
        except ReplyLost as error:
            raise Unavailable(str(error)) from error
        return await self._stream.numbers_after() + (state.last_sequence + 1) * _NUMBERS_TOGETHER

    async def skip(self, number: int, attempts_max: int) -> None:
        """
        Give no number up to ``number``; no other process has the store open.

        :raises OutcomeUnknown: the store may count from there.
        """
        async with self._reserving:
            # Also after a lost reply the number from which is counted must be read again.
            self._after, self._next, self._end = None, 0, 0
            # Every block of this stream begins above the number from which it is counted.
            await self._stream.skip_numbers(number, attempts_max)


class Writer:
    """The writes of one opening of the store."""

    def __init__(
        self,
        connection: NatsConnection,
        stream: RecordStream,
        feed: Feed,
        environment: Environment,
        options: MetadataOptions,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._feed = feed
        self._layout = stream.layout
        self._environment = environment
        self._attempts_max = options.attempts_max
        # Shorter than the message of a deletion is kept: the history of a subject must not begin again meanwhile.
        self._patience_ms_max = options.deleted_life_ms // 2
        self.deleted_life = f"{options.deleted_life_ms // 1000}s"
        self._client = f"{environment.random_bits(_CLIENT_BITS):016x}"
        self._writes = count(1)
        self.numbers = NumberBlocks(connection, stream)
        self._loop = asyncio.get_running_loop()

    def next_write(self) -> str:
        """Return a name that no other write has."""
        return f"{self._client}-{next(self._writes)}"

    async def apply(self, step: Step) -> tuple[Record, ...]:
        """
        Apply all steps of a batch, or none; return what the puts wrote.

        :raises VersionMismatch: a record is not as expected; nothing was changed.
        :raises OutcomeUnknown: all or nothing was applied.
        """
        self._connection.require_open()
        sequential = sum(isinstance(put, PutSequential) for put in step.puts)
        steps = parts_of(step, await self.numbers.take(sequential))
        copy = self._feed.copy
        is_current = needs_look(steps, copy)
        for attempt in range(self._attempts_max):
            if is_current:
                await self._feed.current()
                require_expected(steps, copy)
            write = self.next_write()
            made = plan(steps, copy, self._layout, self._client, write, self.deleted_life)
            if not made.messages:
                return ()
            self._check_size(made.messages)
            try:
                return records_of(made, await self.send(made.messages, write))
            except RequestRefused as error:
                await self._require_race(error, attempt)
                is_current = True
                if error.code != SUBJECT_IN_PROCESS:
                    await self.learn_deleted([step.place for step in steps])
        raise Unavailable(
            f"{self._connection.shown_url}: the records were changed by others {self._attempts_max} times"
        )

    async def send(self, messages: Sequence[Message], write: str) -> int:
        """
        Write messages all or nothing; return the number of the last one.

        Each message of a record or session must have a condition on its own subject; see ``plan`` for the exception.

        :raises RequestRefused: nothing was stored.
        :raises Unavailable: nothing was stored.
        :raises OutcomeUnknown: all or nothing was stored.
        """
        try:
            last = await self._send(messages)
        except ReplyLost as error:
            self._feed.applier.expect_write(write)
            try:
                last = await self._resolve(messages, write, error)
            finally:
                self._feed.applier.forget_write(write)
        self._feed.confirm(last)
        return last

    async def has_messages(self, subject: str) -> bool:
        """
        Return whether the leader has a message of a subject.

        :raises Unavailable: it did not answer.
        """
        try:
            return await self._stream.last(subject) is not None
        except ReplyLost as error:
            raise Unavailable(str(error)) from error

    async def _send(self, messages: Sequence[Message]) -> int:
        if len(messages) == 1:
            return await self._connection.publish(messages[0])
        return await self._connection.publish_batch(self.next_write(), messages)

    async def _resolve(self, messages: Sequence[Message], write: str, lost: ReplyLost) -> int:
        """
        Find out whether a write was applied whose reply was lost, by repeating it.

        The repetition has the same conditions. Of the two, at most one is applied: the first one that arrives changes
        the subjects of the conditions. So the repetition decides the outcome, even if the first request arrives later.
        If the repetition is refused, the write was applied, or another one was: the last message of a subject shows
        which. If yet another one has replaced it since, the outcome stays unknown, unless the feed has delivered it. It
        is known, too, if the last message has the same condition: of two such messages only one is applied.

        :raises RequestRefused: nothing was stored, because of another write.
        """
        at, own = next(
            ((at, message) for at, message in enumerate(messages) if not _is_check(message)), (0, messages[0])
        )
        is_repeatable = EXPECTED_SUBJECT_HEADER not in own.headers or _is_check(own)
        rest = len(messages) - 1 - at
        patience_ms = min(self._connection.options.connect_timeout_ms, self._patience_ms_max)
        until = self._loop.time() + patience_ms / 1000
        while True:
            found: LastMessage | None = None
            try:
                found = await self._stream.last(own.subject)
                if found is not None and f"{WRITE_HEADER}: {write}\r\n".encode() in found.headers:
                    return found.sequence + rest
                if found is not None and _excludes(found, own):
                    raise RequestRefused(WRONG_LAST_SEQUENCE, "another write was stored instead")
                if not is_repeatable:
                    # The condition of a fresh record is on another subject, so the first request and a repetition could
                    # both be applied. A later change of the record would be lost.
                    break
                return await self._send(messages)
            except RequestRefused as error:
                if found is not None and _excludes(found, own):
                    raise
                if not error.is_lost_race and error.code not in _BATCH_REFUSALS:
                    break
                headers = await self._read_again(own.subject, until)
                if headers is not None and f"{WRITE_HEADER}: {write}\r\n".encode() in headers:
                    continue
                if error.code != SUBJECT_IN_PROCESS and error.is_lost_race:
                    break
            except (ReplyLost, Unavailable):
                pass
            if self._loop.time() > until:
                break
            await asyncio.sleep(_PAUSE_S)
        if seen := self._feed.applier.seen_write(write):
            return seen
        raise OutcomeUnknown(f"{lost}: the write may have been applied")

    async def _read_again(self, subject: str, until: float) -> bytes | None:
        """Return the headers of the last message of a subject; None if it cannot be read in time, or is absent."""
        while self._loop.time() < until:
            try:
                found = await self._stream.last(subject)
            except (ReplyLost, Unavailable):
                continue
            return None if found is None else found.headers
        return None

    async def _require_race(self, error: RequestRefused, attempt: int) -> None:
        """Wait a little after a refusal that another attempt may not meet; raise Unavailable for all others."""
        if not error.is_lost_race and error.code not in _BATCH_REFUSALS:
            raise Unavailable(f"{self._connection.shown_url}: the servers refuse a write: {error}") from error
        if error.code in _BATCH_REFUSALS or error.code == SUBJECT_IN_PROCESS:
            steps = min(attempt + 1, _PAUSE_STEPS)
            await asyncio.sleep(_PAUSE_S * steps * (1 + self._environment.random_bits(8) / 256))

    async def learn_deleted(self, places: Sequence[RecordID]) -> None:
        """
        Ask the leader which deletions of absent records the stream still has, after a write was refused.

        :raises Unavailable: it did not answer.
        """
        copy = self._feed.copy
        for place in places:
            if copy.get(place) is not None:
                continue
            subject = self._layout.record(place)
            try:
                found = await self._stream.last(subject)
            except ReplyLost as error:
                raise Unavailable(str(error)) from error
            if found is None:
                copy.learn_deleted(place, 0)
            elif decode(subject, found.payload).value is None:
                copy.learn_deleted(place, found.sequence)

    def _check_size(self, messages: Sequence[Message]) -> None:
        """Refuse a message that the servers would not accept: they end the connection of a client that sends it."""
        for message in messages:
            if len(message.payload) > self._connection.max_payload - _HEADERS_BYTES_MAX:
                raise InvalidInput(
                    f"{self._connection.shown_url}: a record has {len(message.payload)} bytes, and the servers accept"
                    f" {self._connection.max_payload} with headers; set max_payload higher there"
                )


_HEADERS_BYTES_MAX = 4_096


def _excludes(found: LastMessage, own: Message) -> bool:
    """Return whether another message took the place of this one: both expect the same number on their subject."""
    if EXPECTED_SUBJECT_HEADER in own.headers or EXPECTED_SUBJECT_HEADER.encode() in found.headers:
        return False
    return f"\r\n{EXPECTED_HEADER}: {own.headers.get(EXPECTED_HEADER)}\r\n".encode() in found.headers


def _is_check(message: Message) -> bool:
    return EXPECTED_SUBJECT_HEADER in message.headers and not message.payload
