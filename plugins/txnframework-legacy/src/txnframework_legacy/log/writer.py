"""Appending records to a log, one by one or in batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from txnframework.environment import Environment
from txnframework.errors import Closed
from txnframework.interfaces import IManagedLedger
from txnframework.model import Append, Position
from txnframework_legacy.log.format import Place, encode_batch, encode_plain
from txnframework_legacy.log.gathering import Batch, Batching, FlushReason, Gathering


@dataclass(frozen=True, slots=True)
class Flushed:
    """
    What a writer that batches tells of each entry that was written: for metrics.

    ``waited_ms``: how long its oldest record waited until the entry was sent.
    """

    records: int
    bytes: int
    waited_ms: int
    reason: FlushReason


@dataclass(eq=False, slots=True)
class _Waiting:
    record: bytes
    written: asyncio.Future[Place]


class BatchedLogWriter:
    """
    Appends records to the open ledger of a log, in the order in which ``add`` was called; several writers may append to
    one log.

    While ``batching`` each record waits until so many others, so many bytes or so much time have come together, and
    they are written as one entry; what is due while another entry is being written goes on gathering until then. Each
    call is answered once, in order; when an entry could not be written, each of its callers is told so, with the
    ledger's own error. The ledger is the caller's to close.
    """

    def __init__(
        self,
        ledger: IManagedLedger,
        environment: Environment,
        batching: Batching,
        flushed: Callable[[Flushed], None] = lambda _: None,
    ) -> None:
        self._ledger = ledger
        self._environment = environment
        self._is_batching = batching.enabled
        self._flushed = flushed
        self._gathering: Gathering[_Waiting] = Gathering(batching)
        self._full: deque[Batch[_Waiting]] = deque()
        # Two tasks at most, however slow the ledger is: one that waits for the delay, one that appends.
        self._timer: asyncio.Task[None] | None = None
        self._appender: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._room = asyncio.Semaphore(batching.waiting_records_max)
        self._is_closed = False

    @property
    def batching(self) -> bool:
        """Whether records share entries now."""
        return self._is_batching

    async def add(self, record: bytes) -> Place:
        """
        Return where the record stands, once it does. Cancelled, it may come to stand there all the same.

        :raises OutcomeUnknown: it may stand there.
        :raises Closed: the writer was closed before its entry was begun; it does not.
        """
        async with self._room:
            self._require_open()
            if not self._is_batching and not self._full and self._appender is None:
                return await self._append_alone(record)
            waiting = _Waiting(record, asyncio.get_running_loop().create_future())
            now_ms = self._environment.now_ms()
            if self._is_batching:
                self._begin(self._gathering.add(waiting, len(record), now_ms))
                self._set_timer()
            else:
                self._begin([Batch((waiting,), FlushReason.SWITCHED_OFF, now_ms)])
            return await waiting.written

    def switch(self, *, batching: bool) -> None:
        """Batch from now on, or no longer; nothing is lost, and the order stays."""
        self._is_batching = batching
        if not batching:
            self._begin(self._gathering.flush(FlushReason.SWITCHED_OFF))

    async def close(self) -> None:
        """
        Take nothing more; may be repeated.

        What was gathered fails with Closed; entries that were begun are finished, and their callers told the truth.
        """
        self._is_closed = True
        for waiting in self._gathering.drop():
            _answer(waiting, Closed("the log was closed before this record was written"))
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
        if self._appender is not None:
            await asyncio.wait({self._appender})
        async with self._turn:
            return

    async def _append_alone(self, record: bytes) -> Place:
        """Append in the caller's own task, so that a call that is given up leaves nothing behind that goes on."""
        async with self._turn:
            return Place(await self._append(encode_plain(record)))

    async def _append(self, data: bytes) -> Position:
        (appended,) = await self._ledger.append((Append(data),), None)
        return appended.position

    def _begin(self, batches: list[Batch[_Waiting]]) -> None:
        self._full.extend(batches)
        if self._full and self._appender is None:
            self._appender = asyncio.ensure_future(self._append_all())

    async def _append_all(self) -> None:
        """Append what is full or due, one after the other, until nothing is."""
        try:
            while self._full or self._is_due():
                async with self._turn:
                    if not self._full:
                        # Taken no sooner: while the ledger was busy it gathered more, and waited no longer for that.
                        self._full.extend(self._gathering.flush(FlushReason.DELAY))
                    if self._full:
                        await self._append_batch(self._full.popleft())
        finally:
            self._appender = None
            self._set_timer()  # where the clock was set back, what was due is so no more

    async def _append_batch(self, batch: Batch[_Waiting]) -> None:
        records = [waiting.record for waiting in batch.items]
        data = encode_plain(records[0]) if len(records) == 1 else encode_batch(records)
        waited_ms = self._environment.now_ms() - batch.since_ms
        try:
            entry = await self._append(data)
        except Exception as error:
            for waiting in batch.items:
                _answer(waiting, error)
            return
        for index, waiting in enumerate(batch.items):
            if not waiting.written.done():
                waiting.written.set_result(Place(entry, index, len(records)))
        if self._is_batching:
            self._flushed(Flushed(len(records), len(data), waited_ms, batch.reason))

    def _is_due(self) -> bool:
        due_ms = self._gathering.due_ms
        return due_ms is not None and due_ms <= self._environment.now_ms()

    def _set_timer(self) -> None:
        waits = self._gathering.due_ms is not None and not (self._appender is not None and self._is_due())
        if self._timer is None and waits:
            self._timer = asyncio.ensure_future(self._flush_in_time())

    async def _flush_in_time(self) -> None:
        """Begin what is gathered when it is due, until nothing is gathered; what is appending takes it by itself."""
        try:
            while (due_ms := self._gathering.due_ms) is not None:
                await self._environment.sleep_until(due_ms)
                # What was gathered when the sleep began may be written by now, and something younger be gathered.
                if due_ms == self._gathering.due_ms or self._is_due():
                    if self._appender is not None:
                        return
                    self._begin(self._gathering.flush(FlushReason.DELAY))
        finally:
            self._timer = None

    def _require_open(self) -> None:
        if self._is_closed:
            raise Closed("the log was closed")


def _answer(waiting: _Waiting, error: Exception) -> None:
    """Tell one caller; each gets the error itself, so that its class says what is known."""
    if not waiting.written.done():
        waiting.written.set_exception(error)
