"""
A commit moves the cursor and removes the operations in one step with the header (``coordinator.settled_commit`` in
``txnframework_metadata`` follows this).

Who takes part: a *committer*, whose transaction has an entry and an acknowledgment under branch 0, and another
process's entry under a branch that the commit does not list; a *sweep*, which aborts an open transaction; a
*neighbour*, which acknowledges another message outside transactions, as a consumer that took the lease over does; a
*user*, who seeks; a *settler*, which may settle the ended transaction at any time, and stop at any step; a *reader*,
which looks at the operations, then at the header, then at abort records; and a *collector*, which forgets a header
without operations. The reply to the committer may be lost, and it may be killed.

The batch is sent some time after the committer knew the cursor, and may be carried out late, after the committer has
stopped waiting for it. If a condition of it is not met, nothing is changed, and the committer sets the header alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

LEAKED = "the acknowledgment took effect without the commit"
UNDONE = "an acknowledgment of the neighbour is lost"
UNSOUGHT = "an acknowledgment from before the seek took effect after it"
LOST = "the acknowledgment of a committed transaction is lost"
DECIDED_TWICE = "the outcome changed after others could see another one"
SHOWN_WRONG = "a reader took an entry for committed that does not count, or missed one that does"
TOLD_OTHERWISE = "the committer was told another outcome than the real one"


class Rule(StrEnum):
    """What makes the one step the same as the usual ones without a pause between them."""

    ONE_STEP = "the header, the cursor and the operations change in one step"
    HEADER_CHECKED = "the batch names the version of the open header"
    CURSOR_CHECKED = "the batch names the version of the cursor from which its new value was made"
    COUNTING_ONLY = "operations of branches that do not count stay for the settling"
    FOUND_BY_THE_HEADER = "after a lost reply, the header is compared and set again"


HARM = {
    Rule.ONE_STEP: LEAKED,
    Rule.HEADER_CHECKED: DECIDED_TWICE,
    Rule.CURSOR_CHECKED: UNDONE,
    Rule.COUNTING_ONLY: SHOWN_WRONG,
    Rule.FOUND_BY_THE_HEADER: TOLD_OTHERWISE,
}
STATES_MIN = 5_000


class Header(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    GONE = "collected"


class Committer(StrEnum):
    READY = "knows the cursor"
    SENT = "has sent the batch"
    WITHOUT_REPLY = "has no reply"
    REFUSED = "was refused by a condition"
    COMMITTED = "was told that it is committed"
    ABORTED = "was told that it is aborted"
    DEAD = "was killed"


class Cursor(NamedTuple):
    """Each write makes a new version. ``own``, ``other``: the messages that are acknowledged in this incarnation."""

    version: int = 0
    incarnation: int = 0
    own: bool = False
    other: bool = False


class Operations(NamedTuple):
    """Which records there are, or were seen."""

    write: bool = True
    ack: bool = True
    uncounted: bool = True


NO_OPERATIONS = Operations(False, False, False)


class State(NamedTuple):
    """
    ``known``: the cursor as the committer knows it; ``on_its_way``: its batch may still be carried out.
    ``first``: the first outcome that the header had. ``hidden``: the entries with abort records, of branch 0 and of the
    other one. ``settler``: the operations that it removes, and the cursor that it read. ``seen``, ``seen_header``: what
    the reader has looked at. ``neighbour``, ``user``: the cursor that each has read; None: not begun, or done.
    """

    header: Header = Header.OPEN
    first: Header | None = None
    cursor: Cursor = Cursor()
    operations: Operations = Operations()
    hidden: tuple[bool, bool] = (False, False)
    committer: Committer = Committer.READY
    known: Cursor = Cursor()
    on_its_way: bool = False
    settler: tuple[Operations, Cursor | None] | None = None
    seen: Operations | None = None
    seen_header: Header | None = None
    wrongly_shown: bool = False
    neighbour: Cursor | None = None
    has_acknowledged: bool = False
    user: Cursor | None = None
    has_sought: bool = False


Steps = Iterator[tuple[str, State]]
ENDED = (Header.COMMITTED, Header.ABORTED)
WAITING = (Committer.SENT, Committer.WITHOUT_REPLY)


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without

    def steps(self, state: State) -> Steps:
        yield from self._committer(state)
        yield from self._store(state)
        yield from _neighbours(state)
        yield from _settler(state)
        yield from _reader(state)
        if state.header is Header.OPEN:
            yield "the sweep aborts it", _decided(state, Header.ABORTED)
        if state.header in ENDED and state.operations == NO_OPERATIONS:
            yield "the header is collected", state._replace(header=Header.GONE)

    def _committer(self, state: State) -> Steps:
        if state.committer is Committer.READY:
            yield "the committer sends the batch", state._replace(committer=Committer.SENT, on_its_way=True)
        if state.committer is Committer.SENT:
            yield "the reply is lost", state._replace(committer=Committer.WITHOUT_REPLY)
        if state.committer in (Committer.WITHOUT_REPLY, Committer.REFUSED):
            if state.committer is Committer.WITHOUT_REPLY and self._without is Rule.FOUND_BY_THE_HEADER:
                yield "the committer takes it for refused", state._replace(committer=Committer.ABORTED)
            elif state.header is Header.OPEN:
                committed = _decided(state, Header.COMMITTED)
                yield "the committer sets the header alone", committed._replace(committer=Committer.COMMITTED)
            elif state.header in ENDED:
                told = Committer.COMMITTED if state.header is Header.COMMITTED else Committer.ABORTED
                yield "the committer finds it ended", state._replace(committer=told)
        if state.committer in (Committer.READY, *WAITING, Committer.REFUSED):
            yield "the committer is killed", state._replace(committer=Committer.DEAD)

    def _store(self, state: State) -> Steps:
        """Carry the batch out, or refuse it."""
        if not state.on_its_way:
            return
        arrived = state._replace(on_its_way=False)
        header_met = state.header is Header.OPEN or self._without is Rule.HEADER_CHECKED
        cursor_met = state.cursor == state.known or self._without is Rule.CURSOR_CHECKED
        if not header_met or not cursor_met or not (state.operations.write and state.operations.ack):
            refused = Committer.REFUSED if state.committer is Committer.SENT else state.committer
            yield "the batch is refused", arrived._replace(committer=refused)
            return
        uncounted = state.operations.uncounted and self._without is not Rule.COUNTING_ONLY
        moved = _moved(arrived, state.known._replace(own=True))._replace(operations=Operations(False, False, uncounted))
        if self._without is Rule.ONE_STEP:
            refused = Committer.REFUSED if state.committer is Committer.SENT else state.committer
            yield "the cursor moves before the header", moved._replace(committer=refused)
            return
        replied = Committer.COMMITTED if state.committer is Committer.SENT else state.committer
        yield "the batch is applied", _decided(moved, Header.COMMITTED)._replace(committer=replied)

    def wrong(self, state: State) -> str | None:
        """Return what is wrong in a state."""
        if state.first is not None and state.header not in (state.first, Header.GONE):
            return DECIDED_TWICE
        if state.cursor.own and state.cursor.incarnation:
            return UNSOUGHT
        if state.cursor.own and state.first is not Header.COMMITTED:
            return LEAKED
        if state.has_acknowledged and not state.has_sought and not state.cursor.other:
            return UNDONE
        is_gone = not state.operations.ack and not state.cursor.incarnation
        if state.first is Header.COMMITTED and is_gone and not state.cursor.own:
            return LOST
        if state.wrongly_shown:
            return SHOWN_WRONG
        told = {Committer.COMMITTED: Header.COMMITTED, Committer.ABORTED: Header.ABORTED}.get(state.committer)
        return TOLD_OTHERWISE if told is not None and state.first not in (None, told) else None


def _neighbours(state: State) -> Steps:
    """Move the cursor by compare-and-set: the neighbour acknowledges, and the user seeks to the beginning."""
    if state.neighbour is None and not state.has_acknowledged:
        yield "the neighbour reads the cursor", state._replace(neighbour=state.cursor)
    elif state.neighbour is not None and state.neighbour != state.cursor:
        yield "the neighbour reads the cursor again", state._replace(neighbour=state.cursor)
    elif state.neighbour is not None:
        done = state._replace(neighbour=None, has_acknowledged=True)
        yield "the neighbour acknowledges", _moved(done, state.cursor._replace(other=True))
    if state.user is None and not state.has_sought:
        yield "the user reads the cursor", state._replace(user=state.cursor)
    elif state.user is not None and state.user != state.cursor:
        yield "the user reads the cursor again", state._replace(user=state.cursor)
    elif state.user is not None:
        sought = Cursor(state.cursor.version, state.cursor.incarnation + 1)
        yield "the user seeks", _moved(state._replace(user=None, has_sought=True), sought)


def _settler(state: State) -> Steps:
    """Settle as after every end: abort records, the cursor, and then the operations."""
    if state.settler is None:
        if state.header in ENDED and state.operations != NO_OPERATIONS:
            hidden = (state.hidden[0] or state.header is Header.ABORTED, True)
            begun = state._replace(settler=(state.operations, None), hidden=hidden)
            yield "the settler writes abort records", begun
        return
    found, read = state.settler
    yield "the settler stops", state._replace(settler=None)
    moves = found.ack and state.first is Header.COMMITTED
    if moves and read is None:
        yield "the settler reads the cursor", state._replace(settler=(found, state.cursor))
    elif moves and read != state.cursor:
        yield "the settler reads the cursor again", state._replace(settler=(found, state.cursor))
    elif moves and state.cursor.incarnation == 0 and not state.cursor.own:
        after = _moved(state, state.cursor._replace(own=True))
        yield "the settler moves the cursor", after._replace(settler=(found, after.cursor))
    else:
        left = Operations(*(is_left and not seen for is_left, seen in zip(state.operations, found, strict=True)))
        yield "the settler removes the operations", state._replace(operations=left, settler=None)


def _reader(state: State) -> Steps:
    """Look at the operations, at the header, and at abort records; both entries were stored before."""
    if state.seen is None:
        yield "the reader scans the operations", state._replace(seen=state.operations)
    elif state.seen_header is None:
        yield "the reader reads the header", state._replace(seen_header=state.header)
    else:
        again = state._replace(seen=None, seen_header=None)
        wrong = any(
            shown is not None and shown != counts
            for shown, counts in (
                (_shown(state, state.seen.write, state.hidden[0], True), state.first is Header.COMMITTED),
                (_shown(state, state.seen.uncounted, state.hidden[1], False), False),
            )
        )
        yield "the reader decides by abort records", again._replace(wrongly_shown=wrong)


def _shown(state: State, has_operation: bool, is_hidden: bool, is_listed: bool) -> bool | None:
    """Return whether a reader takes an entry for committed; None: it waits."""
    if is_hidden:
        return False
    if not has_operation or state.seen_header is Header.GONE:
        return True
    if state.seen_header is Header.OPEN:
        return None
    return is_listed and state.seen_header is Header.COMMITTED


def _moved(state: State, cursor: Cursor) -> State:
    return state._replace(cursor=cursor._replace(version=state.cursor.version + 1))


def _decided(state: State, outcome: Header) -> State:
    return state._replace(header=outcome, first=state.first or outcome)


def explored(without: Rule | None = None) -> Explored:
    model = Model(without)
    return explore(State(), model.steps, model.wrong)
