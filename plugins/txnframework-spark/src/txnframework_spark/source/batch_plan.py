"""Decisions about the content of a micro-batch: pure, no I/O.

The rules, and their reasons:

* A child segment begins only when all its parents were finished *before* the batch, because the tasks of one batch run
  in any order.
* A batch never contains both messages that the cursor has passed and others. Such a batch could be neither committed,
  which would repeat the first part, nor dropped, which would lose the second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from txnframework.model.layout import Layout
from txnframework.model.positions import EARLIEST, Position
from txnframework_spark.microbatch.registration import Range
from txnframework_spark.source.offsets import Offset

# -- which segments are readable ----------------------------------------------------------------------


def select_segments(layout: Layout, chosen: Collection[int]) -> Layout:
    """Return the layout with the chosen segments only; their parents are the nearest chosen ancestors."""
    segments = {
        number: replace(
            segment,
            parents=_nearest(number, chosen, lambda one: layout.segments[one].parents),
            children=_nearest(number, chosen, lambda one: layout.segments[one].children),
        )
        for number, segment in layout.segments.items()
        if number in chosen
    }
    return replace(layout, segments=segments)


def _nearest(number: int, chosen: Collection[int], following: Callable[[int], Iterable[int]]) -> tuple[int, ...]:
    found: set[int] = set()
    waiting = list(following(number))
    while waiting:
        one = waiting.pop()
        if one in chosen:
            found.add(one)
        else:
            waiting.extend(following(one))
    return tuple(sorted(found))


def readable(layout: Layout, held: Collection[str], finished: Collection[str]) -> frozenset[str]:
    """Return the segments of one topic to read.

    ``held``: segments in the query's offset; ``finished``: names of held segments that are sealed and completely read.

    A segment joins when all its parents are finished; it leaves when it is finished and all its children have joined. A
    segment that is not held was finished if one of its descendants is held; otherwise it was not begun. A joining
    segment may itself be finished: repeat the call with the result until it does not change.
    """
    found = set(held)
    for segment in layout.in_order():
        name = str(layout.name_of(segment.id))
        if name in found or _has_held_descendant(layout, segment.id, found):
            continue
        if all(_is_done(layout, parent, found, finished) for parent in segment.parents):
            found.add(name)
    for segment in layout.in_order():
        name = str(layout.name_of(segment.id))
        if (
            name in finished
            and segment.children
            and all(_has_begun(layout, child, found) for child in segment.children)
        ):
            found.discard(name)
    return frozenset(found)


def parents_of_unbegun(layout: Layout, held: Collection[str]) -> list[str]:
    """Return the held segments of a topic with a child that was not begun; the child's messages are newer."""
    names = {segment.id: str(layout.name_of(segment.id)) for segment in layout.in_order()}
    return [
        name
        for number, name in names.items()
        if name in held and any(not _has_begun(layout, child, held) for child in layout.segments[number].children)
    ]


def unfinished_segments(layout: Layout, held: Collection[str]) -> list[str]:
    """Return the segments of a topic that a query at ``held`` has not finished, parents before children."""
    names = {segment.id: str(layout.name_of(segment.id)) for segment in layout.in_order()}
    return [name for number, name in names.items() if name in held or not _has_held_descendant(layout, number, held)]


def _has_begun(layout: Layout, segment_id: int, held: Collection[str]) -> bool:
    return str(layout.name_of(segment_id)) in held or _has_held_descendant(layout, segment_id, held)


def _is_done(layout: Layout, segment_id: int, held: Collection[str], finished: Collection[str]) -> bool:
    name = str(layout.name_of(segment_id))
    if name in held:
        return name in finished
    return _has_held_descendant(layout, segment_id, held)


def _has_held_descendant(layout: Layout, segment_id: int, held: Collection[str]) -> bool:
    waiting = list(layout.segments[segment_id].children)
    while waiting:
        child = waiting.pop()
        if str(layout.name_of(child)) in held:
            return True
        waiting.extend(layout.segments[child].children)
    return False


# -- how far a batch reads ----------------------------------------------------------------------------


def within_cursors(
    starts: Mapping[str, Position], ends: Mapping[str, Position], cursors: Mapping[str, Position]
) -> dict[str, Position]:
    """Return the end of each segment such that the batch lies completely before or completely after the cursors.

    If an older checkpoint was restored, a segment may have unread messages before its cursor. As long as there are such
    segments, only these are read, and only up to their cursors. The others do not advance.
    """
    behind = {
        name: min(ends[name], cursors[name])
        for name, start in starts.items()
        if name in cursors and start < min(ends[name], cursors[name])
    }
    if not behind:
        return {name: max(ends[name], start) for name, start in starts.items()}
    return {name: behind.get(name, start) for name, start in starts.items()}


def shares(waiting: Mapping[str, int], messages_max: int) -> dict[str, int]:
    """Return each segment's number of messages for a batch: in proportion to its waiting messages, at least one.

    :param waiting: messages by segment, none of them 0.
    :returns: numbers with a sum of at most ``messages_max``. If there are more segments than that, the first ones get
        one message each and the others none.
    """
    total = sum(waiting.values())
    if total <= messages_max:
        return dict(waiting)
    given: dict[str, int] = {}
    left = messages_max
    rest = total
    # In ascending order, so that rounding up to one message never reduces a share that was assigned before.
    for name, count in sorted(waiting.items(), key=lambda item: (item[1], item[0])):
        share = min(count, left, max(1, left * count // rest))
        rest -= count
        left -= share
        if share:
            given[name] = share
    return given


def parts(counts: Sequence[int], at_least: int) -> list[int]:
    """Return the number of tasks for each range, so that there are about ``at_least`` tasks in total.

    The numbers are in proportion to the messages, at least one each; all are one if there are enough ranges already.
    """
    total = sum(counts)
    if len(counts) >= at_least or not total:
        return [1] * len(counts)
    return [max(1, round(at_least * count / total)) for count in counts]


def ranges_between(start: Offset, end: Offset) -> tuple[Range, ...]:
    """Return the ranges of a batch without empty ones.

    A segment that only ``end`` contains is read from its beginning, unless ``end`` contains the start of the batch.
    ``end`` contains the start after a topic joined. It also does after an initial offset, because a replay of that
    batch gets another initial offset.
    """
    if end.initial or (start.frontier == end.frontier and not start.initial):
        return ()
    begun = start.frontier if end.began is None else end.began
    found = []
    for topic, segments in sorted(end.frontier.items()):
        before = begun.get(topic, {})
        for segment, offset in sorted(segments.items()):
            at = before[segment].at if segment in before else EARLIEST
            if at < offset.at:
                found.append(Range(topic, segment, at, offset.at, offset.incarnation))
    return tuple(found)
