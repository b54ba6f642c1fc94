"""The nodes that scans and watches of a range visit; pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from txnframework.model import IndexRange, KeyRange
from txnframework_zookeeper.tree._index import EntryTreeNode, index_range_start, open_entry_child
from txnframework_zookeeper.tree._layout import (
    RecordTreeNode,
    open_record_child,
    partition_mark,
    partition_of,
    record_range_start,
    stores_partition,
)


class TreeNode(Protocol):
    """A node on the path to keys; with a mark it is a leaf. ``order`` is its position among the nodes of its tree."""

    @property
    def mark(self) -> str | None: ...

    @property
    def node(self) -> str: ...

    @property
    def order(self) -> tuple[str, ...]: ...


class TreeRange(NamedTuple):
    """
    The nodes of a range, all of them at or below ``start``.

    ``contains``: returns whether a node may be on the path to the range's content, or is a leaf that may be in it.
    ``leaves_change``: whether existing leaves are written; otherwise every change of the range creates or deletes a
    node.
    """

    start: TreeNode
    open_child: Callable[[Any, str], TreeNode]
    contains: Callable[[Any], bool]
    leaves_change: bool


def tree_range(target: KeyRange | IndexRange) -> TreeRange:
    """Return the nodes of a range; every write of a record creates its index entries again."""
    if isinstance(target, KeyRange):
        start = record_range_start(target)
        return TreeRange(start, open_record_child, lambda node: _has_record(target, node), leaves_change=True)
    first, last, after = target.start.hex(), target.stop.hex(), target.after
    # Entries with the same key are ordered by the paths of their records, then by their partition marks.
    behind = None if after is None else (after.path, partition_mark(after.path, after.partition))
    return TreeRange(
        index_range_start(target),
        open_entry_child,
        lambda node: _has_entry(first, last, behind, node),
        leaves_change=False,
    )


def _has_record(keys: KeyRange, node: RecordTreeNode) -> bool:
    if node.mark is None:
        return _may_lead_to(node.text, keys.start, keys.stop)
    if not keys.start <= node.text < keys.stop:
        return False
    if keys.partition is None or stores_partition(node.mark):
        return True
    return (partition_of(node.text, node.mark, None) or node.text) == keys.partition


def _has_entry(start: str, stop: str, behind: tuple[str, str] | None, node: EntryTreeNode) -> bool:
    if not node.path:
        return _may_lead_to(node.digits, start, stop)
    if not start <= node.digits < stop:
        return False
    if behind is None or node.digits != start:
        return True
    if node.mark is None:
        return node.path >= behind[0] or behind[0].startswith(node.path)
    return (node.path, node.mark) > behind


def _may_lead_to(text: str, start: str, stop: str) -> bool:
    return text < stop and (text >= start or start.startswith(text))
