"""What a batch reads, and whether it may be committed."""

from __future__ import annotations

import pytest

from txnframework.model.layout import Layout, create_layout, finish_change, plan_merge, plan_split
from txnframework.model.names import TopicName
from txnframework.model.positions import EARLIEST, Position
from txnframework_spark.errors import Diverged, MixedBatch
from txnframework_spark.offsets import Offset, SegmentOffset
from txnframework_spark.planning import (
    AcknowledgedRange,
    Range,
    Verdict,
    judge,
    ranges_between,
    readable,
    shares,
    within_cursors,
)

TOPIC = TopicName.parse("in")


def at(entry: int) -> Position:
    return Position(0, entry)


def split_once() -> Layout:
    return finish_change(plan_split(create_layout(TOPIC, 1), 0), (0,))


def names(layout: Layout) -> list[str]:
    return [str(layout.name_of(segment.id)) for segment in layout.in_order()]


# -- which segments are readable ----------------------------------------------------------------------


def test_a_child_waits_until_its_parent_is_finished() -> None:
    layout = split_once()
    parent, low, high = names(layout)
    held = {parent: SegmentOffset(at(3))}
    assert readable(layout, held, (), {}) == held
    assert set(readable(layout, held, {parent}, {})) == {low, high}


def test_a_child_joins_at_its_beginning_or_where_it_is_told() -> None:
    layout = split_once()
    parent, low, high = names(layout)
    found = readable(layout, {parent: SegmentOffset(at(3))}, {parent}, {high: SegmentOffset(at(9), 4)})
    assert found == {low: SegmentOffset(EARLIEST), high: SegmentOffset(at(9), 4)}


def test_a_finished_parent_that_left_does_not_come_back() -> None:
    layout = split_once()
    _, low, high = names(layout)
    held = {low: SegmentOffset(at(0)), high: SegmentOffset(at(1))}
    assert readable(layout, held, (), {}) == held


def test_a_merged_child_waits_for_all_its_parents() -> None:
    layout = finish_change(plan_merge(create_layout(TOPIC, 2), 0, 1), (0, 1))
    low, high, merged = names(layout)
    held = {low: SegmentOffset(at(5)), high: SegmentOffset(at(6))}
    assert set(readable(layout, held, {low}, {})) == {low, high}
    assert set(readable(layout, held, {low, high}, {})) == {merged}


def test_a_new_query_begins_with_the_roots() -> None:
    layout = split_once()
    assert set(readable(layout, {}, (), {})) == {names(layout)[0]}


# -- how far a batch reads ----------------------------------------------------------------------------


def test_an_older_checkpoint_is_read_up_to_the_cursor_and_nothing_else_beside_it() -> None:
    """What was committed and what was not never share a batch."""
    starts = {"a": at(1), "b": at(5)}
    ends = {"a": at(9), "b": at(9)}
    assert within_cursors(starts, ends, {"a": at(4), "b": at(5)}) == {"a": at(4), "b": at(5)}
    assert within_cursors({"a": at(4), "b": at(5)}, ends, {"a": at(4), "b": at(5)}) == ends


def test_an_announced_end_below_the_start_reads_nothing() -> None:
    """A late intent lowers what this process computes; a place once reached is never given up."""
    assert within_cursors({"a": at(5)}, {"a": at(3)}, {}) == {"a": at(5)}


@pytest.mark.parametrize("messages_max", range(1, 40))
def test_shares_keep_the_bound_and_starve_nobody(messages_max: int) -> None:
    waiting = {"a": 1, "b": 7, "c": 30}
    given = shares(waiting, messages_max)
    assert sum(given.values()) == min(messages_max, 38)
    assert all(0 < share <= waiting[name] for name, share in given.items())
    assert len(given) == min(3, messages_max)


def test_a_replayed_first_batch_begins_where_it_began() -> None:
    """Spark asks for the initial offset again; the cursor may have moved since."""
    topic, segment = str(TOPIC), "segment://public/default/in/0000-ffff-0"
    began = {topic: {segment: SegmentOffset(at(2), 1)}}
    end = Offset({topic: {segment: SegmentOffset(at(8), 1)}}, began=began)
    again = Offset({topic: {segment: SegmentOffset(at(8), 1)}}, initial=True)
    assert ranges_between(again, end) == (Range(topic, segment, at(2), at(8), 1),)


def test_a_later_batch_begins_at_the_offset_before_it() -> None:
    topic, segment = str(TOPIC), "segment://public/default/in/0000-ffff-0"
    first = Offset({topic: {segment: SegmentOffset(at(8), 1)}}, began={topic: {segment: SegmentOffset(at(2), 1)}})
    second = Offset({topic: {segment: SegmentOffset(at(9), 1)}})
    assert ranges_between(first, second) == (Range(topic, segment, at(8), at(9), 1),)


def test_a_segment_that_joined_is_read_from_its_beginning() -> None:
    topic, segment = str(TOPIC), "segment://public/default/in/0000-7fff-1"
    end = Offset({topic: {segment: SegmentOffset(at(4))}})
    assert ranges_between(Offset({topic: {}}), end) == (Range(topic, segment, EARLIEST, at(4)),)


def test_nothing_stands_before_an_initial_offset() -> None:
    place = {str(TOPIC): {"segment://public/default/in/0000-ffff-0": SegmentOffset(at(4))}}
    assert ranges_between(Offset({}, initial=True), Offset(place, initial=True)) == ()


# -- whether a batch may be committed -----------------------------------------------------------------


def acknowledged(start: int, end: int, cursor: int, incarnation: int = 1) -> AcknowledgedRange:
    planned = Range(str(TOPIC), "s", at(start), at(end), 1)
    return AcknowledgedRange(str(TOPIC), "sub", planned, at(cursor), incarnation)


@pytest.mark.parametrize(
    ("start", "end", "cursor", "verdict"),
    [
        (0, 5, 0, Verdict.FRESH),
        (3, 5, 0, Verdict.FRESH),
        (0, 5, 5, Verdict.REPLAY),
        (0, 5, 9, Verdict.REPLAY),
        (5, 5, 5, Verdict.UNACKNOWLEDGED),
    ],
)
def test_a_range_is_fresh_from_the_cursor_on_and_a_replay_up_to_it(
    start: int, end: int, cursor: int, verdict: Verdict
) -> None:
    assert judge([acknowledged(start, end, cursor)]) is verdict


def test_a_range_that_the_cursor_stands_in_diverges() -> None:
    with pytest.raises(Diverged, match="inside"):
        judge([acknowledged(0, 5, 3)])


def test_another_incarnation_diverges_whatever_the_positions_say() -> None:
    """Committing would take a confirmed seek back."""
    with pytest.raises(Diverged, match="seek"):
        judge([acknowledged(0, 5, 0, incarnation=2)])


def test_replays_and_fresh_ranges_do_not_mix_and_empty_ones_do_not_count() -> None:
    with pytest.raises(MixedBatch):
        judge([acknowledged(0, 5, 0), acknowledged(0, 5, 5)])
    assert judge([acknowledged(0, 5, 5), acknowledged(7, 7, 0)]) is Verdict.REPLAY
    assert judge([]) is Verdict.UNACKNOWLEDGED
