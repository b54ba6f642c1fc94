"""What a micro-batch reads: pure decisions, no I/O.

The rules, and what goes wrong without them:

* A child segment begins only when all its parents were finished *before* the batch: tasks of one batch run in any
  order.
* A batch never holds both what the cursor has passed and what it has not: such a batch could be neither committed (it
  would repeat the first part) nor dropped (it would lose the second).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from txnframework.model.layout import Layout
from txnframework.model.positions import EARLIEST, Position
from txnframework_spark.microbatch.ranges import Range
from txnframework_spark.source.offsets import Offset

# -- which segments are readable ----------------------------------------------------------------------


def part_of(layout: Layout, chosen: Collection[int]) -> Layout:
    """Return the layout with the chosen segments only; each follows the nearest chosen ones that it descends from."""
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
    """Return the segments of one topic to read on from.

    ``held``: those that the query is in; ``finished``: names of held segments that are sealed and have nothing left for
    the query.

    A segment joins when all its parents are finished; it leaves when it is finished and all its children have
    joined. One that is not held was finished if a descendant of it is held, and was not begun otherwise. One that
    joins may be finished itself: ask again with it until nothing changes.
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
    """Return the held segments of a topic of which a child is not begun: it holds what was stored behind theirs."""
    names = {segment.id: str(layout.name_of(segment.id)) for segment in layout.in_order()}
    return [
        name
        for number, name in names.items()
        if name in held and any(not _has_begun(layout, child, held) for child in layout.segments[number].children)
    ]


def left_to_read(layout: Layout, held: Collection[str]) -> list[str]:
    """Return the segments of a topic that a query that is in ``held`` has not finished, parents before children."""
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
    """Return how far each segment may be read so that the batch lies wholly before or wholly behind the cursors.

    As long as one segment has something left that its cursor passed (an older checkpoint was restored), only such
    segments are read, and only up to their cursors; the others stay where they are.
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
    """Return how many messages each segment may contribute: in proportion to what waits there, at least one each.

    ``waiting``: messages by segment, none of them 0. The sum is at most ``messages_max``, unless there are more
    segments than that: then the first ones get one each and the others nothing.
    """
    total = sum(waiting.values())
    if total <= messages_max:
        return dict(waiting)
    given: dict[str, int] = {}
    left = messages_max
    rest = total
    # From the least to the most, so that rounding up to one message never takes from what others were given already.
    for name, count in sorted(waiting.items(), key=lambda item: (item[1], item[0])):
        share = min(count, left, max(1, left * count // rest))
        rest -= count
        left -= share
        if share:
            given[name] = share
    return given


def parts(counts: Sequence[int], at_least: int) -> list[int]:
    """Return into how many tasks to cut ranges of so many messages, so that there are about ``at_least`` of them.

    In proportion to their messages, at least one each; as they are, where there are as many already.
    """
    total = sum(counts)
    if len(counts) >= at_least or not total:
        return [1] * len(counts)
    return [max(1, round(at_least * count / total)) for count in counts]


def ranges_between(start: Offset, end: Offset) -> tuple[Range, ...]:
    """Return what a batch reads, empty ranges left out.

    A segment that ``end`` has and ``start`` has not is read from its beginning, unless ``end`` says where the batch
    began. It does where a topic joined, and behind an initial offset, which is asked again when its batch is replayed.
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
