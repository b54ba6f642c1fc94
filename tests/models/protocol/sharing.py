"""Processes divide the segments of a subscription among them by leases, and divide them anew when a process comes or
goes (``txnframework.broker.division`` decides, here as there; ``client._subscription.division`` carries it out).

Who takes part: *two members*, each a process with a consumer of the subscription. A member registers by a lease, looks
at all leases, takes what it is to hold and gives up what another one is to hold. The first member may die, or be paused
until its session has ended and then go on; to leave is to die with nothing to acknowledge. There are two segments. One
has a message and is split: *its child* follows it, and the type keeps an order.

The rule: when nothing changes any more, each unfinished segment has one living dispatcher, and the shares are even. No
segment moves back and forth. No message is acknowledged twice, whatever a process believes about a lease, and no
message overtakes another.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from exploring import Explored, explore

from txnframework.broker.division import divide

OTHER, PARENT, CHILD = (0, 1, 2)
NAMES = ("the other segment", "the parent", "the child")
TAKEN_MAX = 5
"""Limit of leases taken after one event; more means that segments move back and forth."""

TWICE = "an acknowledgment counted twice"
OVERTAKEN = "a child is dispatched before its parent's message was acknowledged"
REPEATED = "a message was given to a second member while the first one was still about to acknowledge it"
ALONE = "an unfinished segment has no living dispatcher"
UNEVEN = "the segments are divided unevenly"
TO_AND_FRO = "a segment goes to and fro"


class Rule(StrEnum):
    """What makes sharing even, quiet and safe."""

    BOUND_TO_SESSIONS = "a member is registered by a lease, which ends with its session"
    LOOKS_AGAIN = "a member looks again after any lease has changed"
    GIVES_UP = "a member gives up what another one is to hold"
    TAKES_ITS_OWN = "a member takes only what it is to hold"
    FINISHED_DO_NOT_COUNT = "finished segments are not divided"
    CHILD_AFTER_PARENT = "a child is divided only after its parents are finished"
    DRAINED_FIRST = "before a member gives a segment up, it waits until its messages are acknowledged"
    STORE_DECIDES = "the store decides on an acknowledgment, and no lease does"


HARM = {
    Rule.BOUND_TO_SESSIONS: ALONE,
    Rule.LOOKS_AGAIN: ALONE,
    Rule.GIVES_UP: UNEVEN,
    Rule.TAKES_ITS_OWN: TO_AND_FRO,
    Rule.FINISHED_DO_NOT_COUNT: TO_AND_FRO,
    Rule.CHILD_AFTER_PARENT: OVERTAKEN,
    Rule.DRAINED_FIRST: REPEATED,
    Rule.STORE_DECIDES: TWICE,
}
STATES_MIN = 20_000

Three = tuple[int | None, int | None, int | None]


class View(NamedTuple):
    """What a member saw when it looked: who is registered, who holds what, and how far the topic is."""

    members: tuple[bool, bool]
    holders: Three
    split: bool
    finished: bool


class Member(NamedTuple):
    """
    A process. ``runs``: 0 not yet, 1 now, 2 no more. ``dispatches``: what it believes to hold. ``draining``: what it
    gives out nothing more of. ``given``: the messages that its program has and has not acknowledged.
    """

    runs: int = 0
    paused: bool = False
    view: View | None = None
    woken: bool = False
    dispatches: frozenset[int] = frozenset()
    draining: frozenset[int] = frozenset()
    given: frozenset[int] = frozenset()


class State(NamedTuple):
    """``accident``: one has happened; ``taken``: the leases that were taken since the last event."""

    members: tuple[Member, Member] = (Member(), Member())
    registered: tuple[bool, bool] = (False, False)
    holders: Three = (None, None, None)
    acked: frozenset[int] = frozenset()
    split: bool = False
    accident: bool = False
    taken: int = 0
    harm: str | None = None


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.split:
            yield "the segment is split", self._woken(state._replace(split=True, taken=0))
        for one in (0, 1):
            member = state.members[one]
            name = "AB"[one]
            if member.runs == 0:
                registered = _with(state.registered, one, True)
                begun = _moved(state, one, member._replace(runs=1))._replace(registered=registered, taken=0)
                yield f"{name} joins", self._woken(begun)
            if member.runs == 1:
                for label, after in self._running(state, one, member):
                    yield f"{name} {label}", after

    def _running(self, state: State, one: int, member: Member) -> Iterator[tuple[str, State]]:
        if not state.accident and one == 0:
            yield from self._accidents(state, one, member)
        if member.paused:
            kept = member._replace(paused=False, dispatches=frozenset(), draining=frozenset())
            again = _moved(state, one, kept)._replace(registered=_with(state.registered, one, True), taken=0)
            yield "notices that its leases are lost, and registers again", self._woken(again)
        elif member.woken or member.view is None:
            finished = PARENT in state.acked
            seen = View(state.registered, state.holders, state.split, finished)
            yield "looks at the leases", _moved(state, one, member._replace(view=seen, woken=False))
        if member.view is not None and not member.paused:
            yield from self._dividing(state, one, member, member.view)
        yield from self._dispatching(state, one, member)

    def _accidents(self, state: State, one: int, member: Member) -> Iterator[tuple[str, State]]:
        holders = tuple(None if holder == one else holder for holder in state.holders)
        left = state.registered
        if self._without is not Rule.BOUND_TO_SESSIONS:
            left = _with(left, one, False)
        ended = state._replace(holders=holders, registered=left, accident=True, taken=0)  # type: ignore[arg-type]
        yield "dies", self._woken(_moved(ended, one, Member(runs=2)))
        yield "is paused, and its session ends", self._woken(_moved(ended, one, member._replace(paused=True)))

    def _dividing(self, state: State, one: int, member: Member, view: View) -> Iterator[tuple[str, State]]:
        parts = self._parts(view)
        target = _target(view.members, view.holders, parts)
        for part in parts:
            mine = target.get(part) == one
            if part in member.dispatches:
                if member.woken:
                    continue  # it looks first
                if mine:
                    kept = member._replace(draining=member.draining - {part})
                    yield f"goes on with {NAMES[part]}", _moved(state, one, kept)
                elif self._without is not Rule.GIVES_UP:
                    yield from self._giving_up(state, one, member, part)
            elif (mine or self._without is Rule.TAKES_ITS_OWN) and view.holders[part] is None:
                yield from self._taking(state, one, member._replace(view=view), part)

    def _taking(self, state: State, one: int, member: Member, part: int) -> Iterator[tuple[str, State]]:
        # What it saw may be long past: the lease decides.
        if state.holders[part] is not None or member.view is None:
            return
        view = member.view._replace(holders=_held(member.view.holders, part, one))
        holding = _moved(state, one, member._replace(dispatches=member.dispatches | {part}, view=view))
        taken = holding._replace(holders=_held(state.holders, part, one), taken=state.taken + 1)
        if part == CHILD and PARENT not in state.acked:
            taken = taken._replace(harm=OVERTAKEN)
        yield f"takes {NAMES[part]}", self._woken(taken)

    def _parts(self, view: View) -> tuple[int, ...]:
        """Return the segments that are divided."""
        parts = {PARENT, OTHER}
        if view.split and view.finished and self._without is not Rule.FINISHED_DO_NOT_COUNT:
            parts.discard(PARENT)
        if view.split and (view.finished or self._without is Rule.CHILD_AFTER_PARENT):
            parts.add(CHILD)
        return tuple(sorted(parts))

    def _giving_up(self, state: State, one: int, member: Member, part: int) -> Iterator[tuple[str, State]]:
        if part not in member.draining:
            draining = member._replace(draining=member.draining | {part})
            yield f"gives out no more of {NAMES[part]}", _moved(state, one, draining)
        elif part not in member.given or self._without is Rule.DRAINED_FIRST:
            yield f"gives up {NAMES[part]}", self._released(state, one, member, part)

    def _dispatching(self, state: State, one: int, member: Member) -> Iterator[tuple[str, State]]:
        for part in sorted((member.dispatches - member.draining) & {PARENT}):
            if part in state.acked or part in member.given:
                continue
            given = _moved(state, one, member._replace(given=member.given | {part}))
            other = state.members[1 - one]
            if part in other.given and not state.accident:
                given = given._replace(harm=REPEATED)
            yield f"gives out the message of {NAMES[part]}", given
        for part in sorted(member.given):
            done = _moved(state, one, member._replace(given=member.given - {part}))
            if part not in state.acked:
                yield f"acknowledges it on {NAMES[part]}", done._replace(acked=state.acked | {part}, taken=0)
            elif self._without is Rule.STORE_DECIDES:
                yield f"acknowledges it on {NAMES[part]}", done._replace(harm=TWICE)
            else:
                yield f"is refused on {NAMES[part]}", done
        if state.split and PARENT in state.acked and PARENT in member.dispatches and not member.paused:
            view = None if member.view is None else member.view._replace(split=True, finished=True)
            yield "finishes the parent", self._released(state, one, member._replace(view=view), PARENT)

    def _released(self, state: State, one: int, member: Member, part: int) -> State:
        view = None if member.view is None else member.view._replace(holders=_held(member.view.holders, part, None))
        left = member._replace(dispatches=member.dispatches - {part}, draining=member.draining - {part}, view=view)
        released = _moved(state, one, left)
        if state.holders[part] == one:
            released = released._replace(holders=_held(state.holders, part, None))
        return self._woken(released)

    def _woken(self, state: State) -> State:
        """Wake the members after a change of a lease or of the layout."""
        if self._without is Rule.LOOKS_AGAIN:
            return state
        first, second = (member._replace(woken=member.runs == 1) for member in state.members)
        return state._replace(members=(first, second))


@cache
def _target(registered: tuple[bool, bool], holders: Three, parts: tuple[int, ...]) -> dict[int, int]:
    members = [index for index in (0, 1) if registered[index]]
    return divide(members, parts, {part: holder for part in parts if (holder := holders[part]) is not None})


def _with(values: tuple[bool, bool], index: int, value: bool) -> tuple[bool, bool]:
    return (value, values[1]) if index == 0 else (values[0], value)


def _moved(state: State, one: int, member: Member) -> State:
    first, second = state.members
    return state._replace(members=(member, second) if one == 0 else (first, member))


def _held(holders: Three, part: int, holder: int | None) -> Three:
    first, second, third = (holder if index == part else its for index, its in enumerate(holders))
    return first, second, third


def wrong(state: State) -> str | None:
    if state.harm is not None:
        return state.harm
    return TO_AND_FRO if state.taken > TAKEN_MAX else None


def left(state: State) -> str | None:
    living = [one for one in (0, 1) if state.members[one].runs == 1]
    if not living:
        return None
    unfinished = [OTHER] + ([CHILD] if state.split and PARENT in state.acked else [PARENT])
    for part in unfinished:
        holder = state.holders[part]
        if holder is None or part not in state.members[holder].dispatches or part in state.members[holder].draining:
            return ALONE
    counts = [sum(holder == one for holder in state.holders) for one in living]
    return UNEVEN if max(counts) - min(counts) > 1 else None


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, wrong, left)
