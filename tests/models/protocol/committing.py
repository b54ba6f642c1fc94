"""
Rows of the application, messages and acknowledgments commit together (``coordinator.co_commit`` in
``txnframework_metadata`` and ``client._co_commit`` follow this).

The processes: an *application*, which writes rows in a transaction of its database, puts the final header in the same
transaction and sends one COMMIT; a *sweep*, which reads the header and later aborts it by compare-and-set; and a *tool*
of an operator, which reads the header and later commits it by compare-and-set. The *database* carries a COMMIT out some
time after it was sent, also after the connection was lost. It rolls a transaction back when it notices that the
connection is gone and no COMMIT is on its way. The reply to the COMMIT may be lost, and the application may be killed
at any step. An application without a reply finds out the outcome, and then returns it to its caller.

The messages and acknowledgments count if and only if the header is COMMITTED.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

MESSAGES_WITHOUT_ROWS = "messages count without the rows"
ROWS_WITHOUT_MESSAGES = "rows count without the messages"
DECIDED_TWICE = "the outcome changed after others had seen another one"
TOLD_OTHERWISE = "the application was told another outcome than the real one"
NEVER_ENDED = "the transaction is never ended, or the application is never told"


class Rule(StrEnum):
    """The rules that keep rows, messages and acknowledgments together."""

    ONE_COMMIT = "the header is put in the database transaction of the rows"
    VERSION_CHECKED = "the put checks the version of the header"
    LOCKED = "nothing else changes the header between the put and the end of the database transaction"
    NO_OTHER_COMMIT = "the header is committed by the database transaction only"
    ABORT_TO_FIND_OUT = "after a lost reply the application tries to abort, and does not only read"
    ROLLED_BACK = "the database rolls back when the connection is lost"


HARM = {
    Rule.ONE_COMMIT: MESSAGES_WITHOUT_ROWS,
    Rule.VERSION_CHECKED: DECIDED_TWICE,
    Rule.LOCKED: DECIDED_TWICE,
    Rule.NO_OTHER_COMMIT: MESSAGES_WITHOUT_ROWS,
    Rule.ABORT_TO_FIND_OUT: TOLD_OTHERWISE,
    Rule.ROLLED_BACK: NEVER_ENDED,
}
STATES_MIN = 70


class Header(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Application(StrEnum):
    WRITING = "writes rows"
    PUT = "has put the header"
    SENT = "has sent the COMMIT"
    WITHOUT_REPLY = "has lost the connection after the COMMIT"
    TOLD_COMMITTED = "was told that it is committed"
    TOLD_ABORTED = "was told that it is aborted"
    DEAD = "was killed"


class Rows(StrEnum):
    """The database transaction."""

    WRITTEN = "written"
    PUT = "written, with the header"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class State(NamedTuple):
    """
    ``seen``: the first outcome that the header had. ``on_its_way``: the COMMIT was sent and has not arrived.
    ``sweep``, ``tool``: whether it has read the open header, and goes on to its compare-and-set.
    """

    header: Header = Header.OPEN
    seen: Header | None = None
    rows: Rows = Rows.WRITTEN
    application: Application = Application.WRITING
    connected: bool = True
    on_its_way: bool = False
    sweep: bool = False
    tool: bool = False


ALIVE = (Application.WRITING, Application.PUT, Application.SENT, Application.WITHOUT_REPLY)


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._application(state)
        yield from self._resolving(state)
        yield from self._database(state)
        yield from self._others(state)

    def _application(self, state: State) -> Iterator[tuple[str, State]]:
        if state.application is Application.WRITING:
            yield from self._put(state)
            gone = state._replace(application=Application.TOLD_ABORTED, rows=Rows.ROLLED_BACK)
            if state.header is Header.ABORTED:
                yield "the application finds it aborted, and rolls back", gone
        if state.application is Application.PUT:
            yield "the application sends the COMMIT", state._replace(application=Application.SENT, on_its_way=True)
        if state.application is Application.SENT:
            if state.rows is Rows.COMMITTED:
                yield "the reply arrives", state._replace(application=Application.TOLD_COMMITTED)
            lost = state._replace(application=Application.WITHOUT_REPLY, connected=False)
            yield "the connection is lost", lost
            yield "the connection is lost, and the COMMIT with it", lost._replace(on_its_way=False)
        if state.application in ALIVE:
            yield "the application is killed", state._replace(application=Application.DEAD, connected=False)

    def _put(self, state: State) -> Iterator[tuple[str, State]]:
        if state.header is not Header.OPEN and self._without is not Rule.VERSION_CHECKED:
            return
        put = state._replace(application=Application.PUT, rows=Rows.PUT)
        if self._without is Rule.ONE_COMMIT:
            put = _decided(put, Header.COMMITTED)
        yield "the application puts the header", put

    def _resolving(self, state: State) -> Iterator[tuple[str, State]]:
        if state.application is not Application.WITHOUT_REPLY:
            return
        if state.header is Header.COMMITTED:
            yield "the application finds it committed", state._replace(application=Application.TOLD_COMMITTED)
        elif self._without is Rule.ABORT_TO_FIND_OUT:
            yield "the application reads that it is open", state._replace(application=Application.TOLD_ABORTED)
        elif not self._is_locked(state):
            aborted = _decided(state, Header.ABORTED) if state.header is Header.OPEN else state
            yield "the application aborts it", aborted._replace(application=Application.TOLD_ABORTED)

    def _database(self, state: State) -> Iterator[tuple[str, State]]:
        if state.on_its_way and state.rows is Rows.PUT:
            committed = state._replace(rows=Rows.COMMITTED, on_its_way=False)
            yield "the database commits", _decided(committed, Header.COMMITTED)
        noticed = not state.connected and not state.on_its_way and self._without is not Rule.ROLLED_BACK
        if noticed and state.rows in (Rows.WRITTEN, Rows.PUT):
            yield "the database rolls back", state._replace(rows=Rows.ROLLED_BACK)

    def _others(self, state: State) -> Iterator[tuple[str, State]]:
        is_open = state.header is Header.OPEN
        if is_open and not state.sweep:
            yield "the sweep reads that it is open", state._replace(sweep=True)
        if state.sweep and not self._is_locked(state):
            ended = _decided(state, Header.ABORTED) if is_open else state
            yield "the sweep compares and sets ABORTED", ended._replace(sweep=False)
        if is_open and not state.tool:
            yield "the tool reads that it is open", state._replace(tool=True)
        if state.tool and not self._is_locked(state):
            outcome = Header.COMMITTED if self._without is Rule.NO_OTHER_COMMIT else Header.ABORTED
            ended = _decided(state, outcome) if is_open else state
            yield f"the tool compares and sets {outcome}", ended._replace(tool=False)

    def _is_locked(self, state: State) -> bool:
        return state.rows is Rows.PUT and self._without is not Rule.LOCKED

    def wrong(self, state: State) -> str | None:
        """Return what is wrong in a state."""
        if state.seen is not None and state.header is not state.seen:
            return DECIDED_TWICE
        if state.rows is Rows.COMMITTED and state.header is not Header.COMMITTED:
            return ROWS_WITHOUT_MESSAGES
        # Rows that can still be committed count as missing only when they cannot any more.
        if state.header is Header.COMMITTED and state.rows in (Rows.WRITTEN, Rows.ROLLED_BACK):
            return MESSAGES_WITHOUT_ROWS
        told = {Application.TOLD_COMMITTED: Header.COMMITTED, Application.TOLD_ABORTED: Header.ABORTED}
        expected = told.get(state.application)
        if expected is not None and state.header is not Header.OPEN and state.header is not expected:
            return TOLD_OTHERWISE
        return None


def left(state: State) -> str | None:
    """Return what is wrong in a state that no step leads out of."""
    return NEVER_ENDED if state.header is Header.OPEN or state.application in ALIVE else None


def _decided(state: State, outcome: Header) -> State:
    return state._replace(header=outcome, seen=state.seen or outcome)


def explored(without: Rule | None = None) -> Explored:
    model = Model(without)
    return explore(State(), model.steps, model.wrong, left)
