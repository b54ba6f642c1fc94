"""What can be copied from the source, and the messages to copy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace

from txnframework.broker import OpenSegment, first_completed
from txnframework.client import Client
from txnframework.errors import TopicNotFound, Unavailable
from txnframework.model.entries import EntryMessage, EntryView
from txnframework.model.layout import Layout
from txnframework.model.names import TopicName
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.reads import Isolation, ReadableEntry, Visibility
from txnframework_geo._hold import Hold
from txnframework_geo._lanes import Lanes, Unit
from txnframework_geo._progress import Progress
from txnframework_geo._segments import SourceTopics, segments_of

LATE_MAX = 10_000
"""The most entries that may be late: their positions are a part of the progress."""


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """A message to copy: where it is stored, and who sent it."""

    segment: str
    position: Position
    producer: str
    message: EntryMessage


@dataclass(frozen=True, slots=True)
class Cut:
    """
    What the next transaction of the target copies: after the former cut, up to ``ends``, and what was late.

    ``late``: the entries up to ``ends`` that it does not copy either. ``read_upto``: where segments can be read
    further, for ``Source.changed``. ``lives``: of the topics.
    """

    ends: dict[str, Position]
    late: dict[str, tuple[Position, ...]]
    read_upto: dict[str, Position]
    lives: dict[str, int]

    def moves(self, progress: Progress) -> bool:
        """Return whether the cut is another one than that of the progress."""
        return self.late != progress.late or any(end > progress.end_of(one) for one, end in self.ends.items())


@dataclass(slots=True)
class _SegmentScan:
    """
    What was read of one segment: its late entries, and those after ``start`` up to and including ``upto``.

    ``opened_upto``: up to where it can be read. ``complete``: it is sealed, and ``upto`` is its end.
    """

    opened: OpenSegment
    topic: TopicName
    parents: tuple[str, ...]
    start: Position
    upto: Position
    opened_upto: Position
    complete: bool
    reached_ms: int = 0
    entries: list[tuple[Position, Unit]] = field(default_factory=list)


class Source:
    """
    Decides what can be copied, and reads it.

    :param names: the names of the topics, as the user wrote them.
    :param hold: the subscription with the backlog.
    :param messages_min: about as many messages are considered at a time, or half of a larger backlog, up to
        ``messages_max``.

    ``halvings``: how often these numbers are halved, so that a copy that took too long is not repeated as it was.
    """

    def __init__(
        self, client: Client, names: tuple[TopicName, ...], hold: Hold, messages_min: int, messages_max: int
    ) -> None:
        self._client = client
        self._names = names
        self._topics = SourceTopics(client, names)
        self._hold = hold
        self._messages_min = messages_min
        self._messages_max = messages_max
        self.halvings = 0

    async def active_segments(self) -> dict[TopicName, int]:
        """Return how many segments of each topic accept messages now."""
        layouts = await self._topics.layouts()
        return {topic: len(layout.active()) for topic, layout in zip(self._names, layouts, strict=True)}

    async def require_lives(self, progress: Progress) -> None:
        """Raise InvalidInput if a topic is not the one whose progress was stored."""
        self._topics.require_lives(await self._topics.layouts(), progress)

    # -- cuts -----------------------------------------------------------------------------------------

    async def next_cut(self, progress: Progress) -> Cut:
        """
        Return what can be copied now, or a part of a large backlog.

        First segments are read up to positions where all transactions have ended. All messages of a transaction are
        stored before it ends. So what is stored after these positions, which is read next, shows every transaction that
        would be torn, whatever is sent meanwhile. It is hidden, and copied later.

        A transaction of which nothing could be read when the call began is hidden, too. So a transaction is never
        copied before one that had ended before it began, unless that one was held back by an open transaction.
        """
        wanted = 0
        while True:
            layouts = await self._topics.layouts()
            self._topics.require_lives(layouts, progress)
            if not wanted:
                wanted = max(self._messages_min, min(await self._hold.backlog() // 2, self._messages_max))
                wanted = max(1, wanted >> self.halvings)
            before = await self.readable()
            segments, lanes, is_all = await self._scan(layouts, progress, wanted)
            seen: set[Unit] = set()
            early: set[Unit] = set()
            for name, scan in segments.items():
                for position, unit in scan.entries:
                    seen.add(unit)
                    if position <= before.get(name, EARLIEST):
                        early.add(unit)
            hidden = lanes.hidden_with((seen - early) | await self._straddling(layouts, segments, progress, seen))
            cut = self._cut(layouts, segments, hidden)
            late, found = sum(map(len, cut.late.values())), sum(len(scan.entries) for scan in segments.values())
            if is_all:
                # If too many entries wait for a transaction that is open, everything waits.
                return cut if late <= LATE_MAX else replace(cut, ends=dict(progress.ends), late=progress.late)
            if late <= min(LATE_MAX, found // 2):
                return cut
            wanted *= 2  # most transactions of this part go on after it

    def _cut(self, layouts: list[Layout], segments: Mapping[str, _SegmentScan], hidden: set[Unit]) -> Cut:
        late = {
            name: tuple(position for position, unit in scan.entries if unit in hidden)
            for name, scan in segments.items()
        }
        readable = {
            name: scan.upto
            for name, scan in segments.items()
            if not scan.complete and all(segments[parent].complete for parent in scan.parents)
        }
        return Cut(
            {name: scan.upto for name, scan in segments.items()},
            {name: positions for name, positions in late.items() if positions},
            readable,
            self._topics.lives(layouts),
        )

    async def readable(self) -> dict[str, Position]:
        """Return up to where each segment can be read now."""
        return {
            name: await (await self._topics.open(layout, name)).buffer.max_read_position()
            for layout in await self._topics.layouts()
            for name in segments_of(layout)
        }

    async def messages(self, progress: Progress, cut: Cut) -> AsyncIterator[tuple[TopicName, SourceMessage]]:
        """
        Yield the messages to copy with their topics, parents before children, each segment in order.

        :raises Unavailable: a topic was migrated, or deleted and created again, since the cut was determined.
        """
        layouts = await self._topics.layouts()
        if self._topics.lives(layouts) != cut.lives:
            raise Unavailable("a topic has just been migrated or deleted")
        for topic, layout in zip(self._names, layouts, strict=True):
            for name in segments_of(layout):
                if name not in cut.ends:
                    continue
                opened = await self._topics.open(layout, name)
                late = frozenset(cut.late.get(name, ()))
                async for page in self._pages_of(opened, progress, cut.ends[name]):
                    for entry in page:
                        if entry.position in late:
                            continue
                        view = EntryView(entry.data, entry.position, name)
                        for index, message in enumerate(view.messages()):
                            position = Position(entry.position.ledger_id, entry.position.entry_id, index)
                            yield topic, SourceMessage(name, position, view.producer, message)

    async def changed(self, cut: Cut) -> None:
        """Wait until more can be read than ``cut`` considered, or a layout changes."""
        host = self._client.host
        watches = [await host.topics.watch(topic) for topic in await self._topics.names()]
        try:
            # Watches are armed now, so a change after this reading wakes them.
            buffers = {}
            for layout in await self._topics.layouts():
                for name in segments_of(layout):
                    if name not in cut.ends:
                        return
                    buffers[name] = (await self._topics.open(layout, name)).buffer
            waiting = [(buffers[name], upto) for name, upto in cut.read_upto.items() if name in buffers]
            for buffer, upto in waiting:
                if await buffer.max_read_position() > upto or await buffer.finished(upto):
                    return
            await first_completed(
                *(watch.changed() for watch in watches), *(buffer.advanced(upto) for buffer, upto in waiting)
            )
        finally:
            for watch in watches:
                await watch.close()

    # -- reading --------------------------------------------------------------------------------------

    async def _scan(
        self, layouts: list[Layout], progress: Progress, wanted: int
    ) -> tuple[dict[str, _SegmentScan], Lanes, bool]:
        """
        Read what is late, and about ``wanted`` messages after the former cut; return whether nothing more can be read.

        The segment whose messages are the oldest is read next, so that the part ends at about one time. A segment is
        read after its parents, so that its messages come behind theirs in the lanes.
        """
        segments: dict[str, _SegmentScan] = {}
        lanes = Lanes()
        for topic, layout in zip(self._names, layouts, strict=True):
            for name, parents in segments_of(layout).items():
                opened = await self._topics.open(layout, name)
                start = progress.end_of(name)
                end = await opened.buffer.max_read_position()
                complete = await opened.buffer.finished(start)
                scan = segments[name] = _SegmentScan(opened, topic, parents, start, start, end, complete)
                async for page in self._topics.late_pages(opened, progress.late.get(name, ())):
                    for entry in page:
                        _note(scan, lanes, entry)
        left = wanted
        while left > 0:
            ready = [
                scan
                for scan in segments.values()
                if not scan.complete
                and scan.upto < scan.opened_upto
                and all(segments[one].complete for one in scan.parents)
            ]
            if not ready:
                return segments, lanes, True
            left -= await self._scan_page(min(ready, key=lambda one: one.reached_ms), lanes)
        return segments, lanes, False

    async def _scan_page(self, scan: _SegmentScan, lanes: Lanes) -> int:
        """Read one page; return the number of its messages."""
        page = await self._topics.read(scan.opened, scan.upto)
        reached = max([page.upto, *(entry.position for entry in page.entries[-1:])])
        if reached <= scan.upto:
            raise Unavailable(f"{scan.opened.name}: what is stored after {scan.upto} cannot be read now")
        count = sum(_note(scan, lanes, entry) for entry in page.entries if entry.position <= scan.opened_upto)
        scan.upto = min(scan.opened_upto, reached)
        scan.complete = await scan.opened.buffer.finished(scan.upto)
        return count

    async def _straddling(
        self, before: list[Layout], segments: Mapping[str, _SegmentScan], progress: Progress, seen: set[Unit]
    ) -> set[Unit]:
        """Return the transactions in ``seen`` that also have messages after what was read."""
        # Again: a segment may have been split meanwhile, and its transactions go on in its children.
        layouts = await self._topics.layouts()
        for former, layout in zip(before, layouts, strict=True):
            if not layout.continues(former):
                raise TopicNotFound(str(layout.topic), deleted=True)
        found: set[Unit] = set()
        for layout in layouts:
            for name in segments_of(layout):
                opened = await self._topics.open(layout, name)
                after = segments[name].upto if name in segments else progress.end_of(name)
                tail = (await opened.ledger.tail()).last_confirmed
                async for page in self._topics.pages(opened, after, tail, Isolation.READ_UNCOMMITTED):
                    for entry in page:
                        if entry.branch is None or entry.visibility is Visibility.ABORTED:
                            continue
                        if entry.branch.txn_id in seen:
                            found.add(entry.branch.txn_id)
        return found

    async def _pages_of(
        self, opened: OpenSegment, progress: Progress, end: Position
    ) -> AsyncIterator[tuple[ReadableEntry, ...]]:
        """Yield the entries that the target does not have, up to ``end``."""
        async for page in self._topics.late_pages(opened, progress.late.get(opened.name, ())):
            yield page
        async for page in self._topics.pages(opened, progress.end_of(opened.name), end):
            yield page


def _note(scan: _SegmentScan, lanes: Lanes, entry: ReadableEntry) -> int:
    """Note an entry that was read; return the number of its messages."""
    view = EntryView(entry.data, entry.position, scan.opened.name)
    unit: Unit = (scan.opened.name, entry.position) if entry.branch is None else entry.branch.txn_id
    scan.entries.append((entry.position, unit))
    scan.reached_ms = view.published_ms[0]
    if view.has_keys:
        for message in view.messages():
            if message.key is not None:
                lanes.add(unit, (scan.topic, message.key))
    return view.count
