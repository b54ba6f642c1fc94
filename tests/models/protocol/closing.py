"""
Another process commits a transaction by its id (``coordinator.unfinished_commit`` and ``buffer.intents`` in
``txnframework_metadata`` follow this).

Who takes part: the *owner*, who is admitted to the open ledger by a record, and appends to that ledger, and may be
paused before each step; a *committer*, who does not know what the owner is about to do, and may be killed and begin
again; a writer of *plain* entries; and the owner's *timeout*. An admission is the weaker of its two forms: the
record is put, and then the header is read again. An append names the ledger of the admission. The open ledger refuses
it if it is another one. A reader may read as soon as the header is COMMITTED.

The rule: what a reader may have seen of a committed transaction does not grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

GREW = "an entry was added to a transaction that readers had seen committed"
STUCK = "the transaction is never ended"
LEDGERS_MAX = 3
ENTRIES_MAX = 2


class Rule(StrEnum):
    """What keeps a committed transaction as it is."""

    MARKED = "the header says that a commit has begun, before the records of admissions are read"
    MARK_HEEDED = "no admission succeeds after the header says that a commit has begun"
    CLOSED = "the open ledger is closed if the branch was admitted to it"
    EMPTY_REFUSED = "the commit is refused if that ledger is empty, because it cannot be closed"
    NAMED = "an append goes to the ledger of its admission only"
    MARK_IS_OPEN = "a transaction whose commit has begun is open: it times out, and the commit can be repeated"


HARM = {
    Rule.MARKED: GREW,
    Rule.MARK_HEEDED: GREW,
    Rule.CLOSED: GREW,
    Rule.EMPTY_REFUSED: GREW,
    Rule.NAMED: GREW,
    Rule.MARK_IS_OPEN: STUCK,
}
STATES_MIN = 300


class Header(StrEnum):
    OPEN = "open"
    MARKED = "open, and a commit has begun"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Owner(StrEnum):
    IDLE = "is about to send"
    PUT = "has put the record of an admission"
    ADMITTED = "is admitted"
    REFUSED = "was refused"


class Committer(StrEnum):
    START = "has not begun"
    MARKED = "has marked the header"
    READ = "has read the records"
    CLOSED = "has closed the ledger"
    DONE = "is done"


class State(NamedTuple):
    """
    ``open_ledger``: its number, from 0. ``is_empty``: whether the open ledger is. ``records``: the ledgers to which the
    owner was admitted. ``admitted``: the ledger of its last admission. ``entries``: how many entries it has appended.
    ``found``: the records as the committer has read them.
    """

    header: Header = Header.OPEN
    owner: Owner = Owner.IDLE
    open_ledger: int = 0
    is_empty: bool = True
    records: frozenset[int] = frozenset()
    admitted: int = 0
    entries: int = 0
    committer: Committer = Committer.START
    found: frozenset[int] = frozenset()
    grew: bool = False


Steps = Iterator[tuple[str, State]]


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without

    def steps(self, state: State) -> Steps:
        yield from self._owner(state)
        yield from self._committer(state)
        if state.is_empty:
            yield "a plain entry is appended", state._replace(is_empty=False)
        if state.header is Header.OPEN or (state.header is Header.MARKED and self._without is not Rule.MARK_IS_OPEN):
            yield "the transaction times out", state._replace(header=Header.ABORTED)

    def _owner(self, state: State) -> Steps:
        if state.owner is Owner.IDLE:
            admitted = state._replace(admitted=state.open_ledger, records=state.records | {state.open_ledger})
            yield "the owner puts the record of an admission", admitted._replace(owner=Owner.PUT)
        elif state.owner is Owner.PUT:
            heeds = self._without is not Rule.MARK_HEEDED
            if state.header is Header.OPEN or (state.header is Header.MARKED and not heeds):
                yield "the owner finds the header open", state._replace(owner=Owner.ADMITTED)
            else:
                yield "the owner finds that nothing can be added", state._replace(owner=Owner.REFUSED)
        elif state.owner is Owner.ADMITTED and state.entries < ENTRIES_MAX:
            if state.admitted == state.open_ledger or self._without is Rule.NAMED:
                grew = state.header is Header.COMMITTED
                appended = state._replace(entries=state.entries + 1, is_empty=False, grew=grew)
                yield "the owner appends", appended
            else:
                yield "the owner finds the ledger closed", state._replace(owner=Owner.IDLE)

    def _committer(self, state: State) -> Steps:
        if state.committer is not Committer.START and state.committer is not Committer.DONE:
            yield "the committer is killed, and begins again", state._replace(committer=Committer.START)
        if state.header not in (Header.OPEN, Header.MARKED):
            if state.committer is not Committer.DONE:
                yield "the committer finds it ended", state._replace(committer=Committer.DONE)
        elif state.committer is Committer.START:
            marked = state.header if self._without is Rule.MARKED else Header.MARKED
            yield "the committer marks the header", state._replace(committer=Committer.MARKED, header=marked)
        elif state.committer is Committer.MARKED:
            yield "the committer reads the records", state._replace(committer=Committer.READ, found=state.records)
        elif state.committer is Committer.READ:
            yield from self._closing(state)
        elif state.committer is Committer.CLOSED:
            yield (
                "the committer compares and sets COMMITTED",
                state._replace(header=Header.COMMITTED, committer=Committer.DONE),
            )

    def _closing(self, state: State) -> Steps:
        closed = state._replace(committer=Committer.CLOSED)
        if state.open_ledger not in state.found or self._without is Rule.CLOSED:
            yield "the committer finds nothing to close", closed
        elif state.is_empty:
            if self._without is Rule.EMPTY_REFUSED:
                yield "the committer finds the ledger empty", closed
            else:
                yield "the commit is refused", state._replace(committer=Committer.DONE)
        elif state.open_ledger < LEDGERS_MAX:
            opened = closed._replace(open_ledger=state.open_ledger + 1, is_empty=True)
            yield "the committer closes the ledger", opened


def _wrong(state: State) -> str | None:
    return GREW if state.grew else None


def _left(state: State) -> str | None:
    return STUCK if state.header in (Header.OPEN, Header.MARKED) else None


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, _wrong, _left)
