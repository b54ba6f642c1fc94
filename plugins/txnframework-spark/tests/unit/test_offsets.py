"""Offsets survive the checkpoint, and damaged or newer ones are refused."""

from __future__ import annotations

import json

import pytest

from txnframework.model.positions import Position
from txnframework_spark.errors import CorruptOffset
from txnframework_spark.source.offsets import Offset, SegmentOffset, from_json

TOPIC = "topic://public/default/in"
LOW, HIGH = (f"segment://public/default/in/{part}" for part in ("0000-7fff-0", "8000-ffff-1"))


def offset(**kinds: object) -> Offset:
    places = {HIGH: SegmentOffset(Position(1, 2)), LOW: SegmentOffset(Position(0, 41), 7)}
    return Offset({TOPIC: places}, **kinds)  # type: ignore[arg-type]


@pytest.mark.parametrize("found", [offset(), offset(initial=True), offset(began=offset().frontier), Offset({})])
def test_an_offset_comes_back_from_json_as_it_was(found: Offset) -> None:
    assert from_json(json.loads(json.dumps(found.to_json()))) == found


def test_equal_places_have_equal_text() -> None:
    """Spark compares the text to tell whether there is something new."""
    reversed_order = Offset({TOPIC: dict(reversed(offset().frontier[TOPIC].items()))})
    assert json.dumps(reversed_order.to_json()) == json.dumps(offset().to_json())


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"i": 3}, "another source"),
        ({"format": 1, "topics": {TOPIC: {LOW: {"at": "x"}}}}, "damaged"),
        ({"format": 1, "topics": {TOPIC: {LOW: {}}}}, "damaged"),
    ],
)
def test_what_is_no_offset_of_this_format_is_refused(table: dict[str, object], reason: str) -> None:
    with pytest.raises(CorruptOffset, match=reason):
        from_json(table)
