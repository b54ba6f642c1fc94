"""A task's appends: several segments at a time, each segment in order, bounded by bytes."""

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
    """Rows of one topic that go to one segment, and the entries made of them."""

    topic: TopicName
    segment: str
    rows: pa.RecordBatch
    entries: tuple[Append, ...]

    @property
    def size(self) -> int:
        """Bytes of its entries."""
        return sum(len(entry.data) for entry in self.entries)


@dataclass(slots=True)
class _Queue:
    waiting: deque[Part] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class Appends:
    """
    Parts on their way into segments.

    One call is underway for each segment, and takes everything that waits for it by then: the slower the store, the
    more goes in one. So rows of one segment stand in the order in which they were put, also where a reply was lost and
    a call is made again.
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
        """Whether a segment turned out to be sealed: what was refused goes elsewhere before anything that follows."""
        return bool(self._refused)

    async def put(self, part: Part) -> None:
        """Return when the part is on its way, which it is as soon as there is room; raises what failed before."""
        # After an error nothing moves any more, so nothing would make room.
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
        """Return when everything is durable, with the parts whose segment was sealed; raises what failed."""
        while tasks := [queue.task for queue in self._queues.values() if queue.task is not None]:
            await asyncio.gather(*tasks)
        if self._error is not None:
            raise self._error
        refused, self._refused = self._refused, []
        return refused

    async def cancel(self) -> None:
        """Give up what is underway; what of it is durable by then is in a branch that nobody lists."""
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
        """Append the entries; LedgerSealed: none of them stands there."""
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
                # The same sequences again: what is stored already is confirmed and not stored twice.
                unknown = error
            except LedgerSealed:
                if unknown is None:
                    raise
                # They may stand in the sealed segment; written to a child as well they would be there twice.
                break
        assert unknown is not None
        raise unknown
