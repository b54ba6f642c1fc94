"""
A whole transaction is one step of a database (``coordinator.joint_commit`` and ``pending_acks.joint_acks`` in
``txnframework_metadata``, and ``client._joint``, follow this).

Who takes part: a *caller*, who plans a step that creates a header as COMMITTED, appends an entry to each of two
segments, and acknowledges message a; a *usual transaction*, which acknowledges a by a record, and is settled later; a
*consumer*, who acknowledges message b outside of transactions; a *snapshot* of both segments, which reads one end, then
the other one, and then the entries behind the ends; and a *sweep*, which collects headers once their time is over. The
*database* takes the step some time after it was sent, also when its sender does not wait any more. The reply may be
lost, and the caller may be killed at any time.

A caller that cannot learn what became of the step puts a *fence*: a header that says ABORTED, where there is none.
Its clock is read just before that, and the put takes far less time than outcomes are kept.

The rule: the step takes effect as a whole or not at all, as reported to its caller, and a message is acknowledged once.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

TWICE = "a message is acknowledged by two committed transactions"
OVERWRITTEN = "an acknowledgment outside of transactions is lost"
TORN = "a snapshot has a transaction in one segment, and not in the other one"
HALF = "a transaction is committed without its acknowledgment"
TOLD_OTHERWISE = "the caller was told another outcome than the real one"


class Rule(StrEnum):
    """What makes one step a transaction like any other one."""

    ONE_STEP = "header, entries and cursor are written in one step"
    LOOK = "the step is refused if another transaction has a record of an acknowledgment"
    LOOK_IN_STEP = "the look for records is a part of the step"
    ONE_AFTER_ANOTHER = "nothing is written between the look of the step and its end"
    VERSION = "the step is refused if the cursor is not as it was planned"
    PUT_THEN_LOOK = "a usual transaction puts its record before it looks at the cursor"
    BRANCH = "the entries name their transaction"
    FENCE = "without a header a caller that lost the reply puts a fence"
    ABSENT = "the step is refused if there is a header already"
    FENCE_KEPT = "a fence is kept until no late step can arrive"
    FENCE_IN_TIME = "a fence is put only while the header of the step cannot have been collected"


HARM = {
    Rule.ONE_STEP: HALF,
    Rule.LOOK: TWICE,
    Rule.LOOK_IN_STEP: TWICE,
    Rule.ONE_AFTER_ANOTHER: TWICE,
    Rule.VERSION: OVERWRITTEN,
    Rule.PUT_THEN_LOOK: TWICE,
    Rule.BRANCH: TORN,
    Rule.FENCE: TOLD_OTHERWISE,
    Rule.ABSENT: TOLD_OTHERWISE,
    Rule.FENCE_KEPT: TOLD_OTHERWISE,
    Rule.FENCE_IN_TIME: TOLD_OTHERWISE,
}
STATES_MIN = 3_000


class Header(StrEnum):
    COMMITTED = "committed"
    ABORTED = "aborted"


class Caller(StrEnum):
    START = "has not begun"
    PLANNED = "has read the cursor"
    WAITING = "waits for the reply"
    WITHOUT_REPLY = "has lost the reply"
    FOUND_NOTHING = "has found no header"
    TOLD_COMMITTED = "was told that it is committed"
    TOLD_NOT = "was told that nothing was written"
    TOLD_UNKNOWN = "was told that the outcome is unknown"
    DEAD = "was killed"


class Request(StrEnum):
    """What became of the step in the database."""

    NONE = "not sent"
    SENT = "on its way"
    LOOKED = "has looked, and not written yet"
    PART = "has written header and entries, and not the cursor"
    APPLIED = "applied"
    REFUSED = "refused, or lost on its way"


class Usual(StrEnum):
    """What the usual transaction has done."""

    START = "nothing"
    PUT = "put its record"
    LOOKED = "looked at the cursor"
    LOOKED_BEFORE = "looked at the cursor before it has put"
    COMMITTED = "committed"
    SETTLED = "moved the cursor"
    FORGOTTEN = "deleted its record"
    REFUSED = "withdrawn its record"


RECORD_STORED = (Usual.PUT, Usual.LOOKED, Usual.COMMITTED, Usual.SETTLED)
HAS_COMMITTED = (Usual.COMMITTED, Usual.SETTLED, Usual.FORGOTTEN)
UNDER_WAY = (Request.SENT, Request.LOOKED)
Messages = frozenset[str]
A, B = "a", "b"


class State(NamedTuple):
    """``planned``: the cursor and its version as the caller has read them.

    ``looked``: it has found no record while it planned. ``late``: outcomes of the time when the step was sent are
    collected. ``plain``: the acknowledgment of b was confirmed to the consumer. ``ends``: for each segment whether the
    step's entry is before the end in the snapshot. ``seen``: what its readers return.
    """

    header: Header | None = None
    caller: Caller = Caller.START
    request: Request = Request.NONE
    cursor: Messages = frozenset()
    version: int = 0
    planned: tuple[Messages, int] = (frozenset(), 0)
    usual: Usual = Usual.START
    late: bool = False
    plain: bool = False
    ends: tuple[bool, ...] = ()
    seen: tuple[bool, ...] = ()

    @property
    def is_stored(self) -> bool:
        return self.request in (Request.PART, Request.APPLIED)

    def moved(self, cursor: Messages) -> State:
        return self._replace(cursor=cursor, version=self.version + 1)


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._calling(state)
        yield from self._finding_out(state)
        yield from self._database(state)
        yield from self._usual(state)
        yield from self._others(state)

    def _calling(self, state: State) -> Iterator[tuple[str, State]]:
        if state.caller is Caller.START:
            planned = state._replace(caller=Caller.PLANNED, planned=(state.cursor, state.version))
            looks = self._without is Rule.LOOK_IN_STEP
            if A in state.cursor or (looks and state.usual in RECORD_STORED):
                yield "the caller finds a acknowledged", state._replace(caller=Caller.TOLD_NOT)
            else:
                yield "the caller plans the step", planned
        elif state.caller is Caller.PLANNED:
            yield "the caller sends the step", state._replace(caller=Caller.WAITING, request=Request.SENT)
        elif state.caller is Caller.WAITING:
            if state.request is Request.APPLIED:
                yield "the reply arrives", state._replace(caller=Caller.TOLD_COMMITTED)
            if state.request is Request.REFUSED:
                yield "the refusal arrives", state._replace(caller=Caller.TOLD_NOT)
            yield "the reply is lost", state._replace(caller=Caller.WITHOUT_REPLY)
        if state.caller in (Caller.WAITING, Caller.WITHOUT_REPLY, Caller.FOUND_NOTHING):
            yield "the caller is killed", state._replace(caller=Caller.DEAD)

    def _finding_out(self, state: State) -> Iterator[tuple[str, State]]:
        outcomes = {Header.COMMITTED: Caller.TOLD_COMMITTED, Header.ABORTED: Caller.TOLD_NOT}
        if state.caller is Caller.WITHOUT_REPLY:
            if state.header is not None:
                yield f"the caller finds it {state.header}", state._replace(caller=outcomes[state.header])
            elif self._without is Rule.FENCE:
                yield "the caller finds no header", state._replace(caller=Caller.TOLD_NOT)
            else:
                yield "the caller finds no header", state._replace(caller=Caller.FOUND_NOTHING)
        elif state.caller is Caller.FOUND_NOTHING:
            if state.late and self._without is not Rule.FENCE_IN_TIME:
                yield "the caller comes too late for a fence", state._replace(caller=Caller.TOLD_UNKNOWN)
            elif state.header is not None:
                yield "the fence finds a header", state._replace(caller=Caller.WITHOUT_REPLY)
            else:
                yield "the caller puts a fence", state._replace(header=Header.ABORTED, caller=Caller.TOLD_NOT)

    def _database(self, state: State) -> Iterator[tuple[str, State]]:
        if state.request is Request.SENT:
            yield "the step is lost on its way", state._replace(request=Request.REFUSED)
            if self._finds_a_record(state):
                yield "the step finds a record", state._replace(request=Request.REFUSED)
            elif self._without is Rule.ONE_AFTER_ANOTHER:
                yield "the step finds no record", state._replace(request=Request.LOOKED)
            else:
                yield self._write(state)
        elif state.request is Request.LOOKED:
            yield self._write(state)
        elif state.request is Request.PART and state.caller is not Caller.DEAD:
            yield "the cursor is moved", state._replace(request=Request.APPLIED).moved(state.cursor | {A})

    def _finds_a_record(self, state: State) -> bool:
        looks = self._without not in (Rule.LOOK, Rule.LOOK_IN_STEP)
        return looks and state.usual in RECORD_STORED

    def _write(self, state: State) -> tuple[str, State]:
        cursor, version = state.planned
        if state.header is not None and self._without is not Rule.ABSENT:
            return "the step finds a header", state._replace(request=Request.REFUSED)
        if state.version != version and self._without is not Rule.VERSION:
            return "the step finds a moved cursor", state._replace(request=Request.REFUSED)
        written = state._replace(header=Header.COMMITTED)
        if self._without is Rule.ONE_STEP:
            return "header and entries are written", written._replace(request=Request.PART)
        return "the step is written", written._replace(request=Request.APPLIED).moved(cursor | {A})

    def _usual(self, state: State) -> Iterator[tuple[str, State]]:
        """The usual transaction; its cursor is moved by compare-and-set, and united with what it finds there."""
        found = A in state.cursor
        is_first = Usual.LOOKED_BEFORE if self._without is Rule.PUT_THEN_LOOK else Usual.PUT
        if state.usual is Usual.START and is_first is Usual.PUT:
            yield "the usual transaction puts its record", state._replace(usual=Usual.PUT)
        elif state.usual is (Usual.PUT if is_first is Usual.PUT else Usual.START):
            following = Usual.REFUSED if found else Usual.LOOKED if is_first is Usual.PUT else is_first
            yield "the usual transaction looks at the cursor", state._replace(usual=following)
        elif state.usual is Usual.LOOKED_BEFORE:
            yield "the usual transaction puts its record", state._replace(usual=Usual.LOOKED)
        elif state.usual is Usual.LOOKED:
            yield "the usual transaction commits", state._replace(usual=Usual.COMMITTED)
            yield "the usual transaction aborts", state._replace(usual=Usual.REFUSED)
        elif state.usual is Usual.COMMITTED:
            settled = state._replace(usual=Usual.SETTLED).moved(state.cursor | {A})
            yield "the usual transaction moves the cursor", settled
        elif state.usual is Usual.SETTLED:
            yield "the usual transaction deletes its record", state._replace(usual=Usual.FORGOTTEN)

    def _others(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.plain:
            yield "the consumer acknowledges b", state._replace(plain=True).moved(state.cursor | {B})
        if state.request is not Request.NONE and not state.late:
            yield "the time of outcomes is over", state._replace(late=True)
        if state.late and state.header is not None and self._may_be_collected(state):
            yield "the sweep collects the header", state._replace(header=None)
        if len(state.ends) < 2:
            yield "the snapshot reads an end", state._replace(ends=(*state.ends, state.is_stored))
        elif not state.seen:
            torn = len(set(state.ends)) > 1
            hidden = torn and self._without is not Rule.BRANCH
            yield "the snapshot reads behind the ends", state._replace(seen=(False, False) if hidden else state.ends)

    def _may_be_collected(self, state: State) -> bool:
        """A fence outlasts every late step."""
        kept = state.header is Header.ABORTED and self._without is not Rule.FENCE_KEPT
        return not (kept and state.request in UNDER_WAY)

    def wrong(self, state: State) -> str | None:
        """Return what is wrong in a state."""
        if state.request is Request.PART and state.caller is Caller.DEAD:
            return HALF
        if state.request is Request.APPLIED and state.usual in HAS_COMMITTED:
            return TWICE
        if state.plain and B not in state.cursor:
            return OVERWRITTEN
        if len(set(state.seen)) > 1:
            return TORN
        told = {Caller.TOLD_COMMITTED: True, Caller.TOLD_NOT: False}.get(state.caller)
        return TOLD_OTHERWISE if told is not None and told is not state.is_stored else None


def explored(without: Rule | None = None) -> Explored:
    model = Model(without)
    return explore(State(), model.steps, model.wrong)
