"""The topics of the source, their segments, and pages of what is stored in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from txnframework.broker import OpenSegment
from txnframework.client import Client
from txnframework.errors import EntryTrimmed, InvalidInput, LedgerNotFound, Unavailable
from txnframework.interfaces import IInPlaceBuffer
from txnframework.model.layout import Layout
from txnframework.model.names import TopicName
from txnframework.model.positions import Limit, Position
from txnframework.model.reads import EntryPage, Isolation, ReadableEntry, ReadRequest
from txnframework_geo._progress import Progress


class SourceTopics:
    """The topics of the source, by the names that the user wrote; some of them may migrate meanwhile."""

    def __init__(self, client: Client, topics: tuple[TopicName, ...]) -> None:
        self._client = client
        self._topics = topics
        bounds = client.host.config.subscriptions
        self._limit = Limit(bounds.read_entries_max, bounds.read_bytes_max)

    async def names(self) -> list[TopicName]:
        """Return the present names of the topics, some of which may have migrated."""
        names = [await self._client.topics.current_name(topic) for topic in self._topics]
        return [name for name in names if isinstance(name, TopicName)]

    async def layouts(self) -> list[Layout]:
        """Return the layouts of the topics, in their order, after all planned changes."""
        return [await self._client.topics.finish_changes(topic) for topic in await self.names()]

    async def open(self, layout: Layout, name: str) -> OpenSegment:
        """
        Return a segment of a layout.

        :raises InvalidInput: its messages are read in the order of commits.
        :raises Unavailable: the topic has just changed; read its layout again.
        """
        try:
            opened = await self._client.host.segment(name, layout.life)
        except LedgerNotFound as error:
            raise Unavailable(f"{name} has just been trimmed or deleted") from error
        if not IInPlaceBuffer.providedBy(opened.buffer):
            raise InvalidInput(f"{layout.topic} is read in the order of commits, and cannot be replicated")
        if not opened.is_of(layout.life):
            raise Unavailable(f"{layout.topic} has just been migrated or deleted")
        return opened

    def lives(self, layouts: Iterable[Layout]) -> dict[str, int]:
        """Return the life of each topic, by its name."""
        return {str(topic): layout.life for topic, layout in zip(self._topics, layouts, strict=True)}

    def require_lives(self, layouts: Iterable[Layout], progress: Progress) -> None:
        """Raise InvalidInput if a topic is not the one whose progress was stored."""
        for topic, layout in zip(self._topics, layouts, strict=True):
            if progress.lives.get(str(topic)) not in layout.lives:
                raise InvalidInput(f"{topic} was deleted and created again: choose another --name to replicate it anew")

    async def pages(
        self, opened: OpenSegment, after: Position, upto: Position, isolation: Isolation = Isolation.READ_COMMITTED
    ) -> AsyncIterator[tuple[ReadableEntry, ...]]:
        """Yield the entries after ``after``, up to and including ``upto``."""
        while after < upto:
            page = await self.read(opened, after, isolation)
            yield tuple(entry for entry in page.entries if entry.position <= upto)
            reached = max([page.upto, *(entry.position for entry in page.entries[-1:])])
            if reached <= after:
                raise Unavailable(f"{opened.name}: what is stored after {after} cannot be read now")
            after = reached

    async def read(
        self, opened: OpenSegment, after: Position, isolation: Isolation = Isolation.READ_COMMITTED
    ) -> EntryPage:
        """
        Return a page of entries.

        :raises InvalidInput: the next entries were trimmed.
        """
        try:
            page: EntryPage = await opened.buffer.read(ReadRequest(after, self._limit, isolation))
            return page
        except EntryTrimmed as error:
            raise InvalidInput(
                f"messages of {opened.name} were trimmed before they were replicated, by retention that does not wait"
                " for subscriptions: begin anew with another --name and empty topics of the target"
            ) from error

    async def late_pages(
        self, opened: OpenSegment, positions: tuple[Position, ...]
    ) -> AsyncIterator[tuple[ReadableEntry, ...]]:
        """Yield the entries at these positions, which are in order."""
        while positions:
            first = positions[0]
            page = await self.read(opened, Position(first.ledger_id, first.entry_id - 1))
            wanted = frozenset(positions)
            found = tuple(entry for entry in page.entries if entry.position in wanted)
            if not found or found[0].position != first:
                raise Unavailable(f"{opened.name}: what is stored at {first} cannot be read now")
            yield found
            positions = tuple(one for one in positions if one > found[-1].position)


def segments_of(layout: Layout) -> dict[str, tuple[str, ...]]:
    """Return the full names of the segments, parents before children, each with those of its parents."""
    return {
        str(layout.name_of(one.id)): tuple(
            str(layout.name_of(parent)) for parent in one.parents if parent in layout.segments
        )
        for one in layout.in_order()
    }
