"""
One transaction over topics of both families: judged by the header of the metadata family, it is whole.

No code follows this model. It shows how such a transaction could be made, and what is wrong with the obvious ways.

Who takes part: a *writer*, which sends one message to a topic of segments and one to a persistent topic, acknowledges a
message of the persistent topic, and then commits; it may be paused or killed at every step. A *sweep*, which aborts the
transaction after its deadline. A *settler*, in any process, which makes the outcome take effect in both topics. A
*collector*, which forgets the header. A *reader* of each topic.

The topic of segments is read by headers and abort records, and an unknown transaction counts as committed. The
persistent topic is read by markers alone: an entry without a marker holds every reader back, and an entry after the
marker never counts. So its markers have to be stored before the header is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

TORN = "a reader is shown the transaction in one topic, and it does not count in the other one"
ABORTED_SHOWN = "a reader is shown a message of a transaction that did not commit"
STUCK = "a reader of the persistent topic waits for ever"
LOST = "a committed acknowledgment never takes effect"

OPEN, COMMITTED, ABORTED, FORGOTTEN = "open", "committed", "aborted", "forgotten"
ENTRY, COMMIT, ABORT = "entry", "commit marker", "abort marker"


class Rule(StrEnum):
    """What keeps the transaction whole."""

    ONE_DECISION = "there is one decision, and none of each family's coordinator"
    HEADER_DECIDES = "the header decides, and does not follow the log of the other coordinator"
    NAMED_FIRST = "an operation names the persistent topic before an entry is appended to it"
    WHILE_OPEN = "an operation is stored only if the header is open"
    MARKER_FIRST = "the marker is stored before the operation is deleted"
    HOLD_FIRST = "the acknowledgment is applied before its operation is deleted"
    BY_MARKER = "the persistent topic is read by its markers, and not by the header"
    LATE_NEVER_COUNTS = "an entry after the marker never counts"


HARM = {
    Rule.ONE_DECISION: TORN,
    Rule.HEADER_DECIDES: ABORTED_SHOWN,
    Rule.NAMED_FIRST: STUCK,
    Rule.WHILE_OPEN: STUCK,
    Rule.MARKER_FIRST: STUCK,
    Rule.HOLD_FIRST: LOST,
    Rule.BY_MARKER: ABORTED_SHOWN,
    Rule.LATE_NEVER_COUNTS: STUCK,
}
STATES_MIN = 1_000

SKIPPED, SHOWN = "skipped", "shown"


class State(NamedTuple):
    """
    ``header``: its state; ``outcome``: what it was decided to be. ``log_state``: that of the other coordinator, if it
    decides too. ``written``, ``sent``, ``acked``: the writer's steps in the topic of segments, the persistent topic and
    the subscription. ``segment_operation``, ``topic_operation``, ``ack_operation``: stored, and not deleted.
    ``in_segment``: the entry is stored there; ``record``: so is an abort record. ``log``: the persistent topic.
    ``held``: the acknowledgment waits for the outcome; ``applied``: it took effect. ``of_segment``, ``of_topic``: what
    the readers did with the entries.
    """

    header: str = OPEN
    outcome: str = OPEN
    log_state: str = OPEN
    is_alive: bool = True
    written: int = 0
    sent: int = 0
    acked: int = 0
    segment_operation: bool = False
    topic_operation: bool = False
    ack_operation: bool = False
    in_segment: bool = False
    record: bool = False
    log: tuple[str, ...] = ()
    held: bool = False
    applied: bool = False
    of_segment: str = ""
    of_topic: str = ""


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without
        self._two_decide = without in (Rule.ONE_DECISION, Rule.HEADER_DECIDES)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.is_alive:
            yield from self._segment_writer(state)
            yield from self._topic_writer(state)
            yield from self._acknowledging(state)
            yield from self._committing(state)
            yield "the writer is killed", state._replace(is_alive=False)
        yield from self._sweep(state)
        yield from self._settler(state)
        yield from self._readers(state)

    def _segment_writer(self, state: State) -> Iterator[tuple[str, State]]:
        if state.written == 0 and state.header == OPEN:
            yield "the segment is named", state._replace(written=1, segment_operation=True)
        if state.written == 1:
            yield "the entry in the segment", state._replace(written=2, in_segment=True)

    def _topic_writer(self, state: State) -> Iterator[tuple[str, State]]:
        name, append = "the persistent topic is named", "the entry in the persistent topic"
        appended = state._replace(sent=state.sent + 1, log=(*state.log, ENTRY))
        named = state._replace(sent=state.sent + 1, topic_operation=True)
        if self._without is Rule.NAMED_FIRST:
            if state.sent == 0 and state.header == OPEN:
                yield append, appended
            if state.sent == 1 and state.header == OPEN:
                yield name, named
        elif self._without is Rule.WHILE_OPEN:
            if state.sent == 0 and state.header == OPEN:
                yield "the header is read", state._replace(sent=1)
            if state.sent == 1:
                yield name, named
            if state.sent == 2:
                yield append, appended
        else:
            if state.sent == 0 and state.header == OPEN:
                yield name, named
            if state.sent == 1:
                yield append, appended._replace(sent=3)

    def _acknowledging(self, state: State) -> Iterator[tuple[str, State]]:
        if state.acked == 0 and state.header == OPEN:
            yield "the subscription is named", state._replace(acked=1, ack_operation=True)
        if state.acked == 1:
            # The process looks again after it stored the hold, and takes it back if the transaction has ended.
            yield "the acknowledgment is held", state._replace(acked=2, held=state.header == OPEN)

    def _committing(self, state: State) -> Iterator[tuple[str, State]]:
        all_sent = 2 if self._without is Rule.NAMED_FIRST else 3
        if (state.written, state.sent, state.acked) != (2, all_sent, 2):
            return
        if state.header == OPEN and (self._without is not Rule.HEADER_DECIDES or state.log_state == COMMITTED):
            yield "the header is committed", state._replace(header=COMMITTED, outcome=COMMITTED)
        log_may_commit = self._without is Rule.HEADER_DECIDES or state.header == COMMITTED
        if state.log_state == OPEN and self._two_decide and log_may_commit:
            yield "the log decides to commit", state._replace(log_state=COMMITTED)

    def _sweep(self, state: State) -> Iterator[tuple[str, State]]:
        if state.header == OPEN:
            yield "the header is aborted", state._replace(header=ABORTED, outcome=ABORTED)
        if state.log_state == OPEN and self._two_decide:
            yield "the log decides to abort", state._replace(log_state=ABORTED)
        named = state.segment_operation or state.topic_operation or state.ack_operation
        if state.header in (COMMITTED, ABORTED) and not named:
            yield "the header is forgotten", state._replace(header=FORGOTTEN)

    def _settler(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._settled_topic(state)
        if state.header == OPEN:
            return
        if state.segment_operation:
            if state.header == ABORTED and not state.record:
                yield "the abort record", state._replace(record=True)
            else:
                yield "the segment is settled", state._replace(segment_operation=False)
        if state.ack_operation:
            if state.held and state.header == COMMITTED:
                yield "the acknowledgment is applied", state._replace(held=False, applied=True)
            if state.held and state.header == ABORTED:
                yield "the acknowledgment is released", state._replace(held=False)
            if not state.held or self._without is Rule.HOLD_FIRST:
                yield "the subscription is settled", state._replace(ack_operation=False)

    def _settled_topic(self, state: State) -> Iterator[tuple[str, State]]:
        decided = state.log_state if self._two_decide else state.header
        if not state.topic_operation or decided == OPEN:
            return
        marked = COMMIT in state.log or ABORT in state.log
        if not marked and decided != FORGOTTEN:
            marker = COMMIT if decided == COMMITTED else ABORT
            yield f"the {marker}", state._replace(log=(*state.log, marker))
        if marked or decided == FORGOTTEN or self._without is Rule.MARKER_FIRST:
            yield "the persistent topic is settled", state._replace(topic_operation=False)

    def _readers(self, state: State) -> Iterator[tuple[str, State]]:
        if state.in_segment and not state.of_segment and state.header != OPEN:
            aborted = state.record or state.header == ABORTED
            yield "the segment is read", state._replace(of_segment=SKIPPED if aborted else SHOWN)
        if ENTRY in state.log and not state.of_topic:
            judged = self._judged(state)
            if judged:
                yield "the persistent topic is read", state._replace(of_topic=judged)

    def _judged(self, state: State) -> str:
        if self._without is Rule.BY_MARKER:
            return {OPEN: "", ABORTED: SKIPPED}.get(state.header, SHOWN)
        at = state.log.index(ENTRY)
        if {COMMIT, ABORT} & set(state.log[:at]):
            return "" if self._without is Rule.LATE_NEVER_COUNTS else SKIPPED
        after = state.log[at + 1 :]
        return SHOWN if COMMIT in after else SKIPPED if ABORT in after else ""


def wrong(state: State) -> str | None:
    if {state.of_segment, state.of_topic} == {SHOWN, SKIPPED}:
        return TORN
    shown = SHOWN in (state.of_segment, state.of_topic)
    return ABORTED_SHOWN if shown and state.outcome == ABORTED else None


def left(state: State) -> str | None:
    if ENTRY in state.log and not state.of_topic:
        return STUCK
    return LOST if state.outcome == COMMITTED and not state.applied else None


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, wrong, left)
