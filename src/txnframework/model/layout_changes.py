"""Changes of a topic's layout: each returns the layout after it; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from txnframework.errors import InvalidInput, LayoutConflict
from txnframework.model.layout import FIRST_LIFE, HASH_MAX, Layout, Segment, SegmentState
from txnframework.model.names import ONLY_SEGMENT_ID, PERSISTENT, TopicName
from txnframework.model.positions import Position


def create_layout(topic: TopicName, segments: int, after: Layout | None = None) -> Layout:
    """
    Return the first layout of a topic: ``segments`` ranges of nearly equal size.

    ``after``: the remaining layout of a deleted topic of this name, whose segment ids are not used again. A
    persistent topic's only segment has id 0 in each life.

    :raises InvalidInput: the number of segments is not possible; a persistent topic has one.
    """
    if topic.domain == PERSISTENT and segments != 1:
        raise InvalidInput(
            f"{topic} cannot have {segments} segments: a persistent:// topic has one; use a topic:// topic for more"
        )
    if not 1 <= segments <= HASH_MAX + 1:
        raise InvalidInput(f"{topic} cannot have {segments} segments: a topic has 1 to {HASH_MAX + 1}")
    bounds = [(HASH_MAX + 1) * number // segments for number in range(segments + 1)]
    first, epoch, life = (0, 1, FIRST_LIFE) if after is None else (after.next_id, after.epoch + 1, after.life + 1)
    if topic.domain == PERSISTENT:
        first = ONLY_SEGMENT_ID
    made = {
        first + number: Segment(first + number, bounds[number], bounds[number + 1] - 1) for number in range(segments)
    }
    return Layout(topic, epoch, first + segments, made, life=life)


def plan_split(layout: Layout, segment_id: int) -> Layout:
    """Return the layout with a planned split of an active segment at ``start + (end - start) // 2``."""
    segment = _changeable(layout, segment_id)
    if segment.start == segment.end:
        raise LayoutConflict(str(layout.topic), f"segment {segment_id} holds one hash value and cannot split")
    middle = segment.start + (segment.end - segment.start) // 2
    return _plan(layout, (segment,), ((segment.start, middle), (middle + 1, segment.end)))


def plan_merge(layout: Layout, segment_id: int, other_id: int) -> Layout:
    """Return the layout with a planned merge of two active neighbours."""
    low, high = sorted(
        (_changeable(layout, segment_id), _changeable(layout, other_id)), key=lambda segment: segment.start
    )
    if low.end + 1 != high.start:
        pairs = ", ".join(f"{one.id} and {other.id}" for one, other in pairwise(layout.active()))
        reason = f"segments {segment_id} and {other_id} are not neighbours (neighbours: {pairs or 'none'})"
        raise LayoutConflict(str(layout.topic), reason)
    return _plan(layout, (low, high), ((low.start, high.end),))


def has_change(layout: Layout, planned: Layout, parents: tuple[int, ...]) -> bool:
    """
    Return whether a layout has the change of ``parents`` that ``planned`` has, to recognise a plan that was stored.

    The parents and the children may have been replaced since, and some of them removed. Ids are never used again, so
    one that is left still shows the change.
    """
    children = planned.segments[parents[0]].children
    left = [layout.segments[one] for one in parents if one in layout.segments]
    born = [layout.segments[one] for one in children if one in layout.segments]
    if any(one.children != children for one in left):
        return False
    return bool(left or born) and all(_as_planned(one) == _as_planned(planned.segments[one.id]) for one in born)


def _as_planned(segment: Segment) -> Segment:
    return replace(segment, state=SegmentState.PLANNED, children=())


def finish_change(layout: Layout, parents: tuple[int, ...]) -> Layout:
    """Return the layout with the planned change of ``parents``, which must be sealed, marked as done."""
    segments = dict(layout.segments)
    for parent in parents:
        segments[parent] = replace(segments[parent], state=SegmentState.REPLACED)
    return replace(layout, epoch=layout.epoch + 1, segments=segments)


def planned_changes(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Return the parents of every planned change that is not done."""
    changes = {
        layout.segments[segment.children[0]].parents
        for segment in layout.segments.values()
        if segment.state is SegmentState.PLANNED
    }
    return tuple(sorted(changes))


def with_subscription(layout: Layout, subscription: str, starts: Mapping[int, Position] | None = None) -> Layout:
    """Return the layout that lists ``subscription``, whose cursors are to be created at ``starts``."""
    if subscription in layout.subscriptions:
        return layout
    names = tuple(sorted((*layout.subscriptions, subscription)))
    starting = {**layout.starting, subscription: dict(starts or {})}
    return replace(layout, epoch=layout.epoch + 1, subscriptions=names, starting=starting)


def without_subscription(layout: Layout, subscription: str) -> Layout:
    """Return the layout that does not list ``subscription``."""
    if subscription not in layout.subscriptions:
        return layout
    names = tuple(name for name in layout.subscriptions if name != subscription)
    return replace(begun(layout, subscription), epoch=layout.epoch + 1, subscriptions=names)


def begun(layout: Layout, subscription: str) -> Layout:
    """Return the layout in which all cursors of ``subscription`` are created."""
    if subscription not in layout.starting:
        return layout
    starting = {name: starts for name, starts in layout.starting.items() if name != subscription}
    return replace(layout, epoch=layout.epoch + 1, starting=starting)


def with_next_id(layout: Layout, next_id: int) -> Layout:
    """Return the layout whose next segment id is at least ``next_id``."""
    return replace(layout, epoch=layout.epoch + 1, next_id=max(layout.next_id, next_id))


def with_family(layout: Layout, family: str) -> Layout:
    """Return the layout which records that only ``family`` can decide the outcomes of its transactions here."""
    if family in layout.families:
        return layout
    return replace(layout, epoch=layout.epoch + 1, families=tuple(sorted((*layout.families, family))))


def deleted(layout: Layout) -> Layout:
    """Return the layout of a deleted topic, which names the segments and subscriptions that are still to be removed."""
    return layout if layout.deleted else replace(layout, epoch=layout.epoch + 1, deleted=True)


def ended_at(layout: Layout, ledger_id: int) -> Layout:
    """Return the layout of a deleted topic whose last ledger id is ``ledger_id``."""
    return replace(layout, epoch=layout.epoch + 1, last_ledger=ledger_id)


def removed(layout: Layout) -> Layout:
    """Return the layout of a deleted topic of which nothing is left to remove."""
    return replace(
        layout,
        epoch=layout.epoch + 1,
        segments={},
        subscriptions=(),
        starting={},
        last_ledger=None,
        families=(),
        migration=None,
        origin=None,
    )


def _changeable(layout: Layout, segment_id: int) -> Segment:
    if layout.topic.domain == PERSISTENT:
        raise LayoutConflict(str(layout.topic), "only topic:// topics are split and merged, a persistent:// one is not")
    segment = layout.segments.get(segment_id)
    active = layout.active()
    known = ", ".join(str(one.id) for one in active)
    if segment is None:
        raise LayoutConflict(str(layout.topic), f"there is no segment {segment_id} (active: {known})")
    if segment not in active or segment.state is not SegmentState.ACTIVE:
        raise LayoutConflict(str(layout.topic), f"segment {segment_id} is not active (active: {known})")
    return segment


def _plan(layout: Layout, parents: tuple[Segment, ...], ranges: tuple[tuple[int, int], ...]) -> Layout:
    segments = dict(layout.segments)
    ids = tuple(range(layout.next_id, layout.next_id + len(ranges)))
    for parent in parents:
        segments[parent.id] = replace(parent, state=SegmentState.PLANNED, children=ids)
    for child, (start, end) in zip(ids, ranges, strict=True):
        segments[child] = Segment(child, start, end, parents=tuple(parent.id for parent in parents))
    return replace(layout, epoch=layout.epoch + 1, next_id=layout.next_id + len(ids), segments=segments)
