"""Appending records to a log, one by one or in batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

from txnframework.environment import Environment
from txnframework.errors import Closed
from txnframework.interfaces import IManagedLedger
from txnframework.model import Append, Position
from txnframework.runtime.tasks import start_task
from txnframework_legacy.log.format import RECORD_OVERHEAD, RecordPosition, encode_batch, encode_plain

T = TypeVar("T")


class Batching(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for batches of log records."""

    enabled: Annotated[
        bool, Meta(description="Whether records share entries; otherwise each record is one append, without delay.")
    ] = False
    records_max: Annotated[int, Meta(ge=1, description="Records in one entry.")] = 512
    bytes_max: Annotated[
        int, Meta(ge=1, description="Bytes of records in one entry; a larger record has an entry of its own.")
    ] = 4 * 1024 * 1024
    delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="The longest wait of a record for others; it is longer while another entry is being written.",
        ),
    ] = 1
    waiting_records_max: Annotated[
        int, Meta(ge=1, description="Records that wait to be written; further callers wait.")
    ] = 10_000


class FlushReason(Enum):
    """Why gathered records were written."""

    RECORDS = "records"
    BYTES = "bytes"
    DELAY = "delay"
    LARGE = "large"
    SWITCHED_OFF = "switched_off"


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """The records of one entry; ``since_ms`` is when the first of them was added."""

    items: tuple[T, ...]
    reason: FlushReason
    since_ms: int


class RecordAccumulator(Generic[T]):
    """The records that wait for more records; at most as many as fit into one entry."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching
        self._items: list[T] = []
        self._bytes = 0
        self._since_ms = 0

    @property
    def due_ms(self) -> int | None:
        """The latest time at which the gathered records are written; None if there are none."""
        return self._since_ms + self._batching.delay_ms if self._items else None

    def add(self, item: T, size: int, now_ms: int) -> list[Batch[T]]:
        """Add a record of ``size`` bytes; return the batches to write now, in this order."""
        size += RECORD_OVERHEAD
        bounds = self._batching
        full: list[Batch[T]] = []
        if size >= bounds.bytes_max:
            # Records that were added earlier are written first.
            full += self.flush(FlushReason.LARGE)
            return [*full, Batch((item,), FlushReason.LARGE, now_ms)]
        if self._bytes + size > bounds.bytes_max:
            full += self.flush(FlushReason.BYTES)
        if not self._items:
            self._since_ms = now_ms
        self._items.append(item)
        self._bytes += size
        if self._bytes >= bounds.bytes_max:
            full += self.flush(FlushReason.BYTES)
        elif len(self._items) >= bounds.records_max:
            full += self.flush(FlushReason.RECORDS)
        return full

    def flush(self, reason: FlushReason) -> list[Batch[T]]:
        """Return the gathered records as at most one batch, and start a new one."""
        if not self._items:
            return []
        batch = Batch(tuple(self._items), reason, self._since_ms)
        self._items, self._bytes = [], 0
        return [batch]

    def drop(self) -> tuple[T, ...]:
        """Discard the gathered records and return them."""
        items, self._items, self._bytes = tuple(self._items), [], 0
        return items


@dataclass(frozen=True, slots=True)
class FlushMetrics:
    """
    Metrics of one entry that a batching writer wrote.

    ``waited_ms`` is the time from adding its oldest record to sending the entry.
    """

    records: int
    bytes: int
    waited_ms: int
    reason: FlushReason


@dataclass(eq=False, slots=True)
class _PendingRecord:
    record: bytes
    written: asyncio.Future[RecordPosition]


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
        flushed: Callable[[FlushMetrics], None] = lambda _: None,
    ) -> None:
        self._ledger = ledger
        self._environment = environment
        self._is_batching = batching.enabled
        self._flushed = flushed
        self._accumulator: RecordAccumulator[_PendingRecord] = RecordAccumulator(batching)
        self._full: deque[Batch[_PendingRecord]] = deque()
        # At most two tasks, however slow the ledger is: one waits for the delay, one appends.
        self._timer: asyncio.Task[None] | None = None
        self._appender: asyncio.Task[None] | None = None
        self._append_lock = asyncio.Lock()
        self._capacity = asyncio.Semaphore(batching.waiting_records_max)
        self._is_closed = False

    @property
    def batching(self) -> bool:
        """Whether records share entries now."""
        return self._is_batching

    async def add(self, record: bytes) -> RecordPosition:
        """
        Append a record and return its position. If the call is cancelled, the record may still be stored.

        :raises OutcomeUnknown: the record may be stored.
        :raises Closed: the writer was closed before its entry was started; the record is not stored.
        """
        async with self._capacity:
            self._require_open()
            if not self._is_batching and not self._full and self._appender is None:
                return await self._append_alone(record)
            waiting = _PendingRecord(record, asyncio.get_running_loop().create_future())
            now_ms = self._environment.monotonic_ms()
            if self._is_batching:
                self._begin(self._accumulator.add(waiting, len(record), now_ms))
                self._set_timer()
            else:
                self._begin([Batch((waiting,), FlushReason.SWITCHED_OFF, now_ms)])
            return await waiting.written

    def switch(self, *, batching: bool) -> None:
        """Start or stop batching. No record is lost, and the order is kept."""
        self._is_batching = batching
        if not batching:
            self._begin(self._accumulator.flush(FlushReason.SWITCHED_OFF))

    async def close(self) -> None:
        """
        Refuse further records. Idempotent.

        Gathered records fail with ``Closed``. Entries whose write was started are finished, and their callers get the
        real outcome.
        """
        self._is_closed = True
        for waiting in self._accumulator.drop():
            _fail(waiting, Closed("the log was closed before this record was written"))
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
        if self._appender is not None:
            await asyncio.wait({self._appender})
        async with self._append_lock:
            return

    async def _append_alone(self, record: bytes) -> RecordPosition:
        """Append in the caller's own task, so that cancelling the call leaves no background work."""
        async with self._append_lock:
            return RecordPosition(await self._append(encode_plain(record)))

    async def _append(self, data: bytes) -> Position:
        (appended,) = await self._ledger.append((Append(data),), None)
        return appended.position

    def _begin(self, batches: list[Batch[_PendingRecord]]) -> None:
        self._full.extend(batches)
        if self._full and self._appender is None:
            self._appender = start_task(self._append_all())

    async def _append_all(self) -> None:
        """Append the full and the due batches one after the other, until none is left."""
        try:
            while self._full or self._is_due():
                async with self._append_lock:
                    if not self._full:
                        # Flushed as late as possible: while the ledger was busy, more records were gathered at no extra
                        # delay.
                        self._full.extend(self._accumulator.flush(FlushReason.DELAY))
                    if self._full:
                        await self._append_batch(self._full.popleft())
        finally:
            self._appender = None
            self._set_timer()

    async def _append_batch(self, batch: Batch[_PendingRecord]) -> None:
        records = [waiting.record for waiting in batch.items]
        data = encode_plain(records[0]) if len(records) == 1 else encode_batch(records)
        waited_ms = self._environment.monotonic_ms() - batch.since_ms
        try:
            entry = await self._append(data)
        except Exception as error:
            for waiting in batch.items:
                _fail(waiting, error)
            return
        for index, waiting in enumerate(batch.items):
            if not waiting.written.done():
                waiting.written.set_result(RecordPosition(entry, index, len(records)))
        if self._is_batching:
            self._flushed(FlushMetrics(len(records), len(data), waited_ms, batch.reason))

    def _is_due(self) -> bool:
        due_ms = self._accumulator.due_ms
        return due_ms is not None and due_ms <= self._environment.monotonic_ms()

    def _set_timer(self) -> None:
        waits = self._accumulator.due_ms is not None and not (self._appender is not None and self._is_due())
        if self._timer is None and waits:
            self._timer = start_task(self._flush_in_time())

    async def _flush_in_time(self) -> None:
        """
        Flush the gathered records when they are due, until none are left.

        A running appender takes later records itself.
        """
        try:
            while (due_ms := self._accumulator.due_ms) is not None:
                await self._environment.sleep(due_ms - self._environment.monotonic_ms())
                # During the sleep the gathered records may have been written and newer ones gathered.
                if due_ms == self._accumulator.due_ms or self._is_due():
                    if self._appender is not None:
                        return
                    self._begin(self._accumulator.flush(FlushReason.DELAY))
        finally:
            self._timer = None

    def _require_open(self) -> None:
        if self._is_closed:
            raise Closed("the log was closed")


def _fail(waiting: _PendingRecord, error: Exception) -> None:
    """Fail one caller with the original error, because the error's class shows the outcome."""
    if not waiting.written.done():
        waiting.written.set_exception(error)
