"""
A topic moves from the log family to the metadata family while it is used, and nothing is lost, doubled or torn
(``txnframework.broker.topics.migration`` follows this).

Who takes part: a *plain writer* and a *transactional writer*, whose transaction of the log family writes to the topic
and acknowledges a message of it; the *coordinator*, who settles the transaction and then forgets it; two *movers*, who
carry the move out, each of which may be killed or paused at every step; an *operator*, who plans the move and may take
it back; a *reader*, who follows the topic into its child; and a *later transaction* of the metadata family, which
acknowledges the same message after the move.

The move is planned and decided by compare-and-set of the topic's record. Then the topic is sealed, then the log of its
pending acknowledgments. Then the open transactions in them are aborted, the outcomes are stored as abort records, the
held acknowledgments are applied, the new topic's record is stored, and at last the old record refers to the new one.
A sealed topic takes no marker, so its buffer settles a transaction by an abort record.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

APPENDS_MAX = 1
MOVERS = 2

ABORTED_SHOWN = "a reader is shown a message of a transaction that did not commit"
TWICE = "two committed transactions acknowledged one message"
LOST = "a committed message is never shown, or a committed acknowledgment never takes effect"
STUCK = "a writer or a reader waits for ever"

ENTRY, PLAIN, COMMIT, ABORT = "txn", "plain", "commit marker", "abort marker"
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
PLANNED, DECIDED, STORED, MOVED = "planned", "decided", "stored", "moved"


class Rule(StrEnum):
    """What keeps the move whole."""

    SEAL_FIRST = "outcomes are read after the topic was sealed"
    ACKS_SEALED = "the log of pending acknowledgments is sealed before its holds are read"
    OPEN_ABORTED = "a transaction that is open in the sealed topic is aborted"
    OUTCOMES_FIRST = "abort records are stored before the new topic's record"
    HOLDS_FIRST = "held acknowledgments are applied before the new topic's record is stored"
    SETTLED_BY_RECORD = "a transaction is settled in a sealed topic only with its abort record"
    DECIDED_ONCE = "a move is taken back only before it was decided"


HARM = {
    Rule.SEAL_FIRST: ABORTED_SHOWN,
    Rule.ACKS_SEALED: TWICE,
    Rule.OPEN_ABORTED: ABORTED_SHOWN,
    Rule.OUTCOMES_FIRST: ABORTED_SHOWN,
    Rule.HOLDS_FIRST: TWICE,
    Rule.SETTLED_BY_RECORD: ABORTED_SHOWN,
    Rule.DECIDED_ONCE: STUCK,
}
STATES_MIN = 10_000


class State(NamedTuple):
    """
    ``log``: the entries of the old topic. ``child``: how many the new segment has. ``txn``: the transaction's state.
    ``known``: the coordinator has not forgotten it. ``admitted``: its writer may still append, also late. ``held``: the
    log of pending acknowledgments holds the message for it. ``in_topic``, ``in_acks``: it is settled there. ``later``:
    the state of the later transaction. ``acked``: whose acknowledgment took effect. ``step``: of the move. ``movers``:
    the next step of each, counted from the decision. ``unsent``: messages of the plain writer. ``shown``: how many
    entries of the log the reader has passed, ``shown_child`` of the child, ``committed_shown`` of the transaction.
    """

    log: tuple[str, ...] = ()
    child: int = 0
    sealed: bool = False
    acks_sealed: bool = False
    txn: str = OPEN
    known: bool = True
    admitted: bool = False
    held: bool = False
    ack_due: bool = False
    in_topic: bool = False
    in_acks: bool = False
    later: str = ""
    acked: frozenset[str] = frozenset()
    record: bool = False
    step: str = ""
    was_planned: bool = False
    movers: tuple[int, ...] = (0,) * MOVERS
    unsent: int = 1
    shown: int = 0
    shown_child: int = 0
    entries_shown: int = 0


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without
        order = ["seal", "seal acks", "abort open", "outcomes", "holds", "store", "move"]
        if without is Rule.SEAL_FIRST:
            order = ["abort open", "outcomes", "seal", "seal acks", "holds", "store", "move"]
        elif without is Rule.ACKS_SEALED:
            order.remove("seal acks")
        elif without is Rule.OPEN_ABORTED:
            order.remove("abort open")
        elif without is Rule.OUTCOMES_FIRST:
            order = ["seal", "seal acks", "abort open", "holds", "store", "outcomes", "move"]
        elif without is Rule.HOLDS_FIRST:
            order = ["seal", "seal acks", "abort open", "outcomes", "store", "holds", "move"]
        self._order = order

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._writers(state)
        yield from self._coordinator(state)
        yield from self._operator(state)
        for number in range(MOVERS):
            yield from self._mover(state, number)
        yield from self._readers(state)

    def _writers(self, state: State) -> Iterator[tuple[str, State]]:
        if state.unsent:
            if not state.sealed:
                yield "a plain entry", state._replace(log=(*state.log, PLAIN), unsent=state.unsent - 1)
            elif state.step == MOVED:
                yield "a plain entry follows", state._replace(child=state.child + 1, unsent=state.unsent - 1)
        if state.txn == OPEN and not state.admitted and not state.sealed:
            yield "the transaction is admitted", state._replace(admitted=True)
        if state.admitted and not state.sealed and state.log.count(ENTRY) < APPENDS_MAX:
            yield "the transaction's entry", state._replace(log=(*state.log, ENTRY))
        if state.txn == OPEN:
            if not state.held and not state.acks_sealed and not state.acked and not state.later:
                yield "the transaction acknowledges", state._replace(held=True, ack_due=True)
            elif not state.held and not state.acks_sealed and not state.acked:
                # A process that does not know of the move looks only into the old log and at the cursor.
                yield "the transaction acknowledges unaware", state._replace(held=True, ack_due=True)
            # The writer commits after its sends are confirmed; before an abort, one of them may be paused.
            yield "commit", state._replace(txn=COMMITTED, admitted=False)
            yield "abort", state._replace(txn=ABORTED)
        if state.step in (STORED, MOVED) and not state.later and not state.acked:
            yield "the later transaction acknowledges", state._replace(later=OPEN)
        if state.later == OPEN:
            yield "the later transaction commits", state._replace(later=COMMITTED, acked=state.acked | {"later"})

    def _coordinator(self, state: State) -> Iterator[tuple[str, State]]:
        if state.txn == OPEN or not state.known:
            return
        if not state.in_topic:
            if not state.sealed:
                marker = COMMIT if state.txn == COMMITTED else ABORT
                yield "the marker", state._replace(log=(*state.log, marker), in_topic=True)
            elif self._without is Rule.SETTLED_BY_RECORD or state.step == MOVED:
                yield "settled in the sealed topic", state._replace(in_topic=True)
            else:
                stored = state.record or state.txn == ABORTED
                yield "settled by an abort record", state._replace(record=stored, in_topic=True)
        if not state.in_acks:
            yield "its acknowledgment is settled", self._released(state)._replace(in_acks=True)
        if state.in_topic and state.in_acks:
            yield "it is forgotten", state._replace(known=False)

    def _released(self, state: State) -> State:
        if not state.held or state.txn == OPEN:
            return state
        acked = state.acked | {"txn"} if state.txn == COMMITTED else state.acked
        return state._replace(held=False, acked=acked)

    def _operator(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.step and not state.was_planned:
            yield "the move is planned", state._replace(step=PLANNED, was_planned=True)
        if state.step == PLANNED:
            yield "the move is decided", state._replace(step=DECIDED)
        if state.step == PLANNED or (state.step == DECIDED and self._without is Rule.DECIDED_ONCE):
            yield "the move is taken back", state._replace(step="")

    def _mover(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        at = state.movers[number]
        if state.step in ("", PLANNED) or at == len(self._order):
            return
        if at:
            yield f"mover {number} is killed", _at(state, number, 0)
        done = self._carried_out(state, self._order[at])
        yield f"mover {number}: {self._order[at]}", _at(done, number, at + 1)

    def _carried_out(self, state: State, what: str) -> State:
        if what == "seal":
            return state._replace(sealed=True)
        if what == "seal acks":
            return state._replace(acks_sealed=True)
        undecided = ENTRY in state.log and not {COMMIT, ABORT} & set(state.log)
        if what == "abort open":
            involved = undecided or state.held
            return state._replace(txn=ABORTED) if involved and state.txn == OPEN else state
        if what == "outcomes":
            # The marker tells, or the coordinator; if it has forgotten the transaction, its record is stored or it
            # was committed.
            aborted = ABORT in state.log or (undecided and state.known and state.txn == ABORTED)
            return state._replace(record=state.record or aborted)
        if what == "holds":
            return self._released(state)
        if what == "store":
            return state._replace(step=STORED) if state.step == DECIDED else state
        return state._replace(step=MOVED)

    def _readers(self, state: State) -> Iterator[tuple[str, State]]:
        if state.shown < len(state.log):
            following = state._replace(shown=state.shown + 1)
            entry = state.log[state.shown]
            shown = following._replace(entries_shown=state.entries_shown + 1)
            if entry != ENTRY:
                yield "the reader goes on", following
            elif state.step in (STORED, MOVED):
                yield "the reader judges by records", following if state.record else shown
            elif ABORT in state.log:
                yield "the reader skips it", following
            elif COMMIT in state.log:
                yield "the reader is shown it", shown
        elif state.step == MOVED and state.shown_child < state.child:
            yield "the reader reads the child", state._replace(shown_child=state.shown_child + 1)


def _at(state: State, number: int, at: int) -> State:
    movers = list(state.movers)
    movers[number] = at
    return state._replace(movers=tuple(movers))


def wrong(state: State) -> str | None:
    if state.entries_shown and state.txn != COMMITTED:
        return ABORTED_SHOWN
    return TWICE if len(state.acked) > 1 else None


def left(state: State) -> str | None:
    if state.unsent or state.shown < len(state.log) or state.shown_child < state.child:
        return STUCK
    if state.txn == COMMITTED and state.entries_shown < state.log.count(ENTRY):
        return LOST
    return LOST if state.txn == COMMITTED and state.ack_due and not state.acked else None


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, wrong, left)
