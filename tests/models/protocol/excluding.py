"""
Acknowledgments in one step on a database whose writes run side by side.

A step requires that a range of an index has no entry, and a usual acknowledgment puts an entry there. Each statement
reads a snapshot, and sees nothing that is committed after it began. What makes the range conclusive is the lock of a
record, the *cursor*: the step moves it, and a process that puts an entry checks it, whatever its version is.

Who takes part: a *usual* process, which acknowledges two messages by one statement, each in a range of its own. Then
the process looks at the cursors, and confirms the acknowledgments or takes them back. What it confirmed is settled
later: the cursors move, then the entries are deleted. Two *steps* plan the same two messages, and each moves both
cursors in its only database transaction. A step may be killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

TWICE = "messages are acknowledged by two transactions"
STUCK = "a process waits for ever"


class Rule(StrEnum):
    """What makes a vacant range conclusive, and lets every wait end."""

    SHARED = "each process that puts an entry checks the cursor of its range, which excludes moves of it"
    LATER_STATEMENT = "a step looks at the ranges in a statement that begins once it has the locks of the cursors"
    HELD_TO_THE_END = "a step keeps its locks until its changes are visible"
    PUT_THEN_LOOK = "a usual process looks at the cursors after its entries are visible"
    COMPARED = "a step moves the cursors only if they are as it planned"
    SORTED = "all processes lock the cursors in the same order"
    OF_THE_TRANSACTION = "the locks end with the database transaction, not with the connection"


HARM = {
    Rule.SHARED: TWICE,
    Rule.LATER_STATEMENT: TWICE,
    Rule.HELD_TO_THE_END: TWICE,
    Rule.PUT_THEN_LOOK: TWICE,
    Rule.COMPARED: TWICE,
    Rule.SORTED: STUCK,
    Rule.OF_THE_TRANSACTION: STUCK,
}
STATES_MIN = 250


class Op(StrEnum):
    """What a process does next; ``CURSOR_A`` and ``CURSOR_B`` wait for a lock."""

    PLAN = "plans"
    CURSOR_A = "locks cursor a"
    CURSOR_B = "locks cursor b"
    LOOK_AT_RANGES = "looks at the ranges"
    COMMIT = "commits in the database"
    LOOK_AT_CURSORS = "looks at the cursors"
    ANSWER = "answers"
    SETTLE = "moves the cursors"
    FORGET = "deletes the entries"


LOCKS = (Op.CURSOR_A, Op.CURSOR_B)
Program = tuple[Op, ...]

USUAL: Program = (*LOCKS, Op.COMMIT, Op.LOOK_AT_CURSORS, Op.ANSWER, Op.SETTLE, Op.FORGET)
STEP: Program = (Op.PLAN, *LOCKS, Op.LOOK_AT_RANGES, Op.COMMIT)


def programs(without: Rule | None) -> tuple[Program, Program, Program]:
    """Return what the usual process and the steps do, with one of the rules left out; pure."""
    usual, step, other = USUAL, STEP, STEP
    if without is Rule.SHARED:
        usual = tuple(op for op in USUAL if op not in LOCKS)
    elif without is Rule.LATER_STATEMENT:
        # One statement has one snapshot, which is older than the locks that the statement waits for.
        step = other = (Op.PLAN, Op.LOOK_AT_RANGES, *LOCKS, Op.COMMIT)
    elif without is Rule.PUT_THEN_LOOK:
        usual = (Op.LOOK_AT_CURSORS, *LOCKS, Op.COMMIT, Op.ANSWER, Op.SETTLE, Op.FORGET)
    elif without is Rule.SORTED:
        other = (Op.PLAN, Op.CURSOR_B, Op.CURSOR_A, Op.LOOK_AT_RANGES, Op.COMMIT)
    return usual, step, other


class Process(NamedTuple):
    """
    A process.

    ``done``: how many operations. ``held``: its locks. ``sees``: whether the usual process found that the cursors
    moved. ``planned``: the version of the cursors that a step expects.
    """

    done: int = 0
    held: frozenset[Op] = frozenset()
    sees: bool = False
    planned: int = 0
    ended: bool = False


class State(NamedTuple):
    """
    The database and the processes, of which the first is the usual one.

    ``entries``: whether the ranges have the entries. ``cursors``: the version of the cursors, which has moved if it is
    not 0. ``acknowledged``: how many transactions have acknowledged the messages.
    """

    processes: tuple[Process, Process, Process] = (Process(), Process(), Process())
    entries: bool = False
    cursors: int = 0
    acknowledged: int = 0


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without
        self._programs = programs(without)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, mine in enumerate(state.processes):
            if mine.ended:
                continue
            name = f"step {number}" if number else "the usual process"
            op = self._programs[number][mine.done]
            if number == 1 and mine.done:
                held = mine.held if self._without is Rule.OF_THE_TRANSACTION else frozenset()
                yield f"{name} is killed", _with(state, number, mine._replace(ended=True, held=held))
            if not self._waits(state, number, op):
                perform = self._step if number else self._usual
                yield f"{name} {op}", perform(state, number, op, mine._replace(done=mine.done + 1))

    def _waits(self, state: State, number: int, op: Op) -> bool:
        """Return whether another process has a lock; only the usual process shares cursors, and it is alone."""
        wanted = set(LOCKS) if op is Op.SETTLE else {op} & set(LOCKS)
        return any(wanted & one.held for place, one in enumerate(state.processes) if place != number)

    def _usual(self, state: State, number: int, op: Op, mine: Process) -> State:
        if op in LOCKS:
            mine = mine._replace(held=mine.held | {op})
        elif op is Op.COMMIT:
            mine, state = mine._replace(held=frozenset()), state._replace(entries=True)
        elif op is Op.LOOK_AT_CURSORS:
            mine = mine._replace(sees=state.cursors > 0)
        elif op is Op.ANSWER and mine.sees:
            mine, state = mine._replace(ended=True), state._replace(entries=False)
        elif op is Op.ANSWER:
            state = state._replace(acknowledged=state.acknowledged + 1)
        elif op is Op.SETTLE:
            state = state._replace(cursors=state.cursors + 1)
        else:
            mine, state = mine._replace(ended=True), state._replace(entries=False)
        return _with(state, number, mine)

    def _step(self, state: State, number: int, op: Op, mine: Process) -> State:
        if op is Op.PLAN:
            mine = mine._replace(planned=state.cursors, ended=state.cursors > 0)
        elif op in LOCKS:
            mine = mine._replace(held=mine.held | {op})
            if state.cursors != mine.planned and self._without is not Rule.COMPARED:
                mine = _over(mine)
        elif op is Op.LOOK_AT_RANGES:
            kept = frozenset() if self._without is Rule.HELD_TO_THE_END else mine.held
            mine = _over(mine) if state.entries else mine._replace(held=kept)
        else:
            state = state._replace(cursors=state.cursors + 1, acknowledged=state.acknowledged + 1)
            mine = _over(mine)
        return _with(state, number, mine)


def _over(process: Process) -> Process:
    """Return the step after the end of its database transaction."""
    return process._replace(ended=True, held=frozenset())


def _with(state: State, number: int, process: Process) -> State:
    first, second, third = (process if place == number else one for place, one in enumerate(state.processes))
    return state._replace(processes=(first, second, third))


def wrong(state: State) -> str | None:
    return TWICE if state.acknowledged > 1 else None


def left(state: State) -> str | None:
    return None if all(one.ended for one in state.processes) else STUCK


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, wrong, left)
