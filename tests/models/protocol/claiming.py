"""
Two processes that deliver the messages of one segment side by side, by *claims* (no code follows this yet).

Today one process at a time dispatches a segment. This model shows what it would take to let several do so for the type
``shared``: a process claims a range of the segment in the store before it delivers any message of the range. That costs
one write for each range, not for each message.

There are two processes, ``A`` and ``B``, and three messages in two ranges: the first range has two messages. Each
process claims a free range, reads the acknowledgments of the range, delivers its messages, and acknowledges them in
transactions, one by one or cumulatively. A transaction may be aborted. Once, ``A`` dies, or is paused until its session
has ended; then ``B`` may take over its claims. The paused process continues with what it believes, and notices later.
That an acknowledgment is put first and then compared, the model ``acknowledging`` shows; here that is one step.

The rules: no message is processed in two committed transactions, none is finished without being processed, and each is
finished in the end. A message that was finished before its range changed hands is not delivered again. Without an
accident, no message is delivered by both.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

TWICE = "a message is processed in two committed transactions"
LOST = "a message is finished that no committed transaction processed"
REPEATED = "a message is delivered by both processes without an accident"
AGAIN = "a message is delivered that was finished before its range changed hands"
STUCK = "a message is never finished"


class Rule(StrEnum):
    """What a claim demands, and what an acknowledgment covers."""

    CLAIMED_FIRST = "a range is claimed before any message of it is delivered"
    BY_COMPARING = "a claim is put only if the range is still free"
    AFTER_THE_SESSION = "a claim is taken over only after the session of its holder has ended"
    TAKEN_OVER = "a claim is taken over after the session of its holder has ended"
    READ_AFTER_THE_CLAIM = "the acknowledgments of a range are read after it was claimed"
    LOOKED_AT_AGAIN = "an acknowledgment that was pending when it was read is looked at again after its end"
    STORE_DECIDES = "a message that another one has acknowledged is refused"
    OWN_ONLY = "a cumulative acknowledgment covers only what its consumer received"


HARM = {
    Rule.CLAIMED_FIRST: REPEATED,
    Rule.BY_COMPARING: REPEATED,
    Rule.AFTER_THE_SESSION: REPEATED,
    Rule.TAKEN_OVER: STUCK,
    Rule.READ_AFTER_THE_CLAIM: AGAIN,
    Rule.LOOKED_AT_AGAIN: STUCK,
    Rule.STORE_DECIDES: TWICE,
    Rule.OWN_ONLY: LOST,
}
STATES_MIN = 10_000

Messages = frozenset[int]
NONE: Messages = frozenset()
ALL: Messages = frozenset({0, 1, 2})
RANGES: tuple[Messages, ...] = (frozenset({0, 1}), frozenset({2}))
ABORTS_MAX = 1


class Member(NamedTuple):
    """
    A process.

    ``believed``: the ranges that it believes to have claimed. ``read``: those whose acknowledgments it has read, and
    ``skipped``: what it does not deliver because of that. ``early``: what it has read before a takeover. ``given``:
    what its application has received and not acknowledged. ``pending``: what its open transaction acknowledges, and
    ``processed``: the part of it that the application has processed.
    """

    believed: frozenset[int] = frozenset()
    read: frozenset[int] = frozenset()
    skipped: Messages = NONE
    early: tuple[Messages | None, ...] = (None, None)
    given: Messages = NONE
    pending: Messages = NONE
    processed: Messages = NONE
    is_dead: bool = False
    is_paused: bool = False


class State(NamedTuple):
    """
    The store, and the processes.

    ``holders``: of the claims. ``done``: what committed transactions have acknowledged, and ``processed``: what their
    applications have processed. ``before``: what was done when each range changed hands.
    """

    members: tuple[Member, Member] = (Member(), Member())
    holders: tuple[int | None, ...] = (None, None)
    sessions: tuple[bool, ...] = (True, True)
    done: Messages = NONE
    processed: Messages = NONE
    before: tuple[Messages, ...] = (NONE, NONE)
    aborts: int = 0
    accident: bool = False
    harm: str | None = None


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for one, name in enumerate("AB"):
            member = state.members[one]
            for label, following in self._ending(state, one, member):
                yield f"{name}'s transaction {label}", following
            if member.is_dead:
                continue
            for some in (self._accidents, self._claiming, self._delivering, self._acknowledging):
                for label, following in some(state, one, member):
                    yield f"{name} {label}", following

    def _accidents(self, state: State, one: int, member: Member) -> Iterator[tuple[str, State]]:
        if one == 0 and not state.accident:
            ended = state._replace(accident=True, sessions=(False, True))
            yield "dies", _with(ended, one, member._replace(is_dead=True))
            yield "is paused, and its session ends", _with(ended, one, member._replace(is_paused=True))
        if member.is_paused:
            # The application still has what it received.
            fresh = Member(given=member.given, pending=member.pending, processed=member.processed)
            yield "notices, and has another session", _with(state._replace(sessions=(True, True)), one, fresh)

    def _claiming(self, state: State, one: int, member: Member) -> Iterator[tuple[str, State]]:
        for number, covered in enumerate(RANGES):
            holder = state.holders[number]
            if number in member.believed and number not in member.read:
                yield (
                    f"reads the acknowledgments of range {number}",
                    _with(state, one, _having_read(member, number, _finished(state))),
                )
            if number in member.believed or not state.sessions[one]:
                continue
            is_free = holder is None or (self._without is Rule.BY_COMPARING and holder != one)
            if is_free and all(lower is not None for lower in state.holders[:number]):
                yield f"claims range {number}", self._held(state, one, member, number)
            if holder is None or (holder == one and not state.accident):
                continue
            if self._is_left(state, one, holder):
                if self._without is Rule.READ_AFTER_THE_CLAIM and member.early[number] is None:
                    early = _changed(member.early, number, _finished(state) & covered)
                    yield (
                        f"reads the acknowledgments of range {number} early",
                        _with(state, one, member._replace(early=early)),
                    )
                    continue
                changed = state._replace(before=_changed(state.before, number, state.done & covered))
                yield f"takes range {number} over", self._held(changed, one, member, number)

    def _is_left(self, state: State, one: int, holder: int) -> bool:
        """Return whether the claim of a holder may be taken over; one of an earlier session of its own may, too."""
        if self._without is Rule.TAKEN_OVER:
            return False
        return holder == one or not state.sessions[holder] or self._without is Rule.AFTER_THE_SESSION

    def _held(self, state: State, one: int, member: Member, number: int) -> State:
        held = state._replace(holders=_changed(state.holders, number, one))
        member = member._replace(believed=member.believed | {number}, read=member.read - {number})
        early = member.early[number]
        if early is not None:
            member = _having_read(member, number, early)._replace(early=_changed(member.early, number, None))
        return _with(held, one, member)

    def _delivering(self, state: State, one: int, member: Member) -> Iterator[tuple[str, State]]:
        had = member.skipped | member.given | member.pending
        for number, covered in enumerate(RANGES):
            if number not in member.read and self._without is not Rule.CLAIMED_FIRST:
                continue
            for message in sorted(covered - had):
                given = _with(state, one, member._replace(given=member.given | {message}))
                if message in state.before[number]:
                    given = given._replace(harm=AGAIN)
                if message in state.members[1 - one].given and not state.accident:
                    given = given._replace(harm=REPEATED)
                yield f"delivers message {message}", given
        over = member.skipped - _finished(state)
        if over and self._without is not Rule.LOOKED_AT_AGAIN:
            yield "looks again, and finds an abort", _with(state, one, member._replace(skipped=member.skipped - over))

    def _acknowledging(self, state: State, one: int, member: Member) -> Iterator[tuple[str, State]]:
        other = state.members[1 - one].pending
        for message in sorted(member.given):
            upto = frozenset(range(message + 1))
            every = upto - state.done if self._without is Rule.OWN_ONLY else member.given & upto
            for kind, covered in (("", frozenset({message})), ("everything up to ", every)):
                taken = state.done | other
                if covered & taken and self._without is not Rule.STORE_DECIDES:
                    refused = member._replace(given=member.given - taken, skipped=member.skipped | (covered & taken))
                    yield f"is refused with {kind}{message}", _with(state, one, refused)
                    continue
                acked = member._replace(
                    given=member.given - covered,
                    pending=member.pending | covered,
                    processed=member.processed | (member.given & covered),
                )
                yield f"acknowledges {kind}{message}", _with(state, one, acked)

    def _ending(self, state: State, one: int, member: Member) -> Iterator[tuple[str, State]]:
        if not member.pending:
            return
        ended = member._replace(pending=NONE, processed=NONE)
        if state.aborts < ABORTS_MAX or not state.sessions[one] or member.is_dead:
            # Only what the store can see counts: of a process whose session has ended, it aborts all.
            count = state.aborts + state.sessions[one]
            yield "is aborted", _with(state, one, ended)._replace(aborts=min(count, ABORTS_MAX))
        if not member.is_dead:
            committed = _with(state, one, ended._replace(skipped=member.skipped | member.pending))
            processed = state.processed | member.processed
            harm = TWICE if member.processed & state.processed else None
            done = state.done | member.pending
            if done - processed:
                harm = LOST
            yield "is committed", committed._replace(done=done, processed=processed, harm=harm)


def _finished(state: State) -> Messages:
    """Return what is acknowledged, also in open transactions."""
    first, second = state.members
    return state.done | first.pending | second.pending


def _having_read(member: Member, number: int, finished: Messages) -> Member:
    skipped = (member.skipped - RANGES[number]) | (finished & RANGES[number])
    return member._replace(read=member.read | {number}, skipped=skipped)


def _with(state: State, one: int, member: Member) -> State:
    first, second = state.members
    return state._replace(members=(member, second) if one == 0 else (first, member))


def _changed(values: tuple[object, ...], index: int, value: object) -> tuple[object, ...]:
    return (*values[:index], value, *values[index + 1 :])


def wrong(state: State) -> str | None:
    return state.harm


def left(state: State) -> str | None:
    return STUCK if ALL - state.done else None


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, wrong, left)
