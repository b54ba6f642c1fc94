"""What the records of two topics hold while one of them becomes the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from txnframework.errors import LayoutConflict
from txnframework.model import migration_changes as changes
from txnframework.model.layout import Layout, SegmentState, from_record, to_record
from txnframework.model.layout_changes import (
    create_layout,
    finish_change,
    plan_merge,
    plan_split,
    removed,
    with_family,
    with_subscription,
)
from txnframework.model.metadata import Key, Record
from txnframework.model.names import TopicName, parse_name
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.records import FORMAT, MIGRATION_FORMAT, RETURN_FORMAT, TopicRecord, decode, encode
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
    done = changes.done(decided, new_layout())
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
    """Segment ids of an earlier topic of the new name are not used again, and its life is over."""
    earlier = replace(removed(create_layout(NEW, 3, None)), deleted=True, life=9)
    layout = new_layout(earlier)
    assert [one.id for one in layout.in_order()] == [0, earlier.next_id]
    assert layout.life == 10
    assert replace(changes.released(changes.reserved(NEW, OLD, earlier)), epoch=earlier.epoch) == earlier


def test_the_old_name_is_free_after_the_deletion() -> None:
    """A later topic of the old name has another life than both topics whose segment had this name."""
    done, layout = changes.done(old_layout(), new_layout()), new_layout()
    ended = changes.ended(done, layout)
    assert (ended.deleted, ended.moved_to, ended.migration) == (True, None, None)
    again = create_layout(OLD, 1, ended)
    assert again.life > max(layout.life, done.life)
    assert not layout.continues(again)


def test_records_and_their_formats() -> None:
    """Each layout is stored and read again; only those that a migration changed have the later format."""
    decided = old_layout()
    done = changes.done(decided, new_layout())
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


EARLIER = (
    b'{"epoch":2,"next_id":2,"segments":[{"id":0,"start":0,"end":65535,"state":"replaced","parents":[],"children":[1]},'
    b'{"id":1,"start":0,"end":65535,"state":"active","parents":[0],"children":[]}],"subscriptions":["billing"],'
    b'"starting":{"billing":{}},"deleted":false,"life":2,"last_ledger":null,"families":[],"origin":{"topic":'
    b'"persistent://public/default/orders","life":1,"last_ledger":1,"families":["log"]},"format":4}'
)
"""As a release stored it that knew no way back: a topic that had migrated from ``persistent://``."""


def test_a_topic_that_an_earlier_release_migrated() -> None:
    """It is read as what it is, and stored as that release can read it, until it migrates back."""
    layout = from_record(NEW, decode(TopicRecord, Record(Key("/topic"), EARLIER, 1)))
    assert [str(layout.name_of(one.id)) for one in layout.in_order()] == [
        str(OLD),
        "segment://public/default/orders/0000-ffff-1",
    ]
    assert (layout.is_adopted(0), layout.is_adopted(1), layout.was(OLD, 1)) == (True, False, True)
    assert encode(to_record(layout)) == EARLIER
    former = changes.done(changes.planned(create_layout(OLD, 1, None), NEW, 5), layout)
    returned = (
        changes.planned(layout, OLD, 7),
        changes.reserved(OLD, NEW, former),
        changes.migrated(changes.planned(layout, OLD, 7), changes.reserved(OLD, NEW, former), last_ledger=9),
    )
    assert [to_record(one).format for one in returned] == [RETURN_FORMAT] * 3
    assert [stored(one) for one in returned] == [*returned]


def back_layout() -> Layout:
    """Return the persistent topic that the new topic has become, after a split and a merge."""
    layout = plan_split(new_layout(), 1)
    layout = finish_change(layout, (1,))
    layout = finish_change(plan_merge(layout, 2, 3), (2, 3))
    former = changes.done(old_layout(), new_layout())
    decided = changes.decided(changes.planned(layout, OLD, 6), EARLIEST)
    return changes.migrated(decided, changes.reserved(OLD, NEW, former), last_ledger=9)


def test_the_way_back() -> None:
    """The persistent topic has all segments under their names, and one more; it continues both topics."""
    layout = back_layout()
    assert [str(layout.name_of(one.id)).rpartition("/")[2] for one in layout.in_order()] == [
        "orders",
        "0000-ffff-1",
        "0000-7fff-2",
        "8000-ffff-3",
        "0000-ffff-4",
        "0000-ffff-5",
    ]
    (active,) = layout.active()
    assert (active.id, active.parents, layout.is_adopted(4), layout.is_adopted(5)) == (5, (4,), True, False)
    assert layout.segment_of(parse_name("segment://public/default/orders/0000-ffff-5")) == active
    assert layout.has(OLD)
    assert layout.continues(new_layout())
    assert layout.continues(old_layout())
    assert not old_layout().continues(layout)
    assert layout.life > new_layout().life > old_layout().life
    assert (layout.moved_to, layout.migration, layout.reserved_for) == (None, None, None)
    assert layout.origin is not None
    assert (layout.origin.families, layout.origin.last_ledger) == (("log",), 4)
    assert stored(layout) == layout


def test_there_again() -> None:
    """A topic that migrates a third time uses no segment id again, and knows all its former names."""
    layout = back_layout()
    decided = changes.decided(changes.planned(with_family(layout, "log"), NEW, 7), AT)
    former = changes.done(changes.planned(new_layout(), OLD, 6), layout)
    again = changes.migrated(decided, changes.reserved(NEW, OLD, former), last_ledger=12)
    (active,) = again.active()
    assert str(again.name_of(active.id)) == "segment://public/default/orders/0000-ffff-6"
    assert [again.continues(one) for one in (layout, new_layout(), old_layout())] == [True, True, True]
    assert stored(again) == again
    ended = changes.ended(former, again)
    assert create_layout(NEW, 1, ended).in_order()[0].id > active.id


def test_what_cannot_go_back() -> None:
    """Several segments that take writes are merged first, and a change that is planned is finished."""
    layout = new_layout()
    assert changes.unready(layout) == ""
    planned = plan_split(layout, 1)
    assert "is being split or merged" in changes.unready(planned)
    assert "merge its segments 2, 3 first" in changes.unready(finish_change(planned, (1,)))
    assert changes.unready(old_layout()) == ""
