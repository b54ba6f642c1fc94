"""What a client remembers of the tree, so that an operation asks nothing that it asked before; all of it bounded.

Nothing here decides: a multi is refused when what is remembered is out of date, and then it is read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

from txnframework_zookeeper.tree._records import Standing

V = TypeVar("V")


class Remembered(Generic[V]):
    """The latest so many values, by node."""

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self._values: OrderedDict[str, V] = OrderedDict()

    def get(self, node: str) -> V | None:
        """Return the value, None if it is not remembered."""
        return self._values.get(node)

    def note(self, node: str, value: V) -> None:
        """Remember a value; the oldest is forgotten."""
        self._values[node] = value
        self._values.move_to_end(node)
        if len(self._values) > self._items_max:
            self._values.popitem(last=False)

    def forget(self, node: str) -> None:
        """Forget a value; an unknown one is fine."""
        self._values.pop(node, None)

    def __contains__(self, node: str) -> bool:
        return node in self._values

    def __len__(self) -> int:
        return len(self._values)


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

    def has_parent(self, node: str) -> bool:
        """Whether a node that others stand below is there."""
        return self.parents.get(node) is True

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
