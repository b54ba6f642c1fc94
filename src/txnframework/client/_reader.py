"""Readers: the messages of a topic, without a subscription."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NamedTuple, Self

from txnframework.broker import Host, OpenSegment, UndecidedMessages, first_completed, undecided_after
from txnframework.client._base import close_after, open_segment, require_open
from txnframework.client._content_types import T_co
from txnframework.client._messages import (
    EntryOrigin,
    Message,
    MessageID,
    check_message_id,
    message_of,
    with_content,
)
from txnframework.client._seek_positions import require_there
from txnframework.errors import Closed, EntryTrimmed, InvalidInput, LedgerNotFound, TopicNotFound, Unavailable, excerpt
from txnframework.interfaces import IWatch
from txnframework.model.compacted import CompactedEntry
from txnframework.model.entries import EntryView
from txnframework.model.ids import TxnID
from txnframework.model.layout import Layout, Segment
from txnframework.model.names import SegmentName, TopicName, topic_of
from txnframework.model.positions import EARLIEST, Limit, Position
from txnframework.model.reads import Isolation, ReadRequest, Visibility

if TYPE_CHECKING:
    from txnframework.serializers import Serializer

EARLIEST_START = "earliest"
LATEST_START = "latest"


@dataclass(slots=True)
class _Track:
    """The progress on one segment; ``end`` is None if the segment is read until it is sealed."""

    segment: Segment
    opened: OpenSegment
    upto: Position
    end: Position | None
    tail: IWatch | None = None
    """Under ``read_uncommitted``: a watch on new entries, which are read before they are announced."""
    compacted: AsyncGenerator[CompactedEntry, None] | None = None
    """The compacted entries, which are read before the entries after ``upto``."""
    from_first: bool = False
    """Whether reading starts at the first stored entry, and no entry has been read yet."""
    ended: bool = False
    messages: deque[Message] = field(default_factory=deque)


class TopicSnapshot(NamedTuple):
    """
    A topic as it is in a snapshot: the life of the topic, and where each of its segments ends.

    ``hidden``: transactions whose messages are left out. ``undecided``: what is not in it, because it waited for an
    open transaction.
    """

    life: int
    ends: Mapping[str, Position]
    hidden: frozenset[TxnID]
    undecided: tuple[UndecidedMessages, ...]


class Reader(Generic[T_co]):
    """
    Reads a topic or one segment, without a trace in the stores; created by ``Client.reader`` and ``Snapshot.reader``.

    ``T_co`` is the type of the contents, which its serializer decodes. Without a serializer, ``Reader`` means
    ``Reader[bytes]``.

    Parents are read before their children. Without ``follow``, the reader ends where each segment ended when the reader
    was opened. With ``follow``, it continues until it is closed, and follows each segment to its descendants.
    """

    def __init__(
        self,
        host: Host,
        target: TopicName | SegmentName,
        start: MessageID | str = EARLIEST_START,
        follow: bool = False,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        compacted: bool = False,
        serializer: Serializer[T_co] | None = None,
        snapshot: TopicSnapshot | None = None,
    ) -> None:
        self._serializer = serializer
        self._snapshot = snapshot
        self._undecided = {} if snapshot is None else {one.segment: one for one in snapshot.undecided}
        if not isinstance(start, MessageID) and start not in (EARLIEST_START, LATEST_START):
            raise InvalidInput(f"a reader starts at a message, at {EARLIEST_START!r} or at {LATEST_START!r}")
        try:
            self._isolation = Isolation(isolation)
        except ValueError as error:
            levels = " or ".join(repr(level.value) for level in Isolation)
            raise InvalidInput(f"a reader's isolation is {levels}, not {excerpt(isolation)}") from error
        if compacted and (start != EARLIEST_START or self._isolation is not Isolation.READ_COMMITTED):
            raise InvalidInput("a reader of what was compacted starts at 'earliest' and reads what is committed")
        self._compacted = compacted
        self._host = host
        self._topic = target.topic
        self._only = target if isinstance(target, SegmentName) else None
        self._start = start
        self._follow = follow
        bounds = host.config.subscriptions
        self._limit = Limit(bounds.read_entries_max, bounds.read_bytes_max)
        self._tracks: dict[int, _Track] = {}
        self._watch: IWatch | None = None
        self._layout: Layout | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Reader of {self._only or self._topic}{', closed' if self._closed else ''}>"

    @property
    def undecided(self) -> tuple[UndecidedMessages, ...]:
        """
        What this reader does not return, by segment, because it waited for an open transaction.

        It is found when the reader or its snapshot is opened, and does not change when the transaction ends. Empty with
        ``follow`` and under ``read_uncommitted``, where the reader leaves out nothing that counts.
        """
        return tuple(self._undecided.values())

    async def open(self) -> None:
        """Find the start positions and, without ``follow``, the end positions; ``Client.reader`` calls this."""
        while True:
            try:
                await self._open()
            except Unavailable:
                layout = self._layout
                if layout is None or (await self._host.topics.layout(self._topic)).topic == layout.topic:
                    raise
                continue  # it has migrated meanwhile
            return

    async def _open(self) -> None:
        # A planned layout change is carried out first: until then its children may have no ledgers.
        layout = await self._current_layout(watches=self._follow)
        if self._snapshot is not None and self._snapshot.life not in layout.lives:
            raise TopicNotFound(str(self._topic), deleted=True)  # another topic has its name now
        if isinstance(self._start, MessageID):
            check_message_id(self._start)
            if topic_of(self._start.segment) not in (self._topic, *layout.names):
                raise InvalidInput(f"{self._start} is not the id of a message of {self._topic}")
            await require_there(self._host, self._start)
        # Children first: a compaction drops a null from a child only after the deleted messages were dropped from the
        # parents. So a reader that finds a child without the null finds parents without the key.
        for segment in reversed(self._wanted(layout)):
            track = await self._track(layout, segment, self._first(layout, segment), not self._follow)
            if self._start == LATEST_START:
                track.upto, track.from_first = await self._readable(track.opened), False
            self._tracks[segment.id] = track

    async def __aiter__(self) -> AsyncIterator[Message[T_co]]:
        serializer = self._serializer
        try:
            async for message in self._messages():
                yield message if serializer is None else with_content(message, serializer)  # type: ignore[misc]
        except (LedgerNotFound, Closed) as error:
            if not self._closed:
                require_open(self._host)
            tracks = tuple(self._tracks.values())
            if self._closed or not any([await self._is_deleted(track.opened) for track in tracks]):
                raise
            raise TopicNotFound(str(self._topic), deleted=True) from error

    async def _is_deleted(self, opened: OpenSegment) -> bool:
        return await self._host.topics.deletion.is_deleted(
            opened.name, None if self._layout is None else self._layout.life
        )

    async def _messages(self) -> AsyncIterator[Message]:
        while not self._closed:
            moved = False
            for track in self._readable_tracks():
                moved = await self._read(track) or moved
                while track.messages and not self._closed:
                    yield track.messages.popleft()
            if moved:
                continue
            if self._watch is None:
                return
            try:
                await self._until_something_happens()
            except Closed:
                if not self._closed:
                    raise

    async def close(self) -> None:
        """
        Release resources and end the iteration; a second call is allowed.

        If the caller is cancelled, the resources are still released.
        """
        self._closed = True
        await self._host.steps.finish(self._let_go)

    async def _let_go(self) -> None:
        watches = [self._watch, *(track.tail for track in self._tracks.values())]
        for watch in watches:
            if watch is not None:
                await watch.close()
        for track in self._tracks.values():
            if track.compacted is not None:
                with contextlib.suppress(RuntimeError):  # another task is reading it, and closes it
                    await track.compacted.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_after(error, self.close)

    # -- where to read --------------------------------------------------------------------------------

    async def _current_layout(self, *, watches: bool) -> Layout:
        """Return the layout, of the new topic after a migration; ``watches``: changes of it are watched before."""
        while True:
            if watches and self._watch is None:
                self._watch = await self._host.topics.watch(self._topic)
            layout = await self._host.topics.finish_changes(self._topic)
            if layout.topic == self._topic:
                self._layout = layout
                return layout
            self._topic = layout.topic
            watch, self._watch = self._watch, None
            if watch is not None:
                await watch.close()

    def _wanted(self, layout: Layout) -> tuple[Segment, ...]:
        """
        Return the segments to read, parents before children.

        If one segment was named, these are this segment and, with ``follow``, its descendants.
        """
        if self._snapshot is not None:
            return tuple(one for one in layout.in_order() if str(layout.name_of(one.id)) in self._snapshot.ends)
        if self._only is None:
            return layout.in_order()
        only = layout.segment_of(self._only)
        return (only, *layout.descendants(only.id)) if self._follow else (only,)

    def _first(self, layout: Layout, segment: Segment) -> Position:
        """Return the position after which a segment is read, for any start except ``latest``."""
        start = self._start
        if isinstance(start, MessageID) and str(layout.name_of(segment.id)) == start.segment:
            return start.position
        return EARLIEST

    def _readable_tracks(self) -> list[_Track]:
        """Return the segments whose parents have been read to their ends."""
        return [
            track
            for _, track in sorted(self._tracks.items())
            if not track.ended and all(self._tracks[one].ended for one in track.segment.parents if one in self._tracks)
        ]

    async def _track(
        self, layout: Layout, segment: Segment, upto: Position, until_now: bool, joins: bool = False
    ) -> _Track:
        opened = await open_segment(self._host, layout, segment.id)
        compacted: AsyncGenerator[CompactedEntry, None] | None = None
        # A segment that joins later is read uncompacted: its compacted part may lack nulls for keys already read from
        # parents.
        part = await self._host.compaction.attempts.open_result(opened.name) if self._compacted and not joins else None
        if part is not None:
            compacted, upto = part.entries(), part.upto
        end = None
        if until_now:
            end = await self._readable(opened) if self._snapshot is None else self._snapshot.ends[opened.name]
            if self._snapshot is None and self._isolation is Isolation.READ_COMMITTED:
                self._undecided.pop(opened.name, None)
                if (found := await undecided_after(opened, end)) is not None:
                    self._undecided[opened.name] = found
        watch = None
        if self._follow and self._isolation is Isolation.READ_UNCOMMITTED:
            watch = await opened.ledger.watch()
        # Trimmed messages of such a segment may have been nulls, so EntryTrimmed is raised instead of skipping them.
        from_first = compacted is not None or (upto == EARLIEST and not (joins and self._compacted))
        return _Track(segment, opened, upto, end, watch, compacted, from_first)

    async def _readable(self, opened: OpenSegment) -> Position:
        if self._isolation is Isolation.READ_UNCOMMITTED:
            return (await opened.ledger.tail()).last_confirmed
        return await opened.buffer.max_read_position()

    # -- reading --------------------------------------------------------------------------------------

    async def _read(self, track: _Track) -> bool:
        """Read a page of a segment; return whether the position advanced or the segment ended."""
        if track.compacted is not None:
            return await self._read_compacted(track, track.compacted)
        if track.end is not None and track.upto.entry >= track.end.entry and not _within(track.upto):
            track.ended = True
            return True
        after = track.upto if track.upto.batch_index < 0 else _before(track.upto)
        try:
            page = await track.opened.buffer.read(ReadRequest(after, self._limit, self._isolation))
        except EntryTrimmed:
            if not track.from_first:
                raise
            (left,) = await track.opened.ledger.ledgers(-1, 1)
            track.upto = Position(left.ledger_id, -1)
            return True
        track.from_first = False
        hidden = frozenset() if self._snapshot is None else self._snapshot.hidden
        for entry in page.entries:
            if track.end is not None and entry.position > track.end:
                track.upto = track.end
                return True
            if entry.branch is not None and entry.branch.txn_id in hidden:
                continue
            view = EntryView(entry.data, entry.position, track.opened.name)
            committed = entry.visibility is Visibility.COMMITTED
            origin = EntryOrigin(
                str(self._topic), track.opened.name, view.producer, entry.branch, view.count, committed
            )
            for index, content in enumerate(view.messages()):
                position = Position(entry.position.ledger_id, entry.position.entry_id, index)
                if position > track.upto:
                    track.messages.append(message_of(origin, position, content))
        last = page.entries[-1].position if page.entries else page.upto
        upto = max(page.upto, last)
        if upto > after:
            track.upto = upto
            return True
        if track.end is not None or await track.opened.buffer.finished(after):
            track.ended = True
            return True
        return False

    async def _read_compacted(self, track: _Track, compacted: AsyncGenerator[CompactedEntry, None]) -> bool:
        """Read one compacted entry; when there are no more, the uncompacted entries follow."""
        try:
            entry = await anext(compacted, None)
        except (LedgerNotFound, Closed) as error:
            if self._closed or await self._is_deleted(track.opened):
                raise
            raise Unavailable(
                f"{track.opened.name} was compacted anew while it was read; open another reader"
            ) from error
        if entry is None:
            track.compacted = None
            return True
        origin = EntryOrigin(str(self._topic), track.opened.name, entry.producer, entry.branch, entry.batch_size)
        for index, content in entry.messages:
            position = Position(entry.position.ledger_id, entry.position.entry_id, index)
            track.messages.append(message_of(origin, position, content))
        return True

    async def _until_something_happens(self) -> None:
        waits = [
            track.opened.buffer.advanced(track.upto) if track.tail is None else track.tail.changed()
            for track in self._readable_tracks()
        ]
        if self._watch is not None and await first_completed(self._watch.changed(), *waits) != 0:
            return
        await self._host.steps.finish(self._take_new_segments, (self,))

    async def _take_new_segments(self) -> None:
        before = self._layout
        layout = await self._current_layout(watches=True)
        if before is None or not layout.continues(before):
            raise TopicNotFound(str(self._topic), deleted=True)
        if layout.topic != before.topic:
            # Opened again: the buffer of the former family does not decide any more what was open at the end.
            for track in self._tracks.values():
                track.opened = await self._host.segment(track.opened.name, layout.life)
        for segment in self._wanted(layout):
            if segment.id not in self._tracks:
                self._tracks[segment.id] = await self._track(layout, segment, EARLIEST, until_now=False, joins=True)


async def open_reader(host: Host, reader: Reader[T_co]) -> Reader[T_co]:
    """Open a reader; if that fails, close it."""

    async def open_it() -> Reader[T_co]:
        try:
            await reader.open()
        except BaseException:
            await reader.close()
            raise
        return reader

    return await host.steps.finish(open_it, undo=Reader.close)


def _within(position: Position) -> bool:
    return position.batch_index >= 0


def _before(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id - 1)
