"""Where a watch looks: the node to watch for a target, and which changes below it may be of the target; pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from txnframework.model import IndexRange, Key, KeyRange
from txnframework_zookeeper.tree._index import INDEXES, EntryBelow, entry_below, start_of_index
from txnframework_zookeeper.tree._layout import RECORDS, Below, below, names_itself, node_of, partition_of, start_of


def place_of(target: Key | KeyRange | IndexRange) -> tuple[str, Callable[[str], bool]]:
    """Return the node below which everything happens that changes what is read of a target, and what of it does."""
    if isinstance(target, Key):
        node = node_of(target)
        return node, lambda changed: changed == node
    if isinstance(target, KeyRange):
        return start_of(target).node, lambda changed: _is_record_of(target, changed)
    # Whatever changes a record writes its entries too.
    start, stop = target.start.hex(), target.stop.hex()
    return start_of_index(target).node, lambda changed: _is_entry_of(start, stop, changed)


def _is_record_of(keys: KeyRange, node: str) -> bool:
    names = node.removeprefix(f"{RECORDS}/").split("/")
    found = reduce(below, names, Below("/", None, RECORDS))
    if found.mark is None or not keys.start <= found.text < keys.stop:
        return False
    if keys.partition is None or names_itself(found.mark):
        return True
    return (partition_of(found.text, found.mark, None) or found.text) == keys.partition


def _is_entry_of(start: str, stop: str, node: str) -> bool:
    _, *names = node.removeprefix(f"{INDEXES}/").split("/")
    found = reduce(entry_below, names, EntryBelow("", "", None, ""))
    return found.mark is not None and start <= found.digits < stop
