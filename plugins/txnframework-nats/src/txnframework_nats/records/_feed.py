"""Keeps the copy of the records current: it replaces the consumer, and proves that nothing is missing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from txnframework.environment import Environment
from txnframework.errors import Closed, Unavailable
from txnframework.runtime.tasks import start_task
from txnframework_nats.connection._connection import NatsConnection
from txnframework_nats.connection._failures import ReplyLost, take_error
from txnframework_nats.records._applier import Applier, Observer
from txnframework_nats.records._consumer import HEARTBEAT_S, StreamConsumer
from txnframework_nats.records._copy import RecordCopy
from txnframework_nats.records._layout import Layout
from txnframework_nats.records._stream import RecordStream

_STALL_S = 0.25
_COMMIT_S_MAX = 5.0
"""Longer than a server needs to store a batch."""
_RETRY_S = 0.05
_PROOFS = 8


class Feed:
    """
    Makes the copy current before a read, and replaces the consumer that feeds it.

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
        self.applier = Applier(stream.layout, self.copy)
        self._connection = connection
        self._stream = stream
        self._created = created
        self._environment = environment
        self._deleted_life_ms = deleted_life_ms
        self._proved_ms = environment.monotonic_ms()
        # The highest number of a confirmed write.
        self._confirmed = 0
        # When the copy had which number. This gives the age of deletions.
        self._ages: deque[tuple[int, int]] = deque()
        self._loop = asyncio.get_running_loop()
        self._consumer: StreamConsumer | None = None
        self._consumers = 0
        self._broken = asyncio.Event()
        self._running: asyncio.Task[int] | None = None
        self._queued: asyncio.Task[int] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._on_missed: list[Callable[[], None]] = []

    def observe(self, changes: Observer, missed: Callable[[], None]) -> None:
        """Call ``changes`` after changes, and ``missed`` after a lost connection."""
        self.applier.observe(changes)
        self._on_missed.append(missed)

    async def open(self) -> None:
        """
        Read the whole stream; return when the copy is current.

        :raises Unavailable: the servers did not make a consumer, or the copy did not become current in time.
        """
        self._connection.observe(self._connection_changed)
        until = self._loop.time() + self._connection.options.connect_timeout_ms / 1000
        while True:
            try:
                await self._consume()
                break
            except ReplyLost as error:
                # It may have been made. The next one has another name.
                await self._end_consumer()
                if self._loop.time() > until:
                    raise Unavailable(str(error)) from error
        self._keeper = start_task(self._keep(), name="txnframework-nats feed")
        await self.current()

    async def current(self) -> None:
        """
        Return when the copy contains every write that was confirmed before the call.

        Calls at the same time share one request to the leader: the next one, which begins after they did. Each limit of
        time ends a call only if an attempt that begins after it fails, too: a loop that was held up reads only then
        what arrived meanwhile.

        :raises Unavailable: the leader did not answer, or the copy did not become current in time.
        :raises Closed: the store was closed meanwhile.
        """
        until = self._loop.time() + self._connection.options.connect_timeout_ms / 1000
        while True:
            begun = self._loop.time()
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
            if gaps == self.applier.gaps:
                return
            if begun > until:
                raise Unavailable(f"{self._connection.shown_url}: records change faster than they are received")

    def confirm(self, sequence: int) -> None:
        """Remember the number of a confirmed write: an answer with a lower last number is outdated."""
        self._confirmed = max(self._confirmed, sequence)

    async def close(self) -> None:
        """Stop; the servers remove the consumer."""
        every: tuple[asyncio.Task[Any] | None, ...] = (self._keeper, self._running, self._queued)
        tasks = [task for task in every if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._end_consumer()

    # -- the read barrier -----------------------------------------------------------------------------

    def _looking(self, before: asyncio.Task[int] | None) -> asyncio.Task[int]:
        task = start_task(self._look(before), name="txnframework-nats look")
        task.add_done_callback(take_error)
        return task

    async def _look(self, before: asyncio.Task[int] | None) -> int:
        """Make the copy current; return how many gaps were met before the leader was asked."""
        if before is not None:
            await asyncio.wait({before})
        self._running, self._queued = self._queued, None
        begun_ms = self._environment.monotonic_ms()
        if begun_ms - self._proved_ms > self._deleted_life_ms // 2:
            self._build_again()
        gaps = self.applier.gaps
        await self._reach(await self._last_sequence())
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
        if self._consumer is not None:
            self._consumer.ignore()
        self.copy.clear()
        self._ages.clear()
        self._proved_ms = self._environment.monotonic_ms()
        self._broken.set()
        for missed in self._on_missed:
            missed()

    async def _last_sequence(self) -> int:
        """
        Return the last number of the stream, from its leader.

        A server that was the leader, and does not know yet that there is another one, may answer with less than this
        process has seen. Such an answer is not used.
        """
        until = self._loop.time() + self._connection.options.connect_timeout_ms / 1000
        while True:
            begun = self._loop.time()
            self._connection.require_open()
            try:
                state = await self._stream.state()
            except ReplyLost as error:
                if begun > until:
                    raise Unavailable(str(error)) from error
                continue
            if state.created != self._created:
                raise Closed(
                    f"{self._connection.shown_url}: the stream was deleted and made again; open the store again"
                )
            seen = max(self.copy.applied, self._confirmed)
            if state.last_sequence >= seen:
                return state.last_sequence
            if begun > until:
                raise Unavailable(
                    f"{self._connection.shown_url}: the leader has {state.last_sequence} messages, and this process has"
                    f" seen {seen}"
                )
            await asyncio.sleep(_RETRY_S)

    async def _reach(self, sequence: int) -> None:
        """Wait until the copy has reached a number; find out what is missing if it does not."""
        patience_s = self._connection.options.connect_timeout_ms / 1000
        until = self._loop.time() + patience_s
        while self.copy.applied < sequence:
            if self.applier.failure is not None:
                raise self.applier.failure
            before, begun = self.copy.applied, self._loop.time()
            self.applier.advanced.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_STALL_S):
                    await self.applier.advanced.wait()
            if self.copy.applied > before:
                until = self._loop.time() + patience_s
                continue
            if begun > until:
                raise Unavailable(f"{self._connection.shown_url}: the records were not received in time")
            with suppress(ReplyLost, Unavailable):
                await self._look_for_missing(sequence)

    async def _look_for_missing(self, sequence: int) -> None:
        """
        Ask the leader what follows the copy: nothing, if the last messages were removed; otherwise consume again.

        Messages that were received and not applied belong to a batch whose last message was removed.
        """
        applier = self.applier
        received = applier.received
        following = await self._stream.next(received + 1)
        if received != applier.received:
            return
        waits_s = applier.waits_s
        if following is not None and following <= sequence:
            self._broken.set()
        elif waits_s is None:
            if following is not None:
                applier.gaps += 1
            applier.advance(sequence)
        elif following is None and waits_s > _COMMIT_S_MAX:
            # The leader is not storing the rest of this batch any more: its last message was a deletion, and is gone.
            applier.flush()
            applier.advance(sequence)

    # -- the consumer ---------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Replace the consumer whenever it is broken or silent."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._broken.wait()
            self._prove()
            consumer = self._consumer
            if consumer is not None and not consumer.is_silent and not self._broken.is_set():
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
        if not is_looking and self._environment.monotonic_ms() - self._proved_ms > self._deleted_life_ms // _PROOFS:
            self._queued = self._looking(self._running)

    async def _consume(self) -> None:
        """Make a consumer that begins after the last applied message."""
        self.applier.forget_batch()
        self._consumers += 1
        name = f"copy-{self._connection.client_name}-{self._consumers}"
        self._consumer = StreamConsumer(
            self._connection, self.layout.stream, name, self.applier.receive, self._broken.set
        )
        await self._consumer.start(self.copy.applied + 1)

    async def _end_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.end()

    def _connection_changed(self, is_connected: bool) -> None:
        if is_connected:
            # The consumer may have sent to a lost connection, and it may be gone with its server.
            self._broken.set()
            for missed in self._on_missed:
                missed()
