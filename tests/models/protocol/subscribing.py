"""Subscriptions begin and end by being listed in the topic's layout and removed from it; their cursors follow
(``txnframework.broker.topics.subscriptions`` and ``txnframework.broker.cursors`` follow this).

Who takes part: *two subscribers*, who remove what remains of an earlier life and then list the name; an *unsubscriber*,
who removes the name and then gives up its cursors; a *consumer*, who needs a cursor and creates a missing one, as
subscribers and splitters do; and a process that *splits* the topic's only segment, by which the layout gets one more.
Each life begins somewhere else, so a cursor names the life that it was made for.

The rule: while a name is listed each of its cursors was made for this life, and is not given up; once it is removed and
all have finished, no cursor is left; and acknowledgments that wait for a cursor of one life never fit another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

LIVES_MAX = 2

STALE = "a cursor of an earlier life counts in the next one"
GIVEN_UP = "a cursor was given up while its life goes on"
LEFT = "a cursor is left of a subscription that was given up"
MIXED_UP = "cursors of two lives have one incarnation"


class Rule(StrEnum):
    """What keeps the lives of a subscription apart."""

    MAKER_READS_CURSOR_FIRST = "whoever makes a cursor reads what stands of it before the list"
    GIVER_READS_CURSOR_FIRST = "whoever gives a cursor up reads it before the list"
    TOMBSTONE_IN_ANY_CASE = "giving up writes a tombstone also where there was no cursor, or one already"
    TOMBSTONES_STAY = "a cursor that is given up leaves a tombstone, so that its version never starts over"
    INCARNATIONS_GO_ON = "a tombstone keeps the incarnation, and the next cursor has the one after"
    GIVEN_UP_BEFORE_LISTED = "what stands of an earlier life is written anew before the name is listed"
    LISTED_AS_LOOKED_AT = "the name is listed only in the layout for which that was done"
    NAMED_BEFORE_MADE = "a child is named in the layout before its cursors are made"


HARM = {
    Rule.MAKER_READS_CURSOR_FIRST: LEFT,
    Rule.GIVER_READS_CURSOR_FIRST: GIVEN_UP,
    Rule.TOMBSTONE_IN_ANY_CASE: LEFT,
    Rule.TOMBSTONES_STAY: LEFT,
    Rule.INCARNATIONS_GO_ON: MIXED_UP,
    Rule.GIVEN_UP_BEFORE_LISTED: STALE,
    Rule.LISTED_AS_LOOKED_AT: STALE,
    Rule.NAMED_BEFORE_MADE: LEFT,
}
STATES_MIN = 50_000


class Layout(NamedTuple):
    """The topic's record. ``life``: how often the name was listed; ``segments``: how many there are."""

    version: int = 0
    life: int = 0
    listed: bool = False
    segments: int = 1


class Cursor(NamedTuple):
    """A cursor's record; no record has version 0."""

    version: int = 0
    incarnation: int = 0
    life: int = 0
    lives: bool = False


class Touch(NamedTuple):
    """A cursor that is being made or given up: what was read of it, and for which life the list names it; 0: none."""

    segment: int
    cursor: Cursor | None = None
    listed: int | None = None


class Process(NamedTuple):
    """A subscriber or the unsubscriber. ``seen``: the layout it goes by; ``touch``: the cursor that it gives up."""

    seen: Layout | None = None
    touch: Touch | None = None
    done: bool = False


IDLE = Process()
DONE = Process(done=True)


class State(NamedTuple):
    """``made``: the incarnations of cursors by segment, and the lives for which they were made."""

    layout: Layout = Layout()
    cursors: tuple[Cursor, Cursor] = (Cursor(), Cursor())
    consumer: Touch | None = None
    subscribers: tuple[Process, Process] = (IDLE, IDLE)
    unsubscriber: Process = IDLE
    made: frozenset[tuple[int, int, int]] = frozenset()
    harm: str | None = None


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        layout = state.layout
        if layout.segments == 1:
            yield "a split names a child", state._replace(layout=_changed(layout)._replace(segments=2))
        yield from self._consuming(state)
        first, second = state.subscribers
        for label, after, moved in self._subscribing(state, first):
            yield f"a subscriber {label}", after._replace(subscribers=_either_way(moved, second))
        for label, after, moved in self._subscribing(state, second):
            yield f"a subscriber {label}", after._replace(subscribers=_either_way(first, moved))
        for label, after, moved in self._unsubscribing(state, state.unsubscriber):
            yield f"the unsubscriber {label}", after._replace(unsubscriber=moved)

    def _consuming(self, state: State) -> Iterator[tuple[str, State]]:
        first = self._without is not Rule.MAKER_READS_CURSOR_FIRST
        touch = state.consumer
        if touch is None:
            known = 2 if self._without is Rule.NAMED_BEFORE_MADE else state.layout.segments
            begun = [Touch(segment) for segment in range(known)]
        else:
            begun = [touch]
        for one in begun:
            if one.cursor is None or one.listed is None:
                label, looked = _looked(state, one, first)
                nothing = (looked.cursor is not None and looked.cursor.lives) or looked.listed == 0
                yield f"the consumer {label}", state._replace(consumer=None if nothing else looked)
            else:
                yield self._make(state, one.segment, one.cursor, one.listed)

    def _make(self, state: State, segment: int, before: Cursor, life: int) -> tuple[str, State]:
        if state.cursors[segment].version != before.version:
            return "the consumer is refused, and begins again", state._replace(consumer=None)
        cursor = Cursor(before.version + 1, before.incarnation + 1, life, lives=True)
        made = state.made | {(segment, cursor.incarnation, life)}
        mixed_up = MIXED_UP if len({entry[:2] for entry in made}) < len(made) else None
        after = _written(state, segment, cursor)._replace(consumer=None, made=made, harm=mixed_up)
        return f"the consumer makes cursor {segment} for life {life}", after

    def _subscribing(self, state: State, process: Process) -> Iterator[tuple[str, State, Process]]:
        layout, seen = state.layout, process.seen
        if process.done:
            return
        if seen is None:
            touch = None if self._without is Rule.GIVEN_UP_BEFORE_LISTED else Touch(0)
            if layout.listed:
                yield "finds the name listed", state, DONE
            elif layout.life < LIVES_MAX:
                yield "finds the name not listed", state, Process(layout, touch)
        elif process.touch is not None:
            for label, after, touch in self._giving_up(state, process.touch, seen):
                yield label, after, process._replace(touch=touch)
        elif layout == seen or (self._without is Rule.LISTED_AS_LOOKED_AT and not layout.listed):
            listed = _changed(layout)._replace(listed=True, life=layout.life + 1)
            yield f"lists the name for life {listed.life}", state._replace(layout=listed), DONE
        else:
            yield "finds another layout", state, IDLE

    def _unsubscribing(self, state: State, process: Process) -> Iterator[tuple[str, State, Process]]:
        layout, seen = state.layout, process.seen
        if process.done or layout.life == 0:
            return
        if seen is None:
            if layout.listed:
                yield "finds the name listed", state, Process(layout)
            else:
                yield "finds the name not listed", state, Process(layout, Touch(0))
        elif process.touch is not None:
            for label, after, touch in self._giving_up(state, process.touch, seen):
                yield label, after, DONE if touch is None else process._replace(touch=touch)
        elif layout == seen:
            yield "strikes the name off", state._replace(layout=_changed(layout)._replace(listed=False)), IDLE
        else:
            yield "finds another layout", state, IDLE

    def _giving_up(self, state: State, touch: Touch, seen: Layout) -> Iterator[tuple[str, State, Touch | None]]:
        """Give one cursor after the other up; the touch that follows is None after the last one."""
        segment, cursor = touch.segment, touch.cursor
        following = Touch(segment + 1) if segment + 1 < seen.segments else None
        if cursor is None or touch.listed is None:
            label, looked = _looked(state, touch, self._without is not Rule.GIVER_READS_CURSOR_FIRST)
            yield label, state, following if looked.listed else looked
        elif self._without is Rule.TOMBSTONE_IN_ANY_CASE and not cursor.lives:
            yield f"leaves cursor {segment}, which does not live", state, following
        elif state.cursors[segment].version != cursor.version:
            yield f"is refused, and looks at cursor {segment} again", state, Touch(segment)
        else:
            tombstone = cursor._replace(version=cursor.version + 1, lives=False)
            if self._without is Rule.TOMBSTONES_STAY:
                tombstone = Cursor()
            elif self._without is Rule.INCARNATIONS_GO_ON:
                tombstone = tombstone._replace(incarnation=0)
            goes_on = cursor.lives and state.layout.listed and cursor.life == state.layout.life
            after = _written(state, segment, tombstone)._replace(harm=GIVEN_UP if goes_on else None)
            yield f"gives cursor {segment} up", after, following


def _looked(state: State, touch: Touch, cursor_first: bool) -> tuple[str, Touch]:
    """Read the cursor or the list, whichever is next."""
    cursor, layout = state.cursors[touch.segment], state.layout
    if touch.cursor is None and (cursor_first or touch.listed is not None):
        found = "living" if cursor.lives else "a tombstone" if cursor.version else "not there"
        return f"finds cursor {touch.segment} {found}", touch._replace(cursor=cursor)
    text = f"for life {layout.life}" if layout.listed else "no more, or not yet"
    return f"finds the name listed {text}", touch._replace(listed=layout.life if layout.listed else 0)


def _either_way(one: Process, other: Process) -> tuple[Process, Process]:
    """Return the subscribers in one order, since it makes no difference which of them is which."""
    return (one, other) if hash(one) <= hash(other) else (other, one)


def _changed(layout: Layout) -> Layout:
    return layout._replace(version=layout.version + 1)


def _written(state: State, segment: int, cursor: Cursor) -> State:
    first, second = state.cursors
    return state._replace(cursors=(cursor, second) if segment == 0 else (first, cursor))


def wrong(state: State) -> str | None:
    if state.harm is not None:
        return state.harm
    layout = state.layout
    living = [cursor for cursor in state.cursors if cursor.lives]
    if layout.listed:
        return STALE if any(cursor.life != layout.life for cursor in living) else None
    processes = (*state.subscribers, state.unsubscriber)
    at_rest = state.consumer is None and all(process in (IDLE, DONE) for process in processes)
    return LEFT if at_rest and living and state.unsubscriber.done else None


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, wrong)
