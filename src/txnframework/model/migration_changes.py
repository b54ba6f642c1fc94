"""Changes of layouts by a migration of a topic between families: each returns the layout after it; pure."""

from __future__ import annotations

from dataclasses import replace

from txnframework.model.layout import Layout, Segment, SegmentState
from txnframework.model.layout_changes import deleted, removed
from txnframework.model.names import HASH_MAX, ONLY_SEGMENT_ID, TopicName
from txnframework.model.positions import Position
from txnframework.model.topic_migration import Migration, MigrationOrigin, MigrationStep


def planned(layout: Layout, to: TopicName, now_ms: int) -> Layout:
    """Return the layout with a planned migration to the topic ``to``."""
    return _with(layout, Migration(to, MigrationStep.PLANNED, now_ms))


def recorded(layout: Layout, upto: Position) -> Layout:
    """Return the layout whose planned migration has recorded the outcomes of all entries up to a position."""
    assert layout.migration is not None
    return _with(layout, replace(layout.migration, recorded=upto))


def decided(layout: Layout, upto: Position) -> Layout:
    """Return the layout whose planned migration is decided, with the outcomes up to a position recorded."""
    assert layout.migration is not None
    return _with(layout, replace(layout.migration, step=MigrationStep.DECIDED, recorded=upto))


def withdrawn(layout: Layout) -> Layout:
    """Return the layout without its planned migration."""
    return _with(layout, None)


def done(layout: Layout) -> Layout:
    """Return the layout of a topic that has migrated: it names the topic that it has become."""
    assert layout.migration is not None
    left = replace(layout, segments={}, subscriptions=(), starting={}, families=())
    return _with(left, replace(layout.migration, step=MigrationStep.DONE))


def reserved(to: TopicName, origin: TopicName, before: Layout | None) -> Layout:
    """
    Return the layout that reserves the name ``to`` for a migration.

    ``before``: the remaining layout of a deleted topic of this name, or an earlier reservation.
    """
    if before is None:
        return Layout(to, 1, 0, {}, deleted=True, life=0, reserved_for=origin)
    return replace(before, epoch=before.epoch + 1, reserved_for=origin)


def released(layout: Layout) -> Layout:
    """Return the layout of a reserved name without the reservation."""
    return replace(layout, epoch=layout.epoch + 1, reserved_for=None)


def migrated(old: Layout, reservation: Layout, last_ledger: int) -> Layout:
    """
    Return the first layout of the new topic.

    Its life is greater than the lives of both topics. So a process that holds a segment or a dispatch of the old topic
    opens it again, as after a deletion, before it uses it for the new one. The segment keeps its id and name. The child
    has an id that no earlier segment of the new name has.
    """
    (last,) = old.active()
    child = max(ONLY_SEGMENT_ID + 1, reservation.next_id)
    segments = {
        last.id: replace(last, state=SegmentState.REPLACED, children=(child,)),
        child: Segment(child, 0, HASH_MAX, SegmentState.ACTIVE, (last.id,)),
    }
    return replace(
        reservation,
        epoch=reservation.epoch + 1,
        next_id=child + 1,
        segments=segments,
        subscriptions=old.subscriptions,
        # Their cursors on the old segment exist, or begin where the old record says. Those on the child begin at its
        # first entry.
        starting={name: dict(old.starting.get(name, {})) for name in old.subscriptions},
        deleted=False,
        life=next_life(old, reservation),
        families=(),
        migration=None,
        origin=MigrationOrigin(old.topic, old.life, last_ledger, old.families),
        reserved_for=None,
    )


def next_life(old: Layout, reservation: Layout) -> int:
    """Return the life of the new topic."""
    return max(old.life, reservation.life) + 1


def ended(layout: Layout, after: Layout) -> Layout:
    """
    Return the layout of a topic that had become another one, ``after``, which was deleted: the name is free.

    A later topic of this name has a greater life than both, because the segment of either topic has the same name.
    """
    return replace(removed(deleted(layout)), life=max(layout.life, after.life))


def _with(layout: Layout, migration: Migration | None) -> Layout:
    return replace(layout, epoch=layout.epoch + 1, migration=migration)
