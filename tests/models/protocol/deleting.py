"""
A persistent topic is deleted and made again under the same name, while others still remove the former one
(``txnframework.broker.topics.deletion`` and ``txnframework.broker.topics.topics`` follow this).

Who takes part: *two deleters*, one of the first topic and one of the second, whose replies may be lost, so that the
call is repeated; *two finishers*, who remove what is left of a deleted topic and may be paused between any two steps;
*two creators*, who make the next topic of the name, and may leave an empty ledger behind if another was quicker;
a writer, by which the topic's ledgers *roll over*; and a *settler*, who puts abort records while there is a
ledger. The name means one managed ledger at a time. Its life, not known to the code, tells here of which topic it has
entries.

The rule: nothing of the next topic is sealed or removed; once nothing is said to be left of the former one, nothing is;
and what is left can always be removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

LIVES_MAX = 3
LEDGER_IDS_MAX = 3
"""The ledger does not roll over beyond this number."""
NO_LEDGER = -1
NOBODY = 0
"""The life of a ledger that was created for a topic that does not exist yet."""

HURT = "the next topic has no ledger that it can append to"
FORGOTTEN = "an abort record of the next topic is removed"
LEFT = "something of the former topic is left for the next one"
UNFINISHED = "a deleted topic stays, and nobody can remove what is left of it"
DELETED = "the next topic is deleted by a call that meant the former one"


class Rule(StrEnum):
    """What keeps the topics of one name apart."""

    DECIDED_FOR_ONE_LIFE = "a deletion that is repeated means the topic that it found first"
    MARK_LOOKED_AT_AGAIN = "the mark is looked at again once the ledger was opened"
    OPENED_STAYS = "what was opened stays the ledger that it was, whatever is made under its name"
    SEALED_FIRST = "the ledger is sealed before its last id is read, so that there are no higher ones"
    LEDGER_BOUNDED = "the ledger is removed only up to the last id that the mark names"
    RECORDS_BOUNDED = "abort records are removed only up to the last id that the mark names"
    LEDGER_BEFORE_RECORDS = "the ledger goes before the abort records, which nobody writes without it"
    IDS_DO_NOT_RETURN = "ledger ids go on where those of the former topic ended"


HARM = {
    Rule.DECIDED_FOR_ONE_LIFE: DELETED,
    Rule.MARK_LOOKED_AT_AGAIN: HURT,
    Rule.OPENED_STAYS: HURT,
    Rule.SEALED_FIRST: LEFT,
    Rule.LEDGER_BOUNDED: HURT,
    Rule.RECORDS_BOUNDED: FORGOTTEN,
    Rule.LEDGER_BEFORE_RECORDS: LEFT,
    Rule.IDS_DO_NOT_RETURN: HURT,
}
STATES_MIN = 12_000


class Layout(NamedTuple):
    """The topic's record, which stays; ``left``: it names what is still to be removed of a deleted topic."""

    version: int = 0
    life: int = 1
    deleted: bool = False
    left: bool = True
    last_ledger: int | None = None


class Ledger(NamedTuple):
    """What the name means: of one life, with ids from ``first`` to ``last``, the open one."""

    life: int = 1
    first: int = 0
    last: int = 0
    sealed: bool = False


class Record(NamedTuple):
    """An abort record."""

    life: int
    ledger: int


class Next(StrEnum):
    """What a process does next."""

    LOOK = "look"
    OPEN = "open"
    LOOK_AGAIN = "look again"
    SEAL = "seal"
    NAME_LAST = "name the last ledger"
    REMOVE_LEDGER = "remove the ledger"
    REMOVE_RECORDS = "remove the abort records"
    MARK_REMOVED = "mark it as removed"
    CREATE_LEDGER = "create a ledger"
    PUT_LAYOUT = "put the layout"
    REST = "rest"


class Process(NamedTuple):
    """
    A process; ``seen``: the layout that it goes by. ``opened``: the first id of the ledger that it opened, ``last``:
    the last one.
    """

    next: Next = Next.LOOK
    seen: Layout = Layout()
    opened: int = NO_LEDGER
    last: int = NO_LEDGER


class State(NamedTuple):
    """``next_id``: of the next ledger."""

    layout: Layout = Layout()
    ledger: Ledger | None = Ledger()
    next_id: int = 1
    records: frozenset[Record] = frozenset()
    deleters: tuple[Process, Process] = (Process(), Process())
    finishers: tuple[Process, Process] = (Process(), Process())
    creators: tuple[Process, Process] = (Process(), Process())
    harm: str | None = None


Moved = tuple[str, State, Process]


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._writing(state)
        first, second = state.deleters
        for label, after, moved in self._deleting(state, first, 1):
            yield f"the deleter of life 1 {label}", after._replace(deleters=(moved, second))
        for label, after, moved in self._deleting(state, second, 2):
            yield f"the deleter of life 2 {label}", after._replace(deleters=(first, moved))
        for one, other in (state.finishers, state.finishers[::-1]):
            for label, after, moved in self._finishing(state, one):
                yield f"a finisher {label}", after._replace(finishers=_either_way(moved, other))
        for one, other in (state.creators, state.creators[::-1]):
            for label, after, moved in self._creating(state, one):
                yield f"a creator {label}", after._replace(creators=_either_way(moved, other))

    def _writing(self, state: State) -> Iterator[tuple[str, State]]:
        ledger = state.ledger
        if ledger is None or ledger.life == NOBODY:
            return
        if not ledger.sealed and ledger.first == ledger.last and state.next_id < LEDGER_IDS_MAX:
            rolled = ledger._replace(last=state.next_id)
            yield f"the ledger rolls over to {rolled.last}", state._replace(ledger=rolled, next_id=state.next_id + 1)
        record = Record(ledger.life, ledger.last)
        yield f"an abort record is put in ledger {ledger.last}", state._replace(records=state.records | {record})

    def _deleting(self, state: State, process: Process, meant: int) -> Iterator[Moved]:
        layout = state.layout
        if process.next is Next.LOOK and layout.life >= meant:
            if layout.deleted or (layout.life != meant and self._without is not Rule.DECIDED_FOR_ONE_LIFE):
                yield "finds it done", state, Process(Next.REST)
            else:
                yield "finds the topic", state, Process(Next.PUT_LAYOUT, layout)
        elif process.next is Next.PUT_LAYOUT:
            if layout != process.seen:
                yield "finds another layout", state, Process()
                return
            harm = DELETED if layout.life != meant else None
            after = state._replace(layout=_changed(layout)._replace(deleted=True), harm=harm)
            yield "marks the topic as deleted", after, Process(Next.REST)
            yield "marks the topic as deleted, and the reply is lost", after, Process()

    def _finishing(self, state: State, process: Process) -> Iterator[Moved]:
        layout, seen = state.layout, process.seen
        if process.next is Next.LOOK:
            if layout.deleted and layout.left:
                first = self._removing()[0]
                following = Next.OPEN if layout.last_ledger is None else first
                yield "finds something left", state, Process(following, layout)
        elif process.next is Next.MARK_REMOVED:
            if layout == seen:
                removed = _changed(layout)._replace(left=False, last_ledger=None)
                entries = state.ledger is not None and state.ledger.life != NOBODY
                harm = LEFT if entries or state.records else None
                yield "marks it as removed", state._replace(layout=removed, harm=harm), Process()
            else:
                yield "finds another layout", state, Process()
        elif process.next in self._removing():
            yield self._remove(state, process)
        else:
            yield self._find_last(state, process)

    def _find_last(self, state: State, process: Process) -> Moved:
        """Take the next step to naming the last ledger."""
        layout, ledger, seen = state.layout, state.ledger, process.seen
        if process.next is Next.OPEN:
            if ledger is None:
                return "finds no ledger", state, process._replace(next=Next.NAME_LAST)
            following = Next.SEAL if self._without is Rule.MARK_LOOKED_AT_AGAIN else Next.LOOK_AGAIN
            return f"opens ledger {ledger.last}", state, process._replace(next=following, opened=ledger.first)
        if process.next is Next.LOOK_AGAIN:
            if layout != seen:
                return "finds another layout", state, Process()
            return "finds the same mark", state, process._replace(next=Next.SEAL)
        if process.next is Next.SEAL:
            by_name = self._without is Rule.OPENED_STAYS
            if ledger is None or (ledger.first != process.opened and not by_name):
                return "finds what it opened gone", state, Process()
            sealed = ledger._replace(sealed=self._without is not Rule.SEALED_FIRST)
            named = process._replace(next=Next.NAME_LAST, opened=NO_LEDGER, last=ledger.last)
            return f"seals ledger {ledger.last}", state._replace(ledger=sealed), named
        if layout != seen:
            return "finds another layout", state, Process()
        marked = _changed(layout)._replace(last_ledger=process.last)
        return f"names ledger {process.last} as the last", state._replace(layout=marked), Process()

    def _removing(self) -> tuple[Next, Next]:
        if self._without is Rule.LEDGER_BEFORE_RECORDS:
            return Next.REMOVE_RECORDS, Next.REMOVE_LEDGER
        return Next.REMOVE_LEDGER, Next.REMOVE_RECORDS

    def _remove(self, state: State, process: Process) -> Moved:
        """Remove the ledger, or the abort records, of what the mark names."""
        ledger, last = state.ledger, process.seen.last_ledger
        assert last is not None
        first, second = self._removing()
        moved = process._replace(next=second if process.next is first else Next.MARK_REMOVED)
        if process.next is Next.REMOVE_LEDGER:
            if ledger is None or (ledger.last > last and self._without is not Rule.LEDGER_BOUNDED):
                return "finds no ledger to remove", state, moved
            return f"removes ledger {ledger.last}", state._replace(ledger=None), moved
        removed = {one for one in state.records if one.ledger <= last or self._without is Rule.RECORDS_BOUNDED}
        harm = FORGOTTEN if any(one.life > process.seen.life for one in removed) else None
        return "removes the abort records", state._replace(records=state.records - removed, harm=harm), moved

    def _creating(self, state: State, process: Process) -> Iterator[Moved]:
        layout, seen = state.layout, process.seen
        if process.next is Next.LOOK:
            if layout.deleted and not layout.left and layout.life < LIVES_MAX:
                yield "finds nothing left", state, Process(Next.CREATE_LEDGER, layout)
        elif process.next is Next.CREATE_LEDGER:
            following = process._replace(next=Next.PUT_LAYOUT)
            if state.ledger is not None:
                yield f"finds ledger {state.ledger.last}", state, following
                return
            number = 0 if self._without is Rule.IDS_DO_NOT_RETURN else state.next_id
            made = Ledger(NOBODY, number, number)
            after = state._replace(ledger=made, next_id=max(state.next_id, number + 1))
            yield f"makes ledger {number}", after, following
        elif layout == seen:
            listed = Layout(layout.version + 1, layout.life + 1)
            ledger = state.ledger
            if ledger is not None and ledger.life == NOBODY:
                ledger = ledger._replace(life=listed.life)
            yield f"lists the topic of life {listed.life}", state._replace(layout=listed, ledger=ledger), Process()
        else:
            yield "finds that another was quicker", state, Process()


def _either_way(one: Process, other: Process) -> tuple[Process, Process]:
    """Return two processes in one order, since it makes no difference which of them is which."""
    return (one, other) if hash(one) <= hash(other) else (other, one)


def _changed(layout: Layout) -> Layout:
    return layout._replace(version=layout.version + 1)


def wrong(state: State) -> str | None:
    layout, ledger = state.layout, state.ledger
    if state.harm is not None or layout.deleted:
        return state.harm
    if ledger is not None and ledger.life < layout.life:
        return LEFT
    return HURT if ledger is None or ledger.sealed else None


def left(state: State) -> str | None:
    return UNFINISHED if state.layout.deleted and state.layout.left else None


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, wrong, left)
