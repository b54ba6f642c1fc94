"""The nodes that the watch of a range observes: nodes whose children are watched, and records; pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from txnframework.model import IndexRange, KeyRange
from txnframework_zookeeper.tree._index import EntryBelow, entry_below, start_of_index
from txnframework_zookeeper.tree._layout import Below, below, names_itself, partition_of, start_of


class Place(Protocol):
    """A node on the path to keys; with a mark it is a leaf."""

    @property
    def mark(self) -> str | None: ...

    @property
    def node(self) -> str: ...


class Range(NamedTuple):
    """
    The nodes of a range, all of them below ``start``.

    ``concerns``: returns whether a node is on the path to the range's content, or is a leaf in it. ``leaves_change``:
    whether existing leaves are written; otherwise every change of the range creates or deletes a node.
    """

    start: Place
    open_child: Callable[[Any, str], Place]
    concerns: Callable[[Any], bool]
    leaves_change: bool


def range_of(target: KeyRange | IndexRange) -> Range:
    """Return the nodes that a watch of the target observes; every write of a record creates its index entries again."""
    if isinstance(target, KeyRange):
        return Range(start_of(target), below, lambda place: _is_record_of(target, place), leaves_change=True)
    start, stop = target.start.hex(), target.stop.hex()
    return Range(
        start_of_index(target), entry_below, lambda place: _is_entry_of(start, stop, place), leaves_change=False
    )


def _is_record_of(keys: KeyRange, place: Below) -> bool:
    if place.mark is None:
        return _may_lead_to(place.text, keys.start, keys.stop)
    if not keys.start <= place.text < keys.stop:
        return False
    if keys.partition is None or names_itself(place.mark):
        return True
    return (partition_of(place.text, place.mark, None) or place.text) == keys.partition


def _is_entry_of(start: str, stop: str, place: EntryBelow) -> bool:
    if place.mark is None and not place.path:
        return _may_lead_to(place.digits, start, stop)
    return start <= place.digits < stop


def _may_lead_to(text: str, start: str, stop: str) -> bool:
    return text < stop and (text >= start or start.startswith(text))
