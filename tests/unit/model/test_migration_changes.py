"""The records of two topics during a migration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from txnframework.errors import LayoutConflict
from txnframework.model import migration_changes as changes
from txnframework.model.layout import Layout, SegmentState, from_record, to_record
from txnframework.model.layout_changes import (
    create_layout,
    plan_split,
    removed,
    with_family,
    with_subscription,
)
from txnframework.model.metadata import Key, Record
from txnframework.model.names import TopicName, parse_name
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.records import FORMAT, MIGRATION_FORMAT, TopicRecord, decode, encode
from txnframework.model.topic_migration import MigrationStep

OLD, NEW = TopicName.parse("persistent://public/default/orders"), TopicName.parse("topic://public/default/orders")
AT = Position(3, 7)


def old_layout() -> Layout:
    layout = with_subscription(create_layout(OLD, 1, None), "billing", {0: AT})
    return changes.decided(changes.planned(with_family(layout, "log"), NEW, 5), AT)


def new_layout(before: Layout | None = None) -> Layout:
    return changes.migrated(old_layout(), changes.reserved(NEW, OLD, before), last_ledger=4)


def stored(layout: Layout) -> Layout:
    record = Record(Key("/topic"), encode(to_record(layout)), 1)
    return from_record(layout.topic, decode(TopicRecord, record))


def test_steps_of_the_old_topic() -> None:
    """A plan can be withdrawn, a decided migration only be finished; afterwards the record just names the new topic."""
    plain = create_layout(OLD, 1, None)
    planned = changes.planned(plain, NEW, 5)
    assert (planned.is_migrating, planned.moved_to) == (False, None)
    assert replace(changes.withdrawn(planned), epoch=plain.epoch) == plain
    decided = changes.decided(changes.recorded(planned, AT), AT)
    assert decided.migration is not None
    assert (decided.is_migrating, decided.moved_to, decided.migration.recorded) == (True, None, AT)
    done = changes.done(decided)
    assert (done.is_migrating, done.moved_to, done.segments, done.deleted) == (False, NEW, {}, False)
    assert [one.epoch for one in (plain, planned, decided, done)] == [1, 2, 4, 5]


def test_the_first_layout_of_the_new_topic() -> None:
    """It begins with the old segment, under its old name, and with one child that takes the writes."""
    layout = new_layout()
    first, child = layout.in_order()
    assert (layout.name_of(first.id), first.state, first.children) == (OLD, SegmentState.REPLACED, (child.id,))
    assert str(layout.name_of(child.id)) == "segment://public/default/orders/0000-ffff-1"
    assert [one.id for one in layout.active()] == [child.id]
    assert layout.is_adopted(first.id)
    assert not layout.is_adopted(child.id)
    assert layout.segment_of(OLD) == first
    with pytest.raises(LayoutConflict):
        layout.segment_of(parse_name("segment://public/default/orders/0000-ffff-0"))
    assert (layout.subscriptions, layout.starting) == (("billing",), {"billing": {0: AT}})
    assert layout.origin is not None
    assert (layout.origin.families, layout.origin.last_ledger, layout.families) == (("log",), 4, ())
    assert layout.continues(old_layout())
    assert layout.life > old_layout().life
    assert plan_split(layout, child.id).segments[child.id].state is SegmentState.PLANNED


def test_a_name_that_was_used_before() -> None:
    """Segment ids of an earlier topic of the new name are not reused, and its life has ended."""
    earlier = replace(removed(create_layout(NEW, 3, None)), deleted=True, life=9)
    layout = new_layout(earlier)
    assert [one.id for one in layout.in_order()] == [0, earlier.next_id]
    assert layout.life == 10
    assert replace(changes.released(changes.reserved(NEW, OLD, earlier)), epoch=earlier.epoch) == earlier


def test_the_old_name_is_free_after_the_deletion() -> None:
    """A later topic of the old name has another life than both topics whose segment had this name."""
    done, layout = changes.done(old_layout()), new_layout()
    ended = changes.ended(done, layout)
    assert (ended.deleted, ended.moved_to, ended.migration) == (True, None, None)
    again = create_layout(OLD, 1, ended)
    assert again.life > max(layout.life, done.life)
    assert not layout.continues(again)


def test_records_and_their_formats() -> None:
    """Each layout is stored and read again; only those that a migration changed have the later format."""
    decided = old_layout()
    done = changes.done(decided)
    for layout in (decided, done, new_layout(), changes.reserved(NEW, OLD, None)):
        assert stored(layout) == layout
        assert to_record(layout).format == MIGRATION_FORMAT
    for layout in (
        create_layout(OLD, 1, None),
        changes.withdrawn(changes.planned(create_layout(OLD, 1, None), NEW, 5)),
    ):
        assert stored(layout) == layout
        assert to_record(layout).format == FORMAT
    assert decided.migration is not None
    assert (decided.migration.step, decided.migration.recorded > EARLIEST) == (MigrationStep.DECIDED, True)
