"""Where the watch of a range looks: nodes whose children are watched, and records that are watched themselves; pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from txnframework.model import IndexRange, KeyRange
from txnframework_zookeeper.tree._index import EntryBelow, entry_below, start_of_index
from txnframework_zookeeper.tree._layout import Below, below, names_itself, partition_of, start_of


class Place(Protocol):
    """A node on the way to keys; with a mark it is a leaf."""

    @property
    def mark(self) -> str | None: ...

    @property
    def node(self) -> str: ...


class Range(NamedTuple):
    """
    What is read of a range lies below ``start``.

    ``concerns``: whether a node is on the way to what is in the range, or a leaf in it. ``leaves_change``: whether a
    leaf is written while it stands; otherwise every change of the range makes or removes a node.
    """

    start: Place
    open_child: Callable[[Any, str], Place]
    concerns: Callable[[Any], bool]
    leaves_change: bool


def range_of(target: KeyRange | IndexRange) -> Range:
    """Return where a watch of the range looks; whatever writes a record makes its index entries anew."""
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
