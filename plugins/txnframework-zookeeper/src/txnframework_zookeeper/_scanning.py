"""Scans: the leaves of a tree in the order of their keys, with few nodes listed at a time, each at most once."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from txnframework.model import IndexRange, KeyRange, Record, RecordPage
from txnframework_zookeeper._known import Known, Remembered
from txnframework_zookeeper._reading import Reading
from txnframework_zookeeper._reaping import Reaping
from txnframework_zookeeper.connection._zookeeper import ZooKeeper
from txnframework_zookeeper.tree._index import EntryBelow, entry_below, start_of_index
from txnframework_zookeeper.tree._layout import (
    Below,
    below,
    is_private,
    names_itself,
    node_at,
    partition_mark,
    partition_of,
    start_of,
)

_LISTED_TOGETHER_FIRST, _LISTED_TOGETHER_MAX = 2, 16
# If a walk opened at most this many nodes, the next walk from the same start lists the same nodes in advance.
_EXPECTED_MAX = 8
# Each of them may hold a value that is too small for chunks.
_READ_TOGETHER_MAX = 256


class _Place(Protocol):
    """A node on the path to keys; with a mark it is a leaf."""

    @property
    def mark(self) -> str | None: ...

    @property
    def node(self) -> str: ...


P = TypeVar("P", bound=_Place)


class _Walk(Generic[P]):
    """
    Leaves in order: the node with the lowest text is opened, until the lowest is a leaf.

    The first listing waits until the server has every confirmed write; later listings follow it. First two nodes are
    listed together, and twice as many after each round that was not enough. So few large nodes are listed, and small
    nodes are not listed one by one.

    ``expected``: nodes listed together with the first one, because an earlier walk from the same start opened them.
    Their listings are current as well, and are used if the walk reaches them.
    """

    def __init__(
        self,
        scanning: Scanning,
        start: P,
        open_child: Callable[[P, str], P],
        order: Callable[[P], tuple[str, ...]],
        admits: Callable[[P], bool],
        expected: Sequence[str],
    ) -> None:
        self._scanning = scanning
        self._open_child = open_child
        self._order = order
        self._admits = admits
        self._left: list[tuple[tuple[str, ...], bool, str, P]] = []
        self.opened: list[str] = []
        self._expected = expected
        self._listed: dict[str, list[str]] | None = None
        self._together = _LISTED_TOGETHER_FIRST
        self._push(start)

    @property
    def is_done(self) -> bool:
        """Whether no nodes remain."""
        return not self._left

    def next_leaf(self) -> P | None:
        """Return the next leaf if it is known without a listing; the leaf is not removed."""
        place = self._left[0][3] if self._left else None
        return place if place is not None and place.mark is not None else None

    async def leaves(self, items_max: int) -> list[P]:
        """Return the next leaves; fewer than ``items_max`` only at the end."""
        found: list[P] = []
        while self._left and len(found) < items_max:
            if self.next_leaf() is not None:
                found.append(heapq.heappop(self._left)[3])
                continue
            some: list[P] = []
            while self._left and self.next_leaf() is None and len(some) < self._together:
                some.append(heapq.heappop(self._left)[3])
            if len(some) == self._together:
                self._together = min(2 * self._together, _LISTED_TOGETHER_MAX)
            for parent, names in zip(some, await self._list(some), strict=True):
                for name in names:
                    child = self._open_child(parent, name)
                    if self._admits(child):
                        self._push(child)
        return found

    def _push(self, place: P) -> None:
        heapq.heappush(self._left, (self._order(place), place.mark is not None, place.node, place))

    async def _list(self, places: list[P]) -> list[list[str]]:
        nodes = [place.node for place in places]
        if len(self.opened) <= _EXPECTED_MAX:
            self.opened += nodes
        if self._listed is None:
            self._listed = await self._list_now([*nodes, *self._expected], is_current=True)
        elif left := [node for node in nodes if node not in self._listed]:
            self._listed |= await self._list_now(left, is_current=False)
        return [self._listed.pop(node) for node in nodes]

    async def _list_now(self, nodes: list[str], is_current: bool) -> dict[str, list[str]]:
        names = await asyncio.gather(*(self._scanning.list(node, is_current) for node in nodes))
        return dict(zip(nodes, names, strict=True))


class Scanning:
    """
    Reads ranges for one client.

    The nodes of several records are read together. Then the chunks of records that have any are read one after the
    other, until a page has ``page_bytes_max``.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        known: Known,
        reaping: Reaping,
        reading: Reading,
        page_bytes_max: int,
        nodes_max: int,
    ) -> None:
        self._zookeeper = zookeeper
        self._known = known
        self._reaping = reaping
        self._reading = reading
        self._page_bytes_max = page_bytes_max
        # The nodes that short walks opened, by the node where they began.
        self._opened: Remembered[Sequence[str]] = Remembered(nodes_max)

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return the first records of a range of keys, and the remaining range."""
        self._reaping.go_on()

        def admits(place: Below) -> bool:
            if place.mark is None:
                return place.text < keys.stop and (place.text >= keys.start or keys.start.startswith(place.text))
            return keys.start <= place.text < keys.stop and _may_be_in(place, keys.partition)

        start = start_of(keys)
        expected = self._opened.get(start.node) or ()
        walk = _Walk(self, start, below, lambda place: (place.text, place.mark or ""), admits, expected)
        page = _Page(self._page_bytes_max)
        while not page.is_cut and (len(page.records) < items_max or page.ends_at(walk.next_leaf())):
            places = await walk.leaves(min(max(1, items_max - len(page.records)), _READ_TOGETHER_MAX))
            if not places:
                break
            # A path in several partitions has one place for each, in the order of their marks.
            marks = [place.mark or "" for place in places]
            heads = await asyncio.gather(
                *(
                    self._reading.head(place.text, mark, place.node, is_current=False)
                    for place, mark in zip(places, marks, strict=True)
                )
            )
            for place, mark, head in zip(places, marks, heads, strict=True):
                if page.is_full and not page.ends_at(place):
                    page.is_cut = True
                    break
                read = None if head is None else await self._reading.completed(mark, place.node, head)
                if read is not None and _is_of(read.record, keys.partition):
                    page.add(read.record)
        self._note_opened(walk.opened)
        if not page.records or (walk.is_done and not page.is_cut):
            return RecordPage(tuple(page.records))
        # A page ends between two paths: the first text after a path is the path with the lowest character appended.
        resume = KeyRange(f"{page.records[-1].key.path}\0", keys.stop, keys.partition)
        return RecordPage(tuple(page.records), resume)

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return the first records of a range of an index, once for each entry, and the remaining range."""
        self._reaping.go_on()
        start, stop, after = entries.start.hex(), entries.stop.hex(), entries.after
        # Entries with the same key are ordered by the paths of their records, then by their partition marks.
        behind = None if after is None else (after.path, partition_mark(after.path, after.partition))
        first = start_of_index(entries)
        walk = _Walk(
            self,
            first,
            entry_below,
            lambda place: (place.digits, place.path, place.mark or ""),
            lambda place: _is_in(place, start, stop, behind),
            self._opened.get(first.node) or (),
        )
        page = _Page(self._page_bytes_max)
        last = b""
        while not page.is_cut and len(page.records) < items_max:
            places = await walk.leaves(min(items_max - len(page.records), _READ_TOGETHER_MAX))
            if not places:
                break
            nodes = dict.fromkeys((place.path, place.mark or "") for place in places)
            read = await asyncio.gather(
                *(self._reading.head(path, mark, node_at(path, mark), is_current=False) for path, mark in nodes)
            )
            heads = dict(zip(nodes, read, strict=True))
            for place in places:
                if page.is_full:
                    page.is_cut = True
                    break
                named = place.path, place.mark or ""
                head = heads[named]
                if head is not None:
                    head = heads[named] = await self._reading.completed(named[1], node_at(*named), head)
                key = bytes.fromhex(place.digits)
                # The record may have changed between the listing and the read, and its entries with it.
                if head is None or (entries.index, key) not in {entry[:2] for entry in head.standing.entries}:
                    continue
                page.add(head.record)
                last = key
        self._note_opened(walk.opened)
        found = tuple(page.records)
        if not found or (walk.is_done and not page.is_cut):
            return RecordPage(found)
        return RecordPage(found, IndexRange(entries.index, last, entries.stop, found[-1].key))

    async def list(self, node: str, is_current: bool) -> list[str]:
        """Return the names below a node, none if it does not exist, and cache what that shows."""
        names = await self._zookeeper.children(node, is_current)
        if names is None:
            self._known.parents.forget(node)
            return []
        if is_private(node):
            self._known.alone.note(node, set(names))
        if names:
            self._known.parents.note(node, True)
        else:
            self._reaping.note(node)
        return names

    def _note_opened(self, opened: Sequence[str]) -> None:
        """Store the nodes that a walk opened below its start, if they are few."""
        if 1 < len(opened) <= _EXPECTED_MAX:
            self._opened.note(opened[0], opened[1:])
        elif opened:
            self._opened.forget(opened[0])


class _Page:
    """The records of an unfinished page; it ends early, with ``is_cut``, where their values are large."""

    def __init__(self, bytes_max: int) -> None:
        self.records: list[Record] = []
        self.is_cut = False
        self._bytes_left = bytes_max

    @property
    def is_full(self) -> bool:
        """Return whether the values have reached the maximum size of a page."""
        return self._bytes_left <= 0

    def add(self, record: Record) -> None:
        """Append a record."""
        self.records.append(record)
        self._bytes_left -= len(record.value)

    def ends_at(self, place: Below | None) -> bool:
        """Return whether a place has the path of the last record, in another partition."""
        return bool(place is not None and self.records and place.text == self.records[-1].key.path)


def _is_of(record: Record, partition: str | None) -> bool:
    return partition is None or (record.key.partition or record.key.path) == partition


def _may_be_in(place: Below, partition: str | None) -> bool:
    """Return whether a record may be in a partition, judged by the name of its node."""
    if partition is None or place.mark is None or names_itself(place.mark):
        return True
    return (partition_of(place.text, place.mark, None) or place.text) == partition


def _is_in(place: EntryBelow, start: str, stop: str, behind: tuple[str, str] | None) -> bool:
    """Return whether a node of an index, or a node below it, may be in a range."""
    if not place.path:
        return place.digits < stop and (place.digits >= start or start.startswith(place.digits))
    if not start <= place.digits < stop:
        return False
    if behind is None or place.digits != start:
        return True
    if place.mark is None:
        return place.path >= behind[0] or behind[0].startswith(place.path)
    return (place.path, place.mark) > behind
