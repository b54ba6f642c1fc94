"""
The nodes that a client knows: a bounded cache, the creation of parent nodes, and the removal of empty ones.

* The cache saves requests and decides nothing: a multi is refused if the cache is out of date, and then the nodes are
  read again.
* If the parents of a record do not fit into the multi that creates the record, they are created before it. A long name
  is cut into hundreds of nodes, and each request names a node by its whole path. All of them together are therefore
  larger than any name. An empty node has no meaning, so it may be created separately. Crash window: a process that dies
  between these requests and the multi leaves empty nodes.
* Empty nodes are removed a few at a time, some time after they lost their last child. No operation waits for it. A
  client that adds a child to a removed node is refused by ZooKeeper, checks which ancestors exist, and creates them
  again. The removal of a node that has just got a child is refused too. Empty nodes of a dead process are removed by
  the next process that lists them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from txnframework.environment import Environment
from txnframework.errors import OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.runtime.tasks import start_task
from txnframework_zookeeper.connection._client import ZooKeeperClient
from txnframework_zookeeper.connection._requests import CreateNode, DeleteNode, MultiFailed
from txnframework_zookeeper.tree._records import RecordState

# A quarter of a server's request limit: the rest is for the multi's own steps.
_PARENTS_BYTES_MAX = 262_144
OP_BYTES = 200
"""The size of an op without its path and data, including the access control list of a login."""

V = TypeVar("V")


class BoundedCache(OrderedDict[str, V]):
    """
    The latest values by node, at most a fixed number of them.

    It is read dozens of times in each transaction, and therefore subclasses a dict.
    """

    def __init__(self, items_max: int) -> None:
        super().__init__()
        self._items_max = items_max

    def put(self, node: str, value: V) -> None:
        """Store a value; the oldest value is dropped."""
        self[node] = value
        self.move_to_end(node)
        if len(self) > self._items_max:
            self.popitem(last=False)

    def discard(self, node: str) -> None:
        """Remove a value; an unknown one is ignored."""
        self.pop(node, None)


class NodeCache:
    """The cache of one client."""

    def __init__(self, items_max: int) -> None:
        self.records: BoundedCache[RecordState] = BoundedCache(items_max)
        """Records, as they were last read or written."""
        self.parents: BoundedCache[bool] = BoundedCache(items_max)
        """Existing nodes that have other nodes below them."""
        self.entry_counts: BoundedCache[int] = BoundedCache(items_max)
        """The number of index entries below a node that this client added and did not remove."""
        self.private_children: BoundedCache[set[str]] = BoundedCache(items_max)
        """All children of a node that exists only while it has children, as far as this client knows."""

    def missing_parents(self, parent: str) -> list[str]:
        """Return a parent node and its ancestors that are not known to exist, lowest first."""
        found: list[str] = []
        # The ancestors of an existing node exist; a node that is out of date is removed together with its ancestors.
        while parent not in self.parents and parent.find("/", 1) > 0:
            found.append(parent)
            parent = parent[: parent.rfind("/")]
        return found

    def add_to_entry_count(self, parent: str, count: int) -> None:
        """Add to the count of index entries below a node; ``count`` may be negative."""
        self.entry_counts.put(parent, max(0, (self.entry_counts.get(parent) or 0) + count))

    def discard_nodes(self, nodes: Iterable[str]) -> None:
        """Remove nodes and their ancestors."""
        for node in nodes:
            self.records.discard(node)
            for parent in ancestors(node):
                self.parents.discard(parent)
                self.private_children.discard(parent)


def ancestors(node: str) -> list[str]:
    """Return the ancestors of a node, the highest first, without the roots of the trees."""
    found: list[str] = []
    end = node.rfind("/")
    while node.find("/", 1) < end:
        found.append(node[:end])
        end = node.rfind("/", 0, end)
    found.reverse()
    return found


async def create_surplus_parents(
    zookeeper: ZooKeeperClient, missing: Sequence[str], created: Callable[[str], None]
) -> list[str]:
    """
    Create as many of the missing nodes, the highest first, that the rest fits into one multi; return the rest.

    ``created`` is called with each created node. A retry after any failure is safe.

    :raises MultiFailed: another client created or deleted one of them since.
    :raises Unavailable: a reply was lost; at most empty nodes were created.
    """
    *surplus, rest = _groups(missing, len(zookeeper.full("").encode()) + OP_BYTES)
    for group in surplus:
        try:
            await zookeeper.multi([CreateNode(node) for node in group])
        except OutcomeUnknown as lost:
            raise Unavailable(str(lost)) from lost
        for node in group:
            created(node)
    return rest


def _groups(nodes: Sequence[str], each_bytes: int) -> Iterator[list[str]]:
    """Divide nodes into groups that each fit one request; return at least one group."""
    group: list[str] = []
    size = 0
    for node in nodes:
        size += len(node) + each_bytes
        if group and size > _PARENTS_BYTES_MAX:
            yield group
            group, size = [], len(node) + each_bytes
        group.append(node)
    yield group


# The number of slashes in the path of a tree's root.
_ROOT_SLASHES = 1
_REMOVED_TOGETHER_MAX = 64


class EmptyNodeCollector:
    """Removes the nodes that one client may have left empty."""

    def __init__(
        self, zookeeper: ZooKeeperClient, cache: NodeCache, environment: Environment, delay_ms: int, nodes_max: int
    ) -> None:
        self._zookeeper = zookeeper
        self._cache = cache
        self._environment = environment
        self._delay_ms = delay_ms
        self._nodes_max = nodes_max
        self._due: OrderedDict[str, int] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def add(self, node: str) -> None:
        """
        Register a node that may have lost its last child; it is checked ``delay_ms`` later, with the next activity.
        """
        if node.count("/") <= _ROOT_SLASHES or node in self._due:
            return
        self._due[node] = self._environment.monotonic_ms() + self._delay_ms
        if len(self._due) > self._nodes_max:
            self._due.popitem(last=False)

    def start_due(self) -> None:
        """Check the nodes that are due, in a background task."""
        if self._due and self._task is None and not self._is_closed and self._is_due():
            self._task = start_task(self._remove_due())
            self._task.add_done_callback(self._done)

    async def close(self) -> None:
        """Stop; idempotent."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _is_due(self) -> bool:
        return next(iter(self._due.values())) <= self._environment.monotonic_ms()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()

    async def _remove_due(self) -> None:
        while self._due and self._is_due():
            some: list[str] = []
            while self._due and len(some) < _REMOVED_TOGETHER_MAX and self._is_due():
                some.append(self._due.popitem(last=False)[0])
            await asyncio.gather(*map(self._remove, some))

    async def _remove(self, node: str) -> None:
        """Remove a node without children; after an error, the next process that lists the node removes it."""
        try:
            # A read costs less than a refused write, and need not be current: the removal itself is checked.
            stat = await self._zookeeper.exists(node, is_current=False)
            if stat is not None and stat.children_count:
                return
            self._cache.parents.discard(node)
            self._cache.private_children.discard(node)
            if stat is not None:
                await self._zookeeper.multi([DeleteNode(node)])
        except (MultiFailed, TxnFrameworkError):
            return
        self.add(node.rpartition("/")[0])
