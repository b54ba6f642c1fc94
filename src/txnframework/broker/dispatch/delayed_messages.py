"""The messages of a dispatch that wait for their time; pure."""

from __future__ import annotations

import heapq

from txnframework.model.positions import Position


class DelayedMessages:
    """The delayed messages, ordered by the time at which they are due."""

    def __init__(self) -> None:
        self.count = 0
        """The number of delayed messages."""
        self.size_bytes = 0
        """The total size of the delayed messages."""
        self._due_ms: dict[Position, int] = {}
        # Messages that are not delayed any more are skipped.
        self._queue: list[tuple[int, Position]] = []

    def add(self, position: Position, due_ms: int, size_bytes: int) -> None:
        """Delay a message."""
        self._due_ms[position] = due_ms
        self.count += 1
        self.size_bytes += size_bytes
        heapq.heappush(self._queue, (due_ms, position))

    def remove(self, position: Position, size_bytes: int) -> None:
        """Remove a delayed message."""
        del self._due_ms[position]
        self.count -= 1
        self.size_bytes -= size_bytes
        if not self.count:
            self._queue.clear()

    def next_due(self) -> tuple[int, Position] | None:
        """Return the first message that is due, with its time in ms; None if none is delayed."""
        while self._queue and self._due_ms.get(self._queue[0][1]) != self._queue[0][0]:
            heapq.heappop(self._queue)
        return self._queue[0] if self._queue else None

    def clear(self) -> None:
        """Remove all messages."""
        self.count = self.size_bytes = 0
        self._due_ms.clear()
        self._queue.clear()
