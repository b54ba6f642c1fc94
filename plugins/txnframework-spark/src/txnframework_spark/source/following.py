"""What the driver knows of each segment without asking: fed by announcements, so that an idle query reads nothing.

Spark asks for the latest offset every 10 ms while a query is idle. A ``Follower`` waits for the segment's
announcement in the background instead, and answers from memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from txnframework.broker import Host
from txnframework.errors import Closed, LedgerNotFound, TxnFrameworkError
from txnframework.interfaces import IWatch
from txnframework.model.layout import Layout, SegmentState
from txnframework.model.names import SegmentName, TopicName
from txnframework.model.positions import Position
from txnframework_spark.outage import outlast


@dataclass(slots=True)
class Follower:
    """One segment: how far it may be read, and whether it is sealed and that is its end.

    ``more_after``: a place in it that is known not to be its end, now that it is sealed.
    """

    announced: Position
    ended: bool = False
    more_after: Position | None = None
    error: TxnFrameworkError | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class Followers:
    """The segments and layouts that a source reads; all methods run on the loop that made it."""

    def __init__(self, host: Host, uncommitted: bool) -> None:
        self._host = host
        self._uncommitted = uncommitted
        self._segments: dict[str, Follower] = {}
        self._layouts: dict[TopicName, Layout] = {}
        self._watching: dict[TopicName, asyncio.Task[None]] = {}
        self._failed: dict[TopicName, TxnFrameworkError] = {}

    async def layout(self, topic: TopicName) -> Layout:
        """Return the layout, at most a notification behind; finishes changes that somebody left half way."""
        self._raise_failure(self._failed.get(topic))
        if topic not in self._layouts:
            # The watch before the reading, so that no change falls between them.
            watch = await self._host.topics.watch(topic)
            try:
                self._layouts[topic] = await self._host.topics.layout(topic)
            except BaseException:
                await watch.close()
                raise
            self._watching[topic] = asyncio.create_task(self._run_layout(topic, watch))
        return self._layouts[topic]

    async def refresh(self, topic: TopicName) -> Layout:
        """Finish what is planned and read the layout again."""
        self._layouts[topic] = await self._host.topics.finish_changes(topic)
        return self._layouts[topic]

    async def forget(self, topic: TopicName) -> None:
        """Stop following a topic that is gone: one of its name may be made again."""
        self._layouts.pop(topic, None)
        self._failed.pop(topic, None)
        watching = [task] if (task := self._watching.pop(topic, None)) is not None else []
        for name in [name for name in self._segments if SegmentName.parse(name).topic == topic]:
            found = self._segments.pop(name)
            watching += [] if found.task is None else [found.task]
        await _ended(watching)

    async def follow(self, segment: str) -> Follower:
        """
        Return the follower of a segment, beginning it if there is none.

        :raises Closed: the segment was closed under it, or the host.
        """
        known = self._segments.get(segment)
        if known is None:
            known = self._segments[segment] = await self._begin(segment)
        elif isinstance(known.error, Closed):
            try:
                known = self._segments[segment] = await self._begin(segment)
            except LedgerNotFound:
                # Deleted with its topic, of which the layout tells.
                return known
        self._raise_failure(known.error)
        return known

    async def _begin(self, segment: str) -> Follower:
        announced = await self.read_end(segment)
        # Asked here, not left to the task: a query that begins, or begins again, behind the end of a segment that was
        # split goes on with its children at once, whatever the task has found out by then.
        begun = Follower(announced, await self._ends_at(segment, announced))
        if not begun.ended:
            begun.task = asyncio.create_task(self._run(segment, begun))
        return begun

    async def is_finished(self, segment: str, at: Position, state: SegmentState) -> bool:
        """Return whether the segment, whose layout says ``state``, has nothing after ``at`` and never will."""
        known = await self.follow(segment)
        if at < known.announced:
            return False
        if not known.ended and state is not SegmentState.ACTIVE and known.more_after != at:
            # The layout is ahead of the task. What is replaced is sealed: it is asked once for each place.
            known.ended = await self._ends_at(segment, at)
            if state is SegmentState.REPLACED and not known.ended:
                known.more_after = at
        return known.ended

    async def read_end(self, segment: str) -> Position:
        """Ask the store how far the segment may be read now."""
        opened = await self._host.segment(segment)
        if self._uncommitted:
            return (await opened.ledger.tail()).last_confirmed
        return await opened.buffer.max_read_position()

    async def _ends_at(self, segment: str, at: Position) -> bool:
        opened = await self._host.segment(segment)
        if self._uncommitted:
            tail = await opened.ledger.tail()
            return tail.sealed and tail.last_confirmed <= at
        return await opened.buffer.finished(at)

    async def close(self) -> None:
        """Stop waiting."""
        following = (found.task for found in self._segments.values() if found.task is not None)
        await _ended([*self._watching.values(), *following])

    async def _run(self, segment: str, known: Follower) -> None:
        follow = self._follow_tail if self._uncommitted else self._follow_announcements
        error = await self._keep(lambda: follow(segment, known))
        known.error = error

    async def _follow_announcements(self, segment: str, known: Follower) -> None:
        buffer = (await outlast(self._host, lambda: self._host.segment(segment))).buffer
        while True:
            announced = await outlast(self._host, lambda: buffer.advanced(known.announced))
            if announced <= known.announced:
                # Sealed and decided to its end: there will never be more.
                known.ended = True
                return
            known.announced = announced

    async def _follow_tail(self, segment: str, known: Follower) -> None:
        ledger = (await outlast(self._host, lambda: self._host.segment(segment))).ledger
        watch = await outlast(self._host, ledger.watch)
        try:
            while True:
                tail = await outlast(self._host, ledger.tail)
                known.announced = max(known.announced, tail.last_confirmed)
                if tail.sealed:
                    known.ended = True
                    return
                await watch.changed()
        finally:
            await watch.close()

    async def _run_layout(self, topic: TopicName, watch: IWatch) -> None:
        async def follow() -> None:
            while True:
                await watch.changed()
                self._layouts[topic] = await outlast(self._host, lambda: self._host.topics.layout(topic))

        try:
            error = await self._keep(follow)
        finally:
            await watch.close()
        if isinstance(error, Closed):
            # The watch was closed under it: what is known is old, and is asked for anew.
            self._layouts.pop(topic, None)
        elif error is not None:
            self._failed[topic] = error

    async def _keep(self, follow: Callable[[], Coroutine[object, object, None]]) -> TxnFrameworkError | None:
        """Follow until the end; return the failure that ended it. Each step outlasts an outage: there may be many."""
        try:
            await follow()
        except TxnFrameworkError as error:
            return error
        return None

    @staticmethod
    def _raise_failure(error: TxnFrameworkError | None) -> None:
        if error is not None:
            raise error


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
