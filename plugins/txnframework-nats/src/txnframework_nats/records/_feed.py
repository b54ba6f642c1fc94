"""Keeps the copy of the records current: a consumer of the stream, and the proof that nothing is missing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from txnframework.environment import Environment
from txnframework.errors import Closed, TxnFrameworkError, Unavailable
from txnframework_nats.connection._connection import NatsConnection
from txnframework_nats.connection._failures import ReplyLost, RequestRefused
from txnframework_nats.records._copy import RecordChange, RecordCopy
from txnframework_nats.records._layout import WRITE_HEADER, Layout, decode
from txnframework_nats.records._stream import RecordStream

_NS = 1_000_000_000
_HEARTBEAT_S = 1
_SILENCE_S = 3.5
_UNUSED_S = 30
_STALL_S = 0.25
_COMMIT_S_MAX = 5.0
"""Longer than a server needs to store a batch."""
_RETRY_S = 0.05
_PROOFS = 8
_STATUS = "100"
_ACK_TOKENS = 9

Observer = Callable[[Sequence[RecordChange]], None]
SessionObserver = Callable[[str, int, bytes], None]


class FeedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message of the stream; ``write`` names the write that it belongs to."""

    subject: str
    sequence: int
    payload: bytes
    write: str


class _Consumer:
    """One consumer on the servers; ``delivered`` counts its messages, which are numbered without gaps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.subscription: Subscription | None = None
        self.delivered = 0
        self.heard_s = 0.0


class Feed:
    """
    Applies the messages of the stream to the copy, in their order.

    The messages of one batch are applied in one step: a reader never sees a part of a batch. The end of a batch is its
    last message, or a message of another write: the last message may have been replaced by a later one.

    A later write removes the earlier message of its record, maybe before the consumer has read it. So a number may be
    missing although its replacement was not received yet. A reader that meets such a gap asks for the last number
    again: the stream had the replacement when the consumer went over the gap. This also covers a batch of which one
    message was replaced.

    The stream keeps the message of a deletion for ``deleted_life_ms``. A copy that was not current for longer could
    miss it. So the copy is built again if half of that time has passed since it was last known to be current.
    """

    def __init__(
        self,
        connection: NatsConnection,
        stream: RecordStream,
        environment: Environment,
        created: str,
        deleted_life_ms: int,
    ) -> None:
        self.layout: Layout = stream.layout
        self.copy = RecordCopy()
        self.failure: TxnFrameworkError | None = None
        self._connection = connection
        self._stream = stream
        self._created = created
        self._environment = environment
        self._deleted_life_ms = deleted_life_ms
        self._proved_ms = environment.now_ms()
        # The highest number of a confirmed write, and how many gaps were met.
        self._confirmed = 0
        self._gaps = 0
        # When the copy had which number. This gives the age of deletions.
        self._ages: deque[tuple[int, int]] = deque()
        self._loop = asyncio.get_running_loop()
        self._consumer: _Consumer | None = None
        self._consumers = 0
        self._batch_id = ""
        self._batch: list[FeedMessage] = []
        self._batch_at_s = 0.0
        self._advanced = asyncio.Event()
        self._broken = asyncio.Event()
        self._expected_writes: dict[str, int] = {}
        self._running: asyncio.Task[int] | None = None
        self._queued: asyncio.Task[int] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._on_changes: list[Observer] = []
        self._on_missed: list[Callable[[], None]] = []
        self._on_session: list[SessionObserver] = []
        self._is_closed = False

    def observe(self, changes: Observer, missed: Callable[[], None]) -> None:
        """Call ``changes`` after changes, and ``missed`` after a lost connection."""
        self._on_changes.append(changes)
        self._on_missed.append(missed)

    def observe_sessions(self, observer: SessionObserver) -> None:
        """Call ``observer`` with the name, number and content of each message of a session."""
        self._on_session.append(observer)

    async def open(self) -> None:
        """Read the whole stream; return when the copy is current."""
        self._connection.observe(self._connection_changed)
        await self._consume()
        self._keeper = self._loop.create_task(self._keep(), name="txnframework-nats feed")
        await self.current()

    async def current(self) -> None:
        """
        Return when the copy contains every write that was confirmed before the call.

        Calls at the same time share one request to the leader: the next one, which begins after they did.

        :raises Unavailable: the leader did not answer, or the copy did not become current in time.
        :raises Closed: the store was closed meanwhile.
        """
        until = self._loop.time() + self._connection.options.connect_timeout_ms / 1000
        while True:
            if self._queued is None:
                self._queued = self._looking(self._running)
            looking = self._queued
            try:
                gaps = await asyncio.shield(looking)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not looking.cancelled() or (task is not None and task.cancelling()):
                    raise
                raise Closed(f"{self._connection.shown_url}: the store was closed") from None
            if gaps == self._gaps:
                return
            if self._loop.time() > until:
                raise Unavailable(f"{self._connection.shown_url}: records change faster than they are received")

    def confirm(self, sequence: int) -> None:
        """Remember the number of a confirmed write: an answer with a lower last number is outdated."""
        self._confirmed = max(self._confirmed, sequence)

    def expect_write(self, write: str) -> None:
        """Remember the number of the last message of this write from now on, if it is received."""
        self._expected_writes[write] = 0

    def seen_write(self, write: str) -> int:
        """Return the number of the last received message of an expected write, or 0."""
        return self._expected_writes.get(write, 0)

    def forget_write(self, write: str) -> None:
        """Stop remembering a write."""
        self._expected_writes.pop(write, None)

    async def close(self) -> None:
        """Stop; the servers remove the consumer."""
        self._is_closed = True
        every: tuple[asyncio.Task[Any] | None, ...] = (self._keeper, self._running, self._queued)
        tasks = [task for task in every if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._end_consumer()

    # -- the read barrier -----------------------------------------------------------------------------

    def _looking(self, before: asyncio.Task[int] | None) -> asyncio.Task[int]:
        task = self._loop.create_task(self._look(before), name="txnframework-nats look")
        task.add_done_callback(_take_error)
        return task

    async def _look(self, before: asyncio.Task[int] | None) -> int:
        """Make the copy current; return how many gaps were met before the leader was asked."""
        if before is not None:
            await asyncio.wait({before})
        self._running, self._queued = self._queued, None
        until = self._loop.time() + self._connection.options.connect_timeout_ms / 1000
        begun_ms = self._environment.now_ms()
        if begun_ms - self._proved_ms > self._deleted_life_ms // 2:
            self._build_again()
        gaps = self._gaps
        await self._reach(await self._last_sequence(until), until)
        self._proved_ms = max(self._proved_ms, begun_ms)
        self._forget_deleted(begun_ms)
        return gaps

    def _forget_deleted(self, now_ms: int) -> None:
        """Forget the deletions that the stream has dropped by now; a wrong guess is corrected after a refused write."""
        while self._ages and self._ages[0][0] + self._deleted_life_ms < now_ms:
            self.copy.forget_deleted_until(self._ages.popleft()[1])
        if not self._ages or self._ages[-1][0] + self._deleted_life_ms // _PROOFS < now_ms:
            self._ages.append((now_ms, self.copy.applied))

    def _build_again(self) -> None:
        """Forget the copy, and consume the stream from its beginning."""
        self._consumer = None
        self.copy.clear()
        self._ages.clear()
        self._proved_ms = self._environment.now_ms()
        self._broken.set()
        for missed in self._on_missed:
            missed()

    async def _last_sequence(self, until: float) -> int:
        """
        Return the last number of the stream, from its leader.

        A server that was the leader, and does not know yet that there is another one, may answer with less than this
        process has seen. Such an answer is not used.
        """
        while True:
            self._connection.require_open()
            try:
                state = await self._stream.state()
            except ReplyLost as error:
                if self._loop.time() > until:
                    raise Unavailable(str(error)) from error
                continue
            if state.created != self._created:
                raise Closed(
                    f"{self._connection.shown_url}: the stream was deleted and made again; open the store again"
                )
            seen = max(self.copy.applied, self._confirmed)
            if state.last_sequence >= seen:
                return state.last_sequence
            if self._loop.time() > until:
                raise Unavailable(
                    f"{self._connection.shown_url}: the leader has {state.last_sequence} messages, and this process has"
                    f" seen {seen}"
                )
            await asyncio.sleep(_RETRY_S)

    async def _reach(self, sequence: int, until: float) -> None:
        """Wait until the copy has reached a number; find out what is missing if it does not."""
        patience_s = self._connection.options.connect_timeout_ms / 1000
        while self.copy.applied < sequence:
            if self.failure is not None:
                raise self.failure
            before = self.copy.applied
            self._advanced.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_STALL_S):
                    await self._advanced.wait()
            if self.copy.applied > before:
                until = self._loop.time() + patience_s
                continue
            if self._loop.time() > until:
                raise Unavailable(f"{self._connection.shown_url}: the records were not received in time")
            with suppress(ReplyLost, Unavailable):
                await self._look_for_missing(sequence)

    async def _look_for_missing(self, sequence: int) -> None:
        """
        Ask the leader what follows the copy: nothing, if the last messages were removed; otherwise consume again.

        Messages that were received and not applied belong to a batch whose last message was removed.
        """
        received = self._received
        following = await self._stream.next(received + 1)
        if received != self._received:
            return
        if following is not None and following <= sequence:
            self._broken.set()
        elif not self._batch:
            if following is not None:
                self._gaps += 1
            self._advance(sequence)
        elif following is None and self._loop.time() - self._batch_at_s > _COMMIT_S_MAX:
            # The leader is not storing the rest of this batch any more: its last message was a deletion, and is gone.
            self._flush()
            self._advance(sequence)

    @property
    def _received(self) -> int:
        """The number of the last received message, applied or not."""
        return self._batch[-1].sequence if self._batch else self.copy.applied

    # -- the consumer ---------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Replace the consumer whenever it is broken or silent."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT_S):
                    await self._broken.wait()
            self._prove()
            consumer = self._consumer
            is_silent = consumer is None or self._loop.time() - consumer.heard_s > _SILENCE_S
            if not (self._broken.is_set() or is_silent):
                continue
            self._broken.clear()
            try:
                await self._end_consumer()
                await self._consume()
            except (Unavailable, ReplyLost):
                self._broken.set()
                await asyncio.sleep(_RETRY_S)
            except Closed:
                return

    def _prove(self) -> None:
        """Find out that the copy is current if that was not known for some time: an idle process reads nothing."""
        is_looking = self._queued is not None or (self._running is not None and not self._running.done())
        if not is_looking and self._environment.now_ms() - self._proved_ms > self._deleted_life_ms // _PROOFS:
            self._queued = self._looking(self._running)

    async def _consume(self) -> None:
        """Make a consumer that begins after the last applied message."""
        self._batch_id, self._batch = "", []
        self._consumers += 1
        consumer = _Consumer(f"copy-{self._connection.client_name}-{self._consumers}")

        async def receive(message: Msg) -> None:
            if consumer is self._consumer:
                await self._receive(consumer, message)

        consumer.heard_s = self._loop.time()
        self._consumer = consumer
        consumer.subscription = await self._connection.subscribe(receive)
        config = {
            "name": consumer.name,
            "deliver_subject": consumer.subscription.subject,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self.copy.applied + 1,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "flow_control": True,
            "idle_heartbeat": _HEARTBEAT_S * _NS,
            "inactive_threshold": _UNUSED_S * _NS,
        }
        try:
            await self._connection.api(
                f"CONSUMER.CREATE.{self.layout.stream}.{consumer.name}",
                {"stream_name": self.layout.stream, "config": config, "action": "create"},
            )
        except RequestRefused as error:
            raise Unavailable(f"{self._connection.shown_url}: no consumer: {error}") from error

    async def _end_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None and consumer.subscription is not None:
            # Without a subscriber the servers remove the consumer after a while.
            await self._connection.unsubscribe(consumer.subscription)

    def _connection_changed(self, is_connected: bool) -> None:
        if is_connected:
            # The consumer may have sent to a lost connection, and it may be gone with its server.
            self._broken.set()
            for missed in self._on_missed:
                missed()

    async def _receive(self, consumer: _Consumer, message: Msg) -> None:
        consumer.heard_s = self._loop.time()
        headers = message.headers or {}
        if headers.get("Status") == _STATUS:
            await self._receive_status(consumer, message, headers)
            return
        try:
            sequence, number = _numbers(message.reply)
        except (IndexError, ValueError):
            return  # not from the consumer
        consumer.delivered += 1
        if number != consumer.delivered:
            self._broken.set()
            return
        try:
            self._add(
                FeedMessage(message.subject, sequence, message.data, headers.get(WRITE_HEADER, "")),
                headers.get("Nats-Batch-Id", ""),
                "Nats-Batch-Commit" in headers,
            )
        except TxnFrameworkError as error:
            # A message of a later release, or a damaged one: nothing can be read any more.
            self.failure = error
            self._advanced.set()

    async def _receive_status(self, consumer: _Consumer, message: Msg, headers: dict[str, str]) -> None:
        """Answer flow control, and compare a heartbeat with what was received."""
        answer_to = message.reply or headers.get("Nats-Consumer-Stalled", "")
        if answer_to:
            await self._connection.send(answer_to)
        last = headers.get("Nats-Last-Consumer")
        if last is not None and int(last) != consumer.delivered:
            self._broken.set()

    # -- applying -------------------------------------------------------------------------------------

    def _add(self, message: FeedMessage, batch_id: str, is_end: bool) -> None:
        is_after_gap = message.sequence > self._received + 1
        if batch_id != self._batch_id:
            self._flush()
            self._batch_id = batch_id
        if is_after_gap:
            self._gaps += 1
        self._batch.append(message)
        self._batch_at_s = self._loop.time()
        if is_end or not batch_id:
            self._flush()
            self._advance(message.sequence)

    def _flush(self) -> None:
        """Apply the messages that were received since the end of the last batch."""
        messages, self._batch, self._batch_id = self._batch, [], ""
        if not messages:
            return
        changes: list[RecordChange] = []
        for message in messages:
            if message.write in self._expected_writes:
                self._expected_writes[message.write] = message.sequence
            if self.layout.is_record(message.subject):
                change = self.copy.apply(decode(message.subject, message.payload), message.sequence)
                if change is not None:
                    changes.append(change)
        for message in messages:
            session = self.layout.session_of(message.subject)
            if session is not None:
                for observer in self._on_session:
                    observer(session, message.sequence, message.payload)
        self.copy.applied = max(self.copy.applied, messages[-1].sequence)
        if changes:
            for on_changes in self._on_changes:
                on_changes(changes)

    def _advance(self, sequence: int) -> None:
        self.copy.applied = max(self.copy.applied, sequence)
        self._advanced.set()


def _take_error(task: asyncio.Task[int]) -> None:
    """Mark the error of a task as seen: its callers may be cancelled, and then it has none."""
    if not task.cancelled():
        task.exception()


def _numbers(reply: str) -> tuple[int, int]:
    """Return the numbers of a message in the stream and in the consumer, from the subject of its acknowledgment."""
    tokens = reply.split(".")
    # The longer form has the domain and the account's hash after the second token.
    first = 5 if len(tokens) == _ACK_TOKENS else 7
    return int(tokens[first]), int(tokens[first + 1])
