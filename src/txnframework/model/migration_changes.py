"""Changes of layouts by a migration of a topic between families: each returns the layout after it; pure."""

from __future__ import annotations

from dataclasses import replace

from txnframework.model.layout import Layout, Segment, SegmentState
from txnframework.model.layout_changes import deleted, removed
from txnframework.model.names import HASH_MAX, ONLY_SEGMENT_ID, PERSISTENT, TopicName
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


def done(layout: Layout, after: Layout) -> Layout:
    """
    Return the layout of a topic that has become the topic of ``after``: it names that one, and what it was before.

    The id of the child is not used again, because its name may be of this topic.
    """
    assert layout.migration is not None
    next_id = max(layout.next_id, after.next_id)
    left = replace(layout, next_id=next_id, segments={}, subscriptions=(), starting={}, families=())
    return _with(left, replace(layout.migration, step=MigrationStep.DONE))


def unready(layout: Layout) -> str:
    """Return what has to be done before a topic of several segments can become a persistent one; empty: nothing."""
    active = layout.active()
    if layout.topic.domain != PERSISTENT and any(one.state is SegmentState.PLANNED for one in active):
        return "one of its segments is being split or merged; wait until it is done"
    if len(active) > 1:
        ids = ", ".join(str(one.id) for one in active)
        return (
            f"a {PERSISTENT}:// topic takes writes in one segment; merge its segments {ids} first, one pair at a time"
        )
    return ""


def reserved(to: TopicName, origin: TopicName, before: Layout | None) -> Layout:
    """
    Return the layout that reserves the name ``to`` for a migration: that of a deleted topic, or of a former name.

    ``before``: the remaining layout of a deleted topic of this name, of a topic that has become ``origin``, or an
    earlier reservation.
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
    opens it again, as after a deletion, before it uses it for the new one. The segments keep their ids and names. The
    child has an id that no earlier segment of either topic has. In a persistent topic it has the name of a segment of
    the old topic, because a former segment may have the topic's own name.
    """
    (last,) = old.active()
    child = max(ONLY_SEGMENT_ID + 1, old.next_id, reservation.next_id)
    segments = {one.id: replace(one, topic=one.topic or old.topic) for one in old.in_order()}
    segments[last.id] = replace(segments[last.id], state=SegmentState.REPLACED, children=(child,))
    named = old.topic if reservation.topic.domain == PERSISTENT else None
    segments[child] = Segment(child, 0, HASH_MAX, SegmentState.ACTIVE, (last.id,), topic=named)
    origin = MigrationOrigin(old.topic, old.life, last_ledger, old.families, max(old.segments))
    if old.origin is not None:
        families = tuple(sorted({*old.families, *old.origin.families}))
        origin = replace(origin, last_ledger=old.origin.last_ledger, families=families, earlier=old.origin.formers)
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
        origin=origin,
        reserved_for=None,
    )


def next_life(old: Layout, reservation: Layout) -> int:
    """Return the life of the new topic."""
    return max(old.life, reservation.life) + 1


def ended(layout: Layout, after: Layout) -> Layout:
    """
    Return the layout of a topic that had become another one, ``after``, which was deleted: the name is free.

    A later topic of this name has a greater life than both, and other segment ids, because segments of either topic may
    have names of the other one.
    """
    left = removed(deleted(layout))
    return replace(left, life=max(layout.life, after.life), next_id=max(layout.next_id, after.next_id))


def _with(layout: Layout, migration: Migration | None) -> Layout:
    return replace(layout, epoch=layout.epoch + 1, migration=migration)
