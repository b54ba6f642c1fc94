"""What a batch reads."""

from __future__ import annotations

import pytest

from txnframework.model.layout import Layout
from txnframework.model.layout_changes import create_layout, finish_change, plan_merge, plan_split
from txnframework.model.names import TopicName
from txnframework.model.positions import EARLIEST, Position
from txnframework_spark.microbatch.registration import Range
from txnframework_spark.options.parser import StoreOptions
from txnframework_spark.source.batch_plan import (
    parts,
    ranges_between,
    readable,
    select_segments,
    shares,
    unfinished_segments,
    within_cursors,
)
from txnframework_spark.source.combined import COMBINED_MESSAGES_MAX, CombinedPartition, group_small
from txnframework_spark.source.offsets import Offset, SegmentOffset
from txnframework_spark.source.partitions import SegmentPartition

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
    assert readable(layout, {parent}, ()) == {parent}
    assert readable(layout, {parent}, {parent}) == {low, high}


def test_a_finished_parent_that_left_does_not_come_back() -> None:
    layout = split_once()
    _, low, high = names(layout)
    assert readable(layout, {low, high}, ()) == {low, high}


def test_assigned_segments_follow_the_nearest_assigned_ones_that_they_descend_from() -> None:
    """Segment 0 was split into 1 and 2, and 1 into 3 and 4; 1 and 4 are not assigned."""
    layout = finish_change(plan_split(split_once(), 1), (1,))
    part = select_segments(layout, {0, 2, 3})
    root, second, third = names(part)
    assert {number: (found.parents, found.children) for number, found in part.segments.items()} == {
        0: ((), (2, 3)),
        2: ((0,), ()),
        3: ((0,), ()),
    }
    assert readable(part, {root}, ()) == {root}
    assert readable(part, {root}, {root}) == {second, third}


def test_what_a_held_segment_descends_from_is_not_left_to_read() -> None:
    layout = split_once()
    parent, low, high = names(layout)
    assert unfinished_segments(layout, {parent}) == [parent, low, high]
    assert unfinished_segments(layout, {low}) == [low, high]
    assert unfinished_segments(layout, {low, parent}) == [parent, low, high]


@pytest.mark.parametrize(
    ("counts", "at_least", "expected"),
    [
        ([100], 4, [4]),
        ([300, 100], 4, [3, 1]),
        ([1000, 1], 4, [4, 1]),
        ([5, 5, 5], 2, [1, 1, 1]),
        ([0], 4, [1]),
        ([], 4, []),
    ],
)
def test_ranges_are_cut_in_proportion_to_their_messages(counts: list[int], at_least: int, expected: list[int]) -> None:
    assert parts(counts, at_least) == expected


@pytest.mark.parametrize(
    ("messages", "tasks"),
    [
        ([1, 1, 1], [3]),
        ([COMBINED_MESSAGES_MAX - 1, 1, 1], [2, 1]),
        ([COMBINED_MESSAGES_MAX + 1, 1, 1, None, 1], [1, 2, 1, 1]),
        ([None, None], [1, 1]),
        ([1], [1]),
        ([], []),
    ],
)
def test_small_ranges_share_a_task(messages: list[int | None], tasks: list[int]) -> None:
    """In their order; None: the range was not counted, because it is long."""
    partitions = [
        SegmentPartition(StoreOptions(), str(TOPIC), f"s{number}", at(4), at(5)) for number in range(len(messages))
    ]
    counts = {f"s{number}": count for number, count in enumerate(messages) if count is not None}
    found = [one.parts if isinstance(one, CombinedPartition) else (one,) for one in group_small(partitions, counts)]
    assert [len(task) for task in found] == tasks
    assert [partition for task in found for partition in task] == partitions


def test_a_merged_child_waits_for_all_its_parents() -> None:
    layout = finish_change(plan_merge(create_layout(TOPIC, 2), 0, 1), (0, 1))
    low, high, merged = names(layout)
    assert readable(layout, {low, high}, {low}) == {low, high}
    assert readable(layout, {low, high}, {low, high}) == {merged}


def test_a_new_query_begins_with_the_roots() -> None:
    layout = split_once()
    assert readable(layout, (), ()) == {names(layout)[0]}


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
