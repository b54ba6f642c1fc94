"""What the driver knows of each segment without asking: fed by announcements, so that an idle query reads nothing.

Spark asks for the latest offset every 10 ms while a query is idle. A ``Follower`` waits for the segment's
announcement in the background instead, and answers from memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field

from txnframework.broker import Host
from txnframework.errors import Closed, TxnFrameworkError
from txnframework.model.layout import Layout
from txnframework.model.names import TopicName
from txnframework.model.positions import Position


@dataclass(slots=True)
class Follower:
    """One segment: how far it may be read, and whether it is sealed and that is its end."""

    announced: Position
    ended: bool = False
    error: TxnFrameworkError | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class Followers:
    """The segments and layouts that a source reads; all methods run on the loop that made it."""

    def __init__(self, host: Host, uncommitted: bool) -> None:
        self._host = host
        self._uncommitted = uncommitted
        self._segments: dict[str, Follower] = {}
        self._layouts: dict[TopicName, Layout] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._error: TxnFrameworkError | None = None

    async def layout(self, topic: TopicName) -> Layout:
        """Return the layout, at most a notification behind; finishes changes that somebody left half way."""
        self._raise_failure(self._error)
        if topic not in self._layouts:
            # The watch before the reading, so that no change falls between them.
            watch = await self._host.topics.watch(topic)
            self._layouts[topic] = await self._host.topics.layout(topic)

            async def follow() -> None:
                while True:
                    await watch.changed()
                    self._layouts[topic] = await self._host.topics.layout(topic)

            self._tasks.append(asyncio.create_task(self._guarded(follow())))
        return self._layouts[topic]

    async def refresh(self, topic: TopicName) -> Layout:
        """Finish what is planned and read the layout again."""
        self._layouts[topic] = await self._host.topics.finish_changes(topic)
        return self._layouts[topic]

    async def follow(self, segment: str) -> Follower:
        """Return the follower of a segment, beginning it if there is none."""
        known = self._segments.get(segment)
        if known is None:
            known = Follower(await self.read_end(segment))
            self._segments[segment] = known
            known.task = asyncio.create_task(self._run(segment, known))
        self._raise_failure(known.error)
        return known

    async def read_end(self, segment: str) -> Position:
        """Ask the store how far the segment may be read now."""
        opened = await self._host.segment(segment)
        if self._uncommitted:
            return (await opened.ledger.tail()).last_confirmed
        return await opened.buffer.max_read_position()

    async def close(self) -> None:
        """Stop waiting."""
        tasks = [*self._tasks, *(found.task for found in self._segments.values() if found.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, segment: str, known: Follower) -> None:
        try:
            if self._uncommitted:
                await self._follow_tail(segment, known)
            else:
                await self._follow_announcements(segment, known)
        except Closed:
            return
        except TxnFrameworkError as error:
            known.error = error

    async def _follow_announcements(self, segment: str, known: Follower) -> None:
        buffer = (await self._host.segment(segment)).buffer
        while True:
            announced = await buffer.advanced(known.announced)
            if announced <= known.announced:
                # Sealed and decided to its end: there will never be more.
                known.ended = True
                return
            known.announced = announced

    async def _follow_tail(self, segment: str, known: Follower) -> None:
        ledger = (await self._host.segment(segment)).ledger
        watch = await ledger.watch()
        while True:
            tail = await ledger.tail()
            known.announced = max(known.announced, tail.last_confirmed)
            if tail.sealed:
                known.ended = True
                return
            await watch.changed()

    async def _guarded(self, following: Coroutine[object, object, None]) -> None:
        try:
            await following
        except Closed:
            return
        except TxnFrameworkError as error:
            self._error = error

    @staticmethod
    def _raise_failure(error: TxnFrameworkError | None) -> None:
        if error is not None:
            raise error
