"""A query's offset in Spark's checkpoint: versioned JSON, by topic and by segment.

::

    {"format": 1,
     "topics": {"topic://public/default/in": {"segment://public/default/in/0000-7fff-0": {"at": "0:41", "cursor": 7}}},
     "began": {...}}

``at`` is the last entry that was read. ``cursor`` is the incarnation of the subscription's cursor (only with
``groupId``). Segments are added and removed as the topic splits and merges.

``began`` is the start of the batch that ends here, stored where the previous offset does not determine it:

* After an initial offset. Spark stores the end of batch 0 but not its start. A replay of batch 0 asks for the initial
  offset again, and the cursor may have moved. Without ``began`` the replay would read nothing or, from ``latest``, lose
  the messages that arrived since.
* If a topic joins, which begins at its subscription's cursor, or at the first entry that was not trimmed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from txnframework.broker import Host
from txnframework.errors import EntryTrimmed, UnknownFormat
from txnframework.interfaces import IManagedLedger
from txnframework.model.positions import EARLIEST, EntryRange, Limit, Position
from txnframework_spark.errors import CorruptOffset, InvalidOption
from txnframework_spark.options.selection import Bound, Edge

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class SegmentOffset:
    """The last entry read of a segment, and the incarnation of its cursor (None: no subscription)."""

    at: Position
    incarnation: int | None = None


Frontier = dict[str, dict[str, SegmentOffset]]
"""Offsets by topic and segment. A segment that is absent was not begun, or was finished before its descendants."""


@dataclass(frozen=True, slots=True)
class Offset:
    """A position in a query's input. ``initial``: no batch was planned from it; ``began``: the start of the batch that
    ends here.
    """

    frontier: Frontier
    initial: bool = False
    began: Frontier | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value; equal offsets give equal text, which Spark compares to detect new data."""
        table: dict[str, Any] = {"format": FORMAT, "topics": _written(self.frontier)}
        if self.initial:
            table["initial"] = True
        if self.began is not None:
            table["began"] = _written(self.began)
        return table


class _Segment(msgspec.Struct, forbid_unknown_fields=True):
    at: str
    cursor: int | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    topics: dict[str, dict[str, _Segment]]
    initial: bool = False
    began: dict[str, dict[str, _Segment]] | None = None


def from_json(table: Mapping[str, Any]) -> Offset:
    """
    Return the offset that ``to_json`` wrote.

    :raises CorruptOffset: it is damaged, or an offset of another source.
    :raises UnknownFormat: a later release wrote it.
    """
    if not isinstance(table, Mapping) or "format" not in table:
        raise CorruptOffset("the checkpoint belongs to another source: its offset has no format number")
    if table["format"] != FORMAT:
        raise UnknownFormat("the offset in the checkpoint", table["format"])
    try:
        document = msgspec.convert(dict(table), _Document)
        began = None if document.began is None else _read(document.began)
        return Offset(_read(document.topics), document.initial, began)
    except (msgspec.ValidationError, ValueError) as error:
        raise CorruptOffset(f"the offset in the checkpoint is damaged: {error}") from error


def _written(frontier: Frontier) -> dict[str, dict[str, dict[str, Any]]]:
    return {
        topic: {segment: _written_segment(offset) for segment, offset in sorted(segments.items())}
        for topic, segments in sorted(frontier.items())
    }


def _written_segment(offset: SegmentOffset) -> dict[str, Any]:
    table: dict[str, Any] = {"at": str(offset.at)}
    if offset.incarnation is not None:
        table["cursor"] = offset.incarnation
    return table


def _read(topics: dict[str, dict[str, _Segment]]) -> Frontier:
    return {
        topic: {name: SegmentOffset(Position.parse(found.at), found.cursor) for name, found in segments.items()}
        for topic, segments in topics.items()
    }


async def first_untrimmed(ledger: IManagedLedger) -> Position:
    """Return the position before the first entry that was not trimmed."""
    end = (await ledger.tail()).last_confirmed
    try:
        await ledger.read(EntryRange(EARLIEST, end), Limit(1))
    except EntryTrimmed as error:
        return end if error.first is None else before(error.first)
    return EARLIEST


async def resolve_bound(host: Host, segment: str, place: Bound, readable: Position) -> Position:
    """Return the position before the entry that ``place`` names; ``readable``: the segment's max read position.

    :raises InvalidOption: the entry does not exist yet.
    """
    if place is Edge.LATEST:
        return readable
    ledger = (await host.segment(segment)).ledger
    if place is Edge.EARLIEST:
        return await first_untrimmed(ledger)
    assert isinstance(place, Position)
    if before(place) > (await ledger.tail()).last_confirmed:
        raise InvalidOption(
            "startingOffsets",
            f"{segment} has no entry {place.entry} yet; its last one is {(await ledger.tail()).last_confirmed}",
        )
    return before(place)


async def find_time(host: Host, segment: str, at_ms: int) -> Position:
    """Return the position before the first entry appended at ``at_ms`` or later, by the store's clock."""
    return await (await host.segment(segment)).ledger.find_time(at_ms)


def before(entry: Position) -> Position:
    """Return the position before an entry."""
    return Position(entry.ledger_id, entry.entry_id - 1)
