"""
Reads of one record, and scans of ranges; values in chunks are read chunk by chunk.

A scan visits the leaves of a tree in the order of their keys. It lists few nodes at a time, and each at most once.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

from txnframework.errors import Corrupt, CorruptRecord, Unavailable
from txnframework.model import IndexRange, Key, KeyRange, Record, RecordPage
from txnframework_zookeeper._nodes import BoundedCache, EmptyNodeCollector, NodeCache
from txnframework_zookeeper._options import MetadataOptions
from txnframework_zookeeper.connection._client import ZooKeeperClient
from txnframework_zookeeper.connection._requests import Node
from txnframework_zookeeper.tree._layout import RecordTreeNode, is_private, node_at, node_of, partition_mark
from txnframework_zookeeper.tree._ranges import TreeNode, TreeRange, tree_range
from txnframework_zookeeper.tree._records import Chunks, RecordState, decode_node

_LISTED_TOGETHER_FIRST, _LISTED_TOGETHER_MAX = 2, 16
# If a scan opened at most this many nodes, the next scan from the same start lists the same nodes in advance.
_EXPECTED_MAX = 8
# Each record may have a value that is too small for chunks.
_RECORDS_TOGETHER_MAX = 256
_CHUNKS_TOGETHER_MAX = 16


class FoundRecord(NamedTuple):
    """A record and its cached state; a record with chunks has no value until ``Reader.read_value``."""

    record: Record
    state: RecordState


def value_in_node(key: Key, node: Node) -> bytes | None:
    """Return the value stored in a record's node; None if it is in chunks, or cannot be read."""
    try:
        record, state = decode_node(key.path, partition_mark(key.path, key.partition), node)
    except Corrupt:
        return None
    return record.value if state.chunks is None else None


class _Walk:
    """
    A walk over the leaves in order: it opens the lowest node repeatedly, until the lowest node is a leaf.

    The first listing waits until the server has every confirmed write; later listings follow it. At first two nodes are
    listed together. The number doubles after each round that did not return enough leaves. So few large nodes are
    listed, and small nodes are not listed one by one.

    ``expected``: nodes listed together with the first one, because an earlier walk from the same start opened them.
    Their listings are current as well, and are used if the walk reaches them.
    """

    def __init__(self, reader: Reader, nodes: TreeRange, expected: Sequence[str]) -> None:
        self._reader = reader
        self._range = nodes
        self._left: list[tuple[tuple[str, ...], bool, str, Any]] = []
        self.opened: list[str] = []
        self._expected = expected
        self._listed: dict[str, list[str]] | None = None
        self._together = _LISTED_TOGETHER_FIRST
        self._push(nodes.start)

    @property
    def is_done(self) -> bool:
        """Whether no nodes remain."""
        return not self._left

    def next_leaf(self) -> Any | None:
        """Return the next leaf if it is known without a listing; the leaf is not removed."""
        node = self._left[0][3] if self._left else None
        return node if node is not None and node.mark is not None else None

    async def leaves(self, items_max: int) -> list[Any]:
        """Return the next leaves; fewer than ``items_max`` only at the end."""
        found: list[Any] = []
        while self._left and len(found) < items_max:
            if self.next_leaf() is not None:
                found.append(heapq.heappop(self._left)[3])
                continue
            some: list[TreeNode] = []
            while self._left and self.next_leaf() is None and len(some) < self._together:
                some.append(heapq.heappop(self._left)[3])
            if len(some) == self._together:
                self._together = min(2 * self._together, _LISTED_TOGETHER_MAX)
            for parent, names in zip(some, await self._list(some), strict=True):
                for name in names:
                    child = self._range.open_child(parent, name)
                    if self._range.contains(child):
                        self._push(child)
        return found

    def _push(self, node: TreeNode) -> None:
        heapq.heappush(self._left, (node.order, node.mark is not None, node.node, node))

    async def _list(self, some: list[TreeNode]) -> list[list[str]]:
        nodes = [node.node for node in some]
        if len(self.opened) <= _EXPECTED_MAX:
            self.opened += nodes
        if self._listed is None:
            self._listed = await self._list_now([*nodes, *self._expected], is_current=True)
        elif left := [node for node in nodes if node not in self._listed]:
            self._listed |= await self._list_now(left, is_current=False)
        return [self._listed.pop(node) for node in nodes]

    async def _list_now(self, nodes: list[str], is_current: bool) -> dict[str, list[str]]:
        names = await asyncio.gather(*(self._reader.list(node, is_current) for node in nodes))
        return dict(zip(nodes, names, strict=True))


class Reader:
    """
    Reads records and ranges for one client, and caches the results.

    A scan reads the nodes of several records together. Then it reads the chunks of records that have any, one record
    after the other, until a page has ``page_bytes_max``.
    """

    def __init__(
        self, zookeeper: ZooKeeperClient, cache: NodeCache, empty_nodes: EmptyNodeCollector, options: MetadataOptions
    ) -> None:
        self._zookeeper = zookeeper
        self._cache = cache
        self._empty_nodes = empty_nodes
        self._options = options
        # The nodes that short walks opened, by the node where they began.
        self._opened: BoundedCache[Sequence[str]] = BoundedCache(options.nodes_known_max)

    async def get(self, key: Key) -> Record | None:
        """Return the current record, or None if it does not exist; raises the errors of ``read_value``."""
        mark, node = partition_mark(key.path, key.partition), node_of(key)
        found = await self.read_head(key.path, mark, node, is_current=True)
        found = None if found is None else await self.read_value(mark, node, found)
        return None if found is None else Record(key, found.record.value, found.record.version)

    async def read_head(self, path: str, mark: str, node: str, is_current: bool) -> FoundRecord | None:
        """
        Return the content of a record's node, or None if the node does not exist.

        :raises CorruptRecord: the node's data cannot be read.
        """
        found = await self._zookeeper.get(node, is_current)
        if found is None:
            self._cache.records.discard(node)
            return None
        record, state = decode_node(path, mark, found)
        self._cache.records.put(node, state)
        return FoundRecord(record, state)

    async def read_value(self, mark: str, node: str, found: FoundRecord) -> FoundRecord | None:
        """
        Return a record with its current value, or None if it was deleted.

        The chunks that a head names exist as long as the head. If one is missing, the head was replaced or deleted.

        :raises CorruptRecord: the head names chunks that do not exist.
        :raises Unavailable: the record was replaced in every attempt to read its chunks.
        """
        path = found.record.key.path
        for _ in range(self._options.attempts_max):
            record, state = found
            if state.chunks is None:
                return found
            value = await self._read_chunks(path, state.chunks)
            if value is not None:
                return FoundRecord(Record(record.key, value, record.version), state)
            again = await self.read_head(path, mark, node, is_current=True)
            if again is None:
                return None
            if again.record.version == record.version:
                raise CorruptRecord(path, "its value", f"a chunk below {state.chunks.node} is missing")
            found = again
        raise Unavailable(
            f"{self._zookeeper.shown_url}: {path} was replaced during each of {self._options.attempts_max} attempts to"
            " read it"
        )

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return the first records of a range of keys, and the remaining range."""
        found, resume = await self.find_records(keys, items_max)
        return RecordPage(tuple([one.record for one in found]), resume)

    async def find_records(self, keys: KeyRange, items_max: int) -> tuple[list[FoundRecord], KeyRange | None]:
        """Return the first records of a range of keys with their states, and the remaining range."""
        walk = self._walk(keys)
        page = _Page(self._options.page_bytes_max)
        while not page.is_cut and (len(page.found) < items_max or page.ends_at(walk.next_leaf())):
            leaves = await walk.leaves(min(max(1, items_max - len(page.found)), _RECORDS_TOGETHER_MAX))
            if not leaves:
                break
            # A path in several partitions has one leaf for each, in the order of their marks.
            heads = await asyncio.gather(
                *(self.read_head(leaf.text, leaf.mark, leaf.node, is_current=False) for leaf in leaves)
            )
            for leaf, head in zip(leaves, heads, strict=True):
                if page.is_full and not page.ends_at(leaf):
                    page.is_cut = True
                    break
                found = None if head is None else await self.read_value(leaf.mark, leaf.node, head)
                if found is not None and _is_of_partition(found.record, keys.partition):
                    page.add(found)
        self._remember_opened(walk.opened)
        if not page.found or (walk.is_done and not page.is_cut):
            return page.found, None
        # A page ends between two paths: the first text after a path is the path with the lowest character appended.
        return page.found, KeyRange(f"{page.found[-1].record.key.path}\0", keys.stop, keys.partition)

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return the first records of a range of an index, once for each entry, and the remaining range."""
        found, resume = await self.find_entries(entries, items_max)
        return RecordPage(tuple([record for _, record in found]), resume)

    async def find_entries(
        self, entries: IndexRange, items_max: int
    ) -> tuple[list[tuple[bytes, Record]], IndexRange | None]:
        """Return the first entries of a range of an index, each as its key and its record, and the remaining range."""
        walk = self._walk(entries)
        page = _Page(self._options.page_bytes_max)
        lines: list[tuple[bytes, Record]] = []
        while not page.is_cut and len(lines) < items_max:
            leaves = await walk.leaves(min(items_max - len(lines), _RECORDS_TOGETHER_MAX))
            if not leaves:
                break
            named = dict.fromkeys((leaf.path, leaf.mark) for leaf in leaves)
            heads = await asyncio.gather(
                *(self.read_head(path, mark, node_at(path, mark), is_current=False) for path, mark in named)
            )
            found = dict(zip(named, heads, strict=True))
            for leaf in leaves:
                if page.is_full:
                    page.is_cut = True
                    break
                path, mark = leaf.path, leaf.mark
                head = found[path, mark]
                if head is not None:
                    head = found[path, mark] = await self.read_value(mark, node_at(path, mark), head)
                key = bytes.fromhex(leaf.digits)
                # The record and its index entries may have changed between the listing and the read.
                if head is None or (entries.index, key) not in {entry[:2] for entry in head.state.entries}:
                    continue
                page.add(head)
                lines.append((key, head.record))
        self._remember_opened(walk.opened)
        if not lines or (walk.is_done and not page.is_cut):
            return lines, None
        last, record = lines[-1]
        return lines, IndexRange(entries.index, last, entries.stop, record.key)

    async def list(self, node: str, is_current: bool) -> list[str]:
        """Return the names below a node, or none if it does not exist, and cache the result."""
        names = await self._zookeeper.children(node, is_current)
        if names is None:
            self._cache.parents.discard(node)
            return []
        if is_private(node):
            self._cache.private_children.put(node, set(names))
        if names:
            self._cache.parents.put(node, True)
        else:
            self._empty_nodes.add(node)
        return names

    async def _read_chunks(self, path: str, chunks: Chunks) -> bytes | None:
        """
        Return a value, or None if a chunk is missing.

        The server that replies has applied every change that the head shows.
        """
        nodes = chunks.nodes
        parts: list[bytes] = []
        for at in range(0, len(nodes), _CHUNKS_TOGETHER_MAX):
            some = nodes[at : at + _CHUNKS_TOGETHER_MAX]
            for part in await asyncio.gather(*(self._zookeeper.get(one, is_current=False) for one in some)):
                if part is None:
                    return None
                parts.append(part.data)
        value = b"".join(parts)
        if len(value) != chunks.size:
            raise CorruptRecord(path, "its value", f"the chunks below {chunks.node} are {len(value)} bytes")
        return value

    def _walk(self, target: KeyRange | IndexRange) -> _Walk:
        self._empty_nodes.start_due()
        nodes = tree_range(target)
        return _Walk(self, nodes, self._opened.get(nodes.start.node) or ())

    def _remember_opened(self, opened: Sequence[str]) -> None:
        """Store the nodes that a walk opened below its start, if they are few."""
        if 1 < len(opened) <= _EXPECTED_MAX:
            self._opened.put(opened[0], opened[1:])
        elif opened:
            self._opened.discard(opened[0])


class _Page:
    """The records of an unfinished page; it ends early, with ``is_cut``, where their values are large."""

    def __init__(self, bytes_max: int) -> None:
        self.found: list[FoundRecord] = []
        self.is_cut = False
        self._bytes_left = bytes_max

    @property
    def is_full(self) -> bool:
        """Whether the values have reached the maximum size of a page."""
        return self._bytes_left <= 0

    def add(self, found: FoundRecord) -> None:
        """Append a record."""
        self.found.append(found)
        self._bytes_left -= len(found.record.value)

    def ends_at(self, leaf: RecordTreeNode | None) -> bool:
        """Return whether a leaf has the path of the last record, in another partition."""
        return bool(leaf is not None and self.found and leaf.text == self.found[-1].record.key.path)


def _is_of_partition(record: Record, partition: str | None) -> bool:
    return partition is None or (record.key.partition or record.key.path) == partition
