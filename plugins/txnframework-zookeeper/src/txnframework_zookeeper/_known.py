"""
A client's bounded cache of the tree, so that an operation does not repeat earlier requests.

The cache decides nothing: a multi is refused if the cache is out of date, and then the nodes are read again.

If the parents of a record do not fit into the multi that creates the record, they are created before it. A long name is
cut into hundreds of nodes, and each request names a node by its whole path. All of them together are therefore larger
than any name. An empty node has no meaning, so it may be created separately. Crash window: a process that dies between
these requests and the multi leaves empty nodes. The next process that lists them removes them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework_zookeeper.connection._requests import CreateNode
from txnframework_zookeeper.connection._zookeeper import ZooKeeper
from txnframework_zookeeper.tree._records import Standing

# A quarter of a server's request limit: the rest is for the multi's own steps.
TOGETHER_BYTES_MAX = 262_144
OP_BYTES = 200
"""The size of an op without its path and data, including the access control list of a login."""

V = TypeVar("V")


class Remembered(OrderedDict[str, V]):
    """
    The latest values by node, at most a fixed number of them.

    It is read dozens of times in each transaction, and therefore subclasses a dict.
    """

    def __init__(self, items_max: int) -> None:
        super().__init__()
        self._items_max = items_max

    def note(self, node: str, value: V) -> None:
        """Store a value; the oldest value is dropped."""
        self[node] = value
        self.move_to_end(node)
        if len(self) > self._items_max:
            self.popitem(last=False)

    def forget(self, node: str) -> None:
        """Remove a value; an unknown one is ignored."""
        self.pop(node, None)


class Known:
    """The cache of one client."""

    def __init__(self, items_max: int) -> None:
        self.records: Remembered[Standing] = Remembered(items_max)
        """Records, as they were last read or written."""
        self.parents: Remembered[bool] = Remembered(items_max)
        """Existing nodes that have other nodes below them."""
        self.added: Remembered[int] = Remembered(items_max)
        """The number of index entries below a node that this client added and did not remove."""
        self.alone: Remembered[set[str]] = Remembered(items_max)
        """All children of a node that exists only while it has children, as far as this client knows."""

    def missing(self, parent: str) -> list[str]:
        """Return a parent node and its ancestors that are not known to exist, lowest first."""
        found: list[str] = []
        # The ancestors of an existing node exist; a node that is out of date is forgotten together with its ancestors.
        while parent not in self.parents and parent.find("/", 1) > 0:
            found.append(parent)
            parent = parent[: parent.rfind("/")]
        return found

    def note_added(self, parent: str, count: int) -> None:
        """Add to the count of index entries below a node; ``count`` may be negative."""
        self.added.note(parent, max(0, (self.added.get(parent) or 0) + count))

    def forget_nodes(self, nodes: Iterable[str]) -> None:
        """Forget nodes, and that their ancestors exist."""
        for node in nodes:
            self.records.forget(node)
            for parent in ancestors(node):
                self.parents.forget(parent)
                self.alone.forget(parent)


def ancestors(node: str) -> list[str]:
    """Return the ancestors of a node, the highest first, without the roots of the trees."""
    found: list[str] = []
    end = node.rfind("/")
    while node.find("/", 1) < end:
        found.append(node[:end])
        end = node.rfind("/", 0, end)
    found.reverse()
    return found


async def make_ahead(zookeeper: ZooKeeper, missing: Sequence[str], made: Callable[[str], None]) -> list[str]:
    """
    Create as many of the missing nodes, the highest first, that the rest fits into one multi; return the rest.

    ``made`` is called with each created node. A retry after any failure is safe.

    :raises MultiFailed: another client created or deleted one of them since.
    :raises Unavailable: a reply was lost; at most empty nodes were created.
    """
    *ahead, rest = _groups(missing, len(zookeeper.full("").encode()) + OP_BYTES)
    for group in ahead:
        try:
            await zookeeper.multi([CreateNode(node) for node in group])
        except OutcomeUnknown as lost:
            raise Unavailable(str(lost)) from lost
        for node in group:
            made(node)
    return rest


def _groups(nodes: Sequence[str], each_bytes: int) -> Iterator[list[str]]:
    """Divide nodes into groups that each fit one request; return at least one group."""
    group: list[str] = []
    size = 0
    for node in nodes:
        size += len(node) + each_bytes
        if group and size > TOGETHER_BYTES_MAX:
            yield group
            group, size = [], len(node) + each_bytes
        group.append(node)
    yield group
