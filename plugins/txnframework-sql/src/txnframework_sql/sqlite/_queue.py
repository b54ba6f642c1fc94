"""The jobs that wait for the thread of a database, in the order in which it takes them."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf

from txnframework_sql.sqlite._jobs import IJob


class JobQueue:
    """
    Jobs that any thread puts, and that one thread takes in groups.

    Each urgent job is taken before all others, and is no part of their groups.
    """

    def __init__(self, group_max: int) -> None:
        self.received = 0
        """How many jobs were put."""
        self.ended = 0
        """How many of these are over; it stays behind while the thread has something left of a group."""
        self._taken = 0
        self._group_max = group_max
        # None is the end.
        self._put: queue.SimpleQueue[Sequence[IJob | None]] = queue.SimpleQueue()
        # Each urgent job is here before an empty item wakes the thread.
        self._urgent: deque[IJob] = deque()
        # Jobs that were put before, or are left of a group; only the thread uses them.
        self._left: deque[IJob | None] = deque()

    # -- called by any thread -----------------------------------------------------------------------

    def put(self, jobs: Sequence[IJob], is_urgent: bool = False) -> None:
        """Add jobs; callers exclude each other."""
        self.received += len(jobs)
        if is_urgent:
            self._urgent.extend(jobs)
        self._put.put(() if is_urgent else jobs)

    def end(self) -> None:
        """Let the thread end after the jobs that were put before."""
        self._put.put((None,))

    def wake(self) -> None:
        """Let the thread look for what is due."""
        self._put.put(())

    # -- called by the thread -----------------------------------------------------------------------

    @property
    def has_urgent(self) -> bool:
        """Whether an urgent job waits."""
        return bool(self._urgent)

    def take(self, left_s: Callable[[], float]) -> list[IJob] | None:
        """
        Wait for jobs; return the jobs of the next group, or None after those that came before the end.

        :param left_s: how long to wait. Then nothing is returned.
        """
        if not self._left:
            self.ended = self._taken
        jobs: list[IJob] = []
        while not self._left and not self._urgent:
            wait_s = left_s()
            try:
                self._add(self._put.get(timeout=None if wait_s == inf else max(0.0, wait_s)))
            except queue.Empty:
                return jobs
        if self._urgent:
            while self._urgent:
                jobs.append(self._urgent.popleft())
            self._taken += len(jobs)
            return jobs
        while len(jobs) < self._group_max:
            if self._left:
                if (job := self._left[0]) is None:
                    return jobs or None
                jobs.append(job)
                self._left.popleft()
                continue
            try:
                self._add(self._put.get_nowait())
            except queue.Empty:
                break
        return jobs

    def take_reads(self, wait_s: float) -> list[IJob]:
        """Return the reading jobs that wait; if there are none, wait first until jobs are put, but not longer."""
        if not (reads := self._take_reads()):
            with suppress(queue.Empty):
                self._add(self._put.get(timeout=wait_s))
            reads = self._take_reads()
        return reads

    def give_back(self, jobs: Sequence[IJob]) -> None:
        """Put what is left of a group before all jobs that are not urgent."""
        self._left.extendleft(reversed(jobs))

    def take_all(self) -> list[IJob]:
        """Return all jobs without waiting; the thread takes no others."""
        self.ended = self.received
        jobs = [*self._urgent, *self._left]
        while not self._put.empty():
            jobs += self._put.get()
        return [job for job in jobs if job is not None]

    def _take_reads(self) -> list[IJob]:
        while not self._put.empty():
            self._add(self._put.get())
        reads = [job for job in self._left if job is not None and not job.is_write]
        if reads:
            self._left = deque([job for job in self._left if job is None or job.is_write])
        return reads

    def _add(self, put: Sequence[IJob | None]) -> None:
        self._taken += len(put)
        self._left.extend(put)
