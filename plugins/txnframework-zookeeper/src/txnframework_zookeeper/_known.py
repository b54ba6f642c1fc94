"""
What a client remembers of the tree, so that an operation asks nothing that it asked before; all of it bounded.

Nothing here decides: a multi is refused when what is remembered is out of date, and then it is read again.

The nodes above a record are made before the multi that makes the record where they do not fit into it.
A long name is cut into hundreds of nodes, each of which a request names by its whole path, so that all of them together
are larger than any name. An empty node means nothing, so it may be made by itself. The crash window: a process that
dies between these requests and the multi leaves empty nodes, which the next process that lists them removes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework_zookeeper.connection._requests import CreateNode
from txnframework_zookeeper.connection._zookeeper import ZooKeeper
from txnframework_zookeeper.tree._records import Standing

# A quarter of what a server takes: the rest is for the multi's own steps.
TOGETHER_BYTES_MAX = 262_144
OP_BYTES = 200
"""What an op takes beside its path and data, the access control list of a login included."""

V = TypeVar("V")


class Remembered(OrderedDict[str, V]):
    """The latest so many values, by node; it is asked dozens of times for each transaction, and so is a dict itself."""

    def __init__(self, items_max: int) -> None:
        super().__init__()
        self._items_max = items_max

    def note(self, node: str, value: V) -> None:
        """Remember a value; the oldest is forgotten."""
        self[node] = value
        self.move_to_end(node)
        if len(self) > self._items_max:
            self.popitem(last=False)

    def forget(self, node: str) -> None:
        """Forget a value; an unknown one is fine."""
        self.pop(node, None)


class Known:
    """What one client remembers."""

    def __init__(self, items_max: int) -> None:
        self.records: Remembered[Standing] = Remembered(items_max)
        """Records, as they were last read or written."""
        self.parents: Remembered[bool] = Remembered(items_max)
        """Nodes that other nodes stand below, which are there."""
        self.added: Remembered[int] = Remembered(items_max)
        """How many index entries below a node this client added and did not remove."""
        self.alone: Remembered[set[str]] = Remembered(items_max)
        """All children of a node that comes and goes with them, as far as this client saw."""

    def missing(self, parent: str) -> list[str]:
        """Return a node that others stand below, and those above it that are not known to be there, lowest first."""
        found: list[str] = []
        # Above one that is there all are there; what is out of date is forgotten with all above it.
        while parent not in self.parents and parent.find("/", 1) > 0:
            found.append(parent)
            parent = parent[: parent.rfind("/")]
        return found

    def note_added(self, parent: str, count: int) -> None:
        """Count an index entry in, or out."""
        self.added.note(parent, max(0, (self.added.get(parent) or 0) + count))

    def forget_nodes(self, nodes: Iterable[str]) -> None:
        """Forget nodes, and that what they stand below is there."""
        for node in nodes:
            self.records.forget(node)
            for parent in ancestors(node):
                self.parents.forget(parent)
                self.alone.forget(parent)


def ancestors(node: str) -> list[str]:
    """Return the nodes that a node stands below, the highest first, without the roots of the trees."""
    found: list[str] = []
    end = node.rfind("/")
    while node.find("/", 1) < end:
        found.append(node[:end])
        end = node.rfind("/", 0, end)
    found.reverse()
    return found


async def make_ahead(zookeeper: ZooKeeper, missing: Sequence[str], made: Callable[[str], None]) -> list[str]:
    """
    Make so many of the missing nodes, the highest first, that the rest fits into one multi; return the rest.

    ``made`` is told of each. Repeating it after any failure is safe.

    :raises MultiFailed: others made or removed one of them since.
    :raises Unavailable: a reply was lost; nothing was changed but for empty nodes.
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
    """Divide nodes into groups of which each fits one request, at least one group."""
    group: list[str] = []
    size = 0
    for node in nodes:
        size += len(node) + each_bytes
        if group and size > TOGETHER_BYTES_MAX:
            yield group
            group, size = [], len(node) + each_bytes
        group.append(node)
    yield group
