"""The graph of segments: ranges always cover the hash space, and a change is planned before it is made."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from txnframework.errors import InvalidInput, LayoutConflict
from txnframework.model.layout import HASH_MAX, Layout, SegmentState, from_record, to_record
from txnframework.model.layout_changes import (
    begun,
    create_layout,
    finish_change,
    has_change,
    plan_merge,
    plan_split,
    planned_changes,
    with_subscription,
    without_subscription,
)
from txnframework.model.names import TopicName, parse_name
from txnframework.model.positions import Position

TOPIC = TopicName.parse("topic://public/default/orders")


def covers_everything_once(layout: Layout) -> bool:
    """Whether the segments that take writes partition the hash space, and each is found by its first and last hash."""
    active = layout.active()
    if any(layout.route(key_hash) is not one for one in active for key_hash in (one.start, one.end)):
        return False
    edges = [segment.start for segment in active] + [HASH_MAX + 1]
    return edges[0] == 0 and all(segment.end + 1 == after for segment, after in zip(active, edges[1:], strict=True))


@pytest.mark.parametrize("segments", [1, 2, 3, 7, 16, HASH_MAX + 1])
def test_a_new_layout_covers_the_hash_space(segments: int) -> None:
    layout = create_layout(TOPIC, segments)
    assert len(layout.active()) == segments
    assert covers_everything_once(layout)


@pytest.mark.parametrize("segments", [0, -1, HASH_MAX + 2])
def test_an_impossible_number_of_segments_is_refused(segments: int) -> None:
    with pytest.raises(InvalidInput, match="a topic has 1 to 65536"):
        create_layout(TOPIC, segments)


def test_split_is_at_the_middle_and_takes_effect_only_when_done() -> None:
    """Producers use the parent until the change is complete, so no child is written before the seal."""
    planned = plan_split(create_layout(TOPIC, 1), 0)
    assert planned.segments[0].state is SegmentState.PLANNED
    assert [(s.start, s.end) for s in (planned.segments[1], planned.segments[2])] == [(0, 0x7FFF), (0x8000, 0xFFFF)]
    assert planned.route(0x1234).id == 0
    assert planned_changes(planned) == ((0,),)
    done = finish_change(planned, (0,))
    assert (done.route(0x1234).id, done.route(0x9234).id) == (1, 2)
    assert planned_changes(done) == ()


def test_a_planned_segment_cannot_be_changed_again() -> None:
    """Two changes of one segment would give it two sets of children."""
    layout = plan_split(create_layout(TOPIC, 2), 0)
    with pytest.raises(LayoutConflict, match="segment 0 is not active"):
        plan_split(layout, 0)
    with pytest.raises(LayoutConflict, match="segment 0 is not active"):
        plan_merge(layout, 0, 1)
    with pytest.raises(LayoutConflict, match=r"segment 2 is not active \(active: "):
        plan_split(layout, 2)


def test_only_neighbours_merge_in_either_order() -> None:
    layout = create_layout(TOPIC, 4)
    with pytest.raises(LayoutConflict, match=r"0 and 2 are not neighbours \(neighbours: 0 and 1, 1 and 2, 2 and 3\)"):
        plan_merge(layout, 0, 2)
    for pair in ((1, 2), (2, 1)):
        merged = finish_change(plan_merge(layout, *pair), (1, 2))
        assert covers_everything_once(merged)
        assert [parent.id for parent in merged.ancestors(4)] == [1, 2]


def test_a_range_of_one_value_cannot_split() -> None:
    with pytest.raises(LayoutConflict, match="one hash value"):
        plan_split(create_layout(TOPIC, HASH_MAX + 1), 17)


def test_an_unknown_segment_is_refused_with_the_active_ones() -> None:
    with pytest.raises(LayoutConflict, match=r"no segment 9 \(active: 0, 1\)"):
        plan_split(create_layout(TOPIC, 2), 9)


def test_any_sequence_of_changes_keeps_the_hash_space_covered() -> None:
    """Splits and merges in random order: one writer for every hash at every step, records round-trip."""
    draw = random.Random(7)
    layout = with_subscription(create_layout(TOPIC, 3), "audit")
    for _ in range(200):
        active = layout.active()
        place = draw.randrange(len(active))
        if draw.random() < 0.5 and active[place].start < active[place].end:
            layout = plan_split(layout, active[place].id)
        elif place + 1 < len(active):
            layout = plan_merge(layout, active[place].id, active[place + 1].id)
        assert covers_everything_once(layout)
        for parents in planned_changes(layout):
            layout = finish_change(layout, parents)
        assert covers_everything_once(layout)
        assert from_record(TOPIC, to_record(layout)) == layout
    order = [segment.id for segment in layout.in_order()]
    assert all(order.index(p) < order.index(s.id) for s in layout.in_order() for p in s.parents)


def test_a_subscription_is_noted_once() -> None:
    layout = with_subscription(create_layout(TOPIC, 1), "b")
    assert with_subscription(layout, "b") is layout
    assert with_subscription(layout, "a").subscriptions == ("a", "b")


def test_a_subscription_begins_where_the_layout_says() -> None:
    """Until its cursors are created, the record has the start position.

    A subscription removed earlier leaves nothing.
    """
    before = create_layout(TOPIC, 2)
    listed = with_subscription(before, "audit", {0: Position(3, 4)})
    assert from_record(TOPIC, to_record(listed)) == listed
    assert listed.starting == {"audit": {0: Position(3, 4)}}
    made = begun(listed, "audit")
    assert (made.subscriptions, made.starting, made.epoch) == (("audit",), {}, listed.epoch + 1)
    assert begun(made, "audit") is made
    for layout in (listed, made):
        gone = without_subscription(layout, "audit")
        assert (gone.subscriptions, gone.starting) == ((), {})
        assert gone.epoch > layout.epoch
    assert without_subscription(before, "audit") is before


def test_a_persistent_topic_is_one_segment_for_ever() -> None:
    """A persistent topic has one segment with its name, which is never split or merged."""
    topic = TopicName.parse("persistent://public/default/orders")
    layout = create_layout(topic, 1)
    assert from_record(topic, to_record(layout)) == layout
    assert layout.name_of(0) == topic
    assert {layout.route(key_hash).id for key_hash in (0, 0x8000, HASH_MAX)} == {0}
    assert layout.segment_of(topic) == layout.segments[0]
    for change in (lambda: plan_split(layout, 0), lambda: plan_merge(layout, 0, 1)):
        with pytest.raises(LayoutConflict, match="a persistent:// one is not"):
            change()
    for segments in (0, 2):
        with pytest.raises(InvalidInput, match="has one"):
            create_layout(topic, segments)


def test_a_segment_is_found_by_its_name() -> None:
    """Only the full name matches: another number, range or topic is unknown."""
    layout = create_layout(TOPIC, 2)
    assert layout.segment_of(parse_name("segment://public/default/orders/8000-ffff-1")).id == 1
    for name in (
        "segment://public/default/orders/0000-ffff-1",
        "segment://public/default/orders/8000-ffff-2",
        "segment://public/default/other/8000-ffff-1",
        "persistent://public/default/orders",
        "topic://public/default/orders",
    ):
        with pytest.raises(LayoutConflict, match="there is no segment"):
            layout.segment_of(parse_name(name))


def test_a_plan_is_recognised_after_its_children_were_replaced_and_removed() -> None:
    """The reply to a plan may be lost, and the layout may change before the process reads it again."""
    before = create_layout(TOPIC, 1)
    planned = plan_split(before, 0)
    first, second = planned.segments[0].children
    assert not has_change(before, planned, (0,))
    done = finish_change(planned, (0,))
    assert has_change(done, planned, (0,))
    later = finish_change(plan_split(done, first), (first,))
    assert has_change(later, planned, (0,))
    segments = {number: one for number, one in later.segments.items() if number != first}
    assert has_change(replace(later, segments=segments), planned, (0,))
    assert has_change(replace(later, segments={second: later.segments[second]}), planned, (0,))
    assert not has_change(replace(later, segments={}), planned, (0,))
    other = plan_merge(done, first, second)
    assert not has_change(done, other, (first, second))
    assert has_change(other, other, (first, second))
