"""A task's appends: several segments concurrently, each segment in order, bounded by bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa

from txnframework.broker import Host
from txnframework.errors import LedgerSealed, OutcomeUnknown
from txnframework.model.ledger import Append
from txnframework.model.names import TopicName
from txnframework.runtime.backoff import Backoff


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one topic for one segment, and the entries that encode them."""

    topic: TopicName
    segment: str
    rows: pa.RecordBatch
    entries: tuple[Append, ...]

    @property
    def size(self) -> int:
        """The size of its entries in bytes."""
        return sum(len(entry.data) for entry in self.entries)


@dataclass(slots=True)
class _Queue:
    waiting: deque[Part] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class Appends:
    """
    Appends in progress.

    Each segment has at most one call in progress, which takes all parts that wait for the segment when it begins. A
    slow store thus gets larger calls. Rows of one segment are stored in the order of ``put``, even if a reply was lost
    and a call is retried.
    """

    def __init__(self, host: Host, bytes_max: int) -> None:
        self._host = host
        self._bytes_max = bytes_max
        self._queues: dict[str, _Queue] = {}
        self._bytes = 0
        self._changed = asyncio.Event()
        self._refused: list[Part] = []
        self._error: BaseException | None = None

    @property
    def refused(self) -> bool:
        """Whether a segment was found sealed; its refused parts must be written elsewhere before any later rows."""
        return bool(self._refused)

    async def put(self, part: Part) -> None:
        """Queue the part, waiting until the byte limit allows it; raise the error of an earlier append."""
        # After an error no append is confirmed, so waiting for space would not end.
        while self._error is None and self._bytes and self._bytes + part.size > self._bytes_max:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        self._bytes += part.size
        queue = self._queues.setdefault(part.segment, _Queue())
        queue.waiting.append(part)
        if queue.task is None:
            queue.task = asyncio.create_task(self._run(part.segment, queue))

    async def drain(self) -> list[Part]:
        """Wait until everything is durable; return the parts that sealed segments refused, or raise the first error."""
        while tasks := [queue.task for queue in self._queues.values() if queue.task is not None]:
            await asyncio.gather(*tasks)
        if self._error is not None:
            raise self._error
        refused, self._refused = self._refused, []
        return refused

    async def cancel(self) -> None:
        """Cancel the calls in progress; entries that are durable belong to a branch that no commit lists."""
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, segment: str, queue: _Queue) -> None:
        try:
            while queue.waiting and self._error is None:
                parts = list(queue.waiting)
                queue.waiting.clear()
                try:
                    await self._append(segment, tuple(entry for part in parts for entry in part.entries))
                except LedgerSealed:
                    self._refused += parts
                except Exception as error:
                    self._error = error
                self._bytes -= sum(part.size for part in parts)
                self._changed.set()
        finally:
            queue.task = None

    async def _append(self, name: str, entries: tuple[Append, ...]) -> None:
        """Append the entries; LedgerSealed: none of them is stored."""
        buffer = (await self._host.segment(name)).buffer
        unknown: OutcomeUnknown | None = None
        bounds = self._host.config.client
        backoff = Backoff(self._host.environment, bounds.retry_delay_ms, bounds.retry_delay_ms_max)
        for failures in range(bounds.retries_max + 1):
            if failures:
                await backoff.pause(failures)
            try:
                await buffer.append(entries)
                return
            except OutcomeUnknown as error:
                # The retry repeats the sequence ids: entries that are stored are confirmed and not stored again.
                unknown = error
            except LedgerSealed:
                if unknown is None:
                    raise
                # They may be stored in the sealed segment; writing them to a child as well would duplicate them.
                break
        assert unknown is not None
        raise unknown
