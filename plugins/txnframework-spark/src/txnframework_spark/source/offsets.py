"""A query's offset as it stands in Spark's checkpoint: versioned JSON, by topic and by segment.

::

    {"format": 1,
     "topics": {"topic://public/default/in": {"segment://public/default/in/0000-7fff-0": {"at": "0:41", "cursor": 7}}},
     "began": {...}}

``at`` is the last entry that was read; ``cursor`` the incarnation of the subscription's cursor that it belongs to (only
with ``groupId``). Segments are added and dropped as the topic splits and merges.

``began`` says where the batch began that ends here, where the offset before does not tell:

* behind an initial one. Spark keeps the end of batch 0 but not its start: when batch 0 is run again it asks for the
  initial offset anew, and by then the cursor may have moved. Without this the replay would read nothing, or, from
  ``latest``, lose what came in between;
* where a topic joins, which begins at its subscription's cursor, or at the first entry that is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from txnframework.model.positions import Position
from txnframework_spark.errors import CorruptOffset

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class SegmentOffset:
    """The last entry read of a segment, and the incarnation of the cursor it belongs to (None: no subscription)."""

    at: Position
    incarnation: int | None = None


Frontier = dict[str, dict[str, SegmentOffset]]
"""Offsets by topic and by segment; a segment that is not in it was not begun, or was finished before its
descendants."""


@dataclass(frozen=True, slots=True)
class Offset:
    """A place in a query's input. ``initial``: nobody has planned from it; ``began``: the start of the batch ending
    here.
    """

    frontier: Frontier
    initial: bool = False
    began: Frontier | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value; equal places give equal text, by which Spark tells whether there is something new."""
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
    """Return the offset that ``to_json`` wrote, or raise CorruptOffset."""
    if not isinstance(table, Mapping) or "format" not in table:
        raise CorruptOffset("the checkpoint belongs to another source: its offset has no format number")
    if table["format"] != FORMAT:
        raise CorruptOffset(f"the offset has format {table['format']}, which this release does not know; upgrade")
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
