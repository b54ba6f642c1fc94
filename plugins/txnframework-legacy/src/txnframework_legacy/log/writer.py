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
    Metrics of one entry that a batching writer wrote.

    ``waited_ms`` is the time from adding its oldest record to sending the entry.
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
    Appends records to the open ledger of a log, in the order of the calls of ``add``. Several writers may append to one
    log.

    While ``batching``, a record waits until the number of records, their bytes or the delay reaches its bound. The
    gathered records are then written as one entry. Records whose delay has passed while another entry is being written
    gather further records until that write ends. Each call gets one result, in order. If an entry could not be written,
    each of its callers gets the ledger's own error. The caller closes the ledger.
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
        # At most two tasks, however slow the ledger is: one waits for the delay, one appends.
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
        Append a record and return its position. If the call is cancelled, the record may still be stored.

        :raises OutcomeUnknown: the record may be stored.
        :raises Closed: the writer was closed before its entry was started; the record is not stored.
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
        """Start or stop batching. No record is lost, and the order is kept."""
        self._is_batching = batching
        if not batching:
            self._begin(self._gathering.flush(FlushReason.SWITCHED_OFF))

    async def close(self) -> None:
        """
        Refuse further records. Idempotent.

        Gathered records fail with ``Closed``. Entries whose write was started are finished, and their callers get the
        real outcome.
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
        """Append in the caller's own task, so that cancelling the call leaves no background work."""
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
        """Append the full and the due batches one after the other, until none is left."""
        try:
            while self._full or self._is_due():
                async with self._turn:
                    if not self._full:
                        # Flushed as late as possible: while the ledger was busy, more records were gathered at no extra
                        # delay.
                        self._full.extend(self._gathering.flush(FlushReason.DELAY))
                    if self._full:
                        await self._append_batch(self._full.popleft())
        finally:
            self._appender = None
            self._set_timer()  # after the clock was set back, due records may no longer be due

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
        """Flush the gathered records when they are due, until none are left; a running appender takes them itself."""
        try:
            while (due_ms := self._gathering.due_ms) is not None:
                await self._environment.sleep_until(due_ms)
                # During the sleep the gathered records may have been written and newer ones gathered.
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
    """Fail one caller; each gets the original error, because its class says what is known."""
    if not waiting.written.done():
        waiting.written.set_exception(error)
