"""
A topic moves from the metadata family to the log family, back, and again, and no message is acknowledged twice
(``txnframework.broker.topics.migration`` and ``MetadataPendingAcks.seal`` follow this).

Acknowledgments of the metadata family are operations, which cannot be sealed like a log. So the cursor says which
family may acknowledge, since which life of the topic. All that acknowledge one message take part: a transaction of the
metadata family, whose process may be paused between each two steps, and one transaction of the log family in each life
in which the log family has the topic. Two *movers* carry the moves out; each may be paused before each of its steps,
also until later moves are done.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple, TypeVar

from exploring import Explored, explore

FIRST_LIFE, LAST_LIFE = 1, 4
LOG_LIVES = (2, 4)
"""The metadata family has the topic in the other lives."""
MOVERS = 2
PUTS_MAX = 2

TWICE = "two committed transactions acknowledged one message"
LOST = "a confirmed acknowledgment of a committed transaction never takes effect"

T = TypeVar("T")

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
METADATA = "metadata"
PUT, HELD = "put", "held"


class Rule(StrEnum):
    """What keeps each message acknowledged once."""

    LIMITED = "a move to the log family limits the cursor to it"
    LIMITED_FIRST = "the cursor is limited before the held acknowledgments are read"
    LOOKED_AFTERWARDS = "the limit is read after the acknowledgment was put"
    ENDED_FIRST = "what is held has taken effect, or never will, before the new topic is stored"
    SEALED = "a move to the metadata family seals the log"
    LIMITED_LAST = "the metadata family is admitted again only after nothing is held in the log"
    LATER_LIFE = "a limit of an earlier life never replaces one of a later life"


HARM = {
    Rule.LIMITED: TWICE,
    Rule.LIMITED_FIRST: TWICE,
    Rule.LOOKED_AFTERWARDS: TWICE,
    Rule.ENDED_FIRST: TWICE,
    Rule.SEALED: TWICE,
    Rule.LIMITED_LAST: TWICE,
    Rule.LATER_LIFE: TWICE,
}
STATES_MIN = 5_000


class State(NamedTuple):
    """
    ``life``: that of the topic; ``limit``: since which life the cursor is limited, to the family of that life.

    ``txn``: the state of the transaction of the metadata family; ``operation``: its acknowledgment; ``admitted``: what
    it read of the cursor before it put it, if it reads too early; ``puts``: how often it tried. ``logged``: the states
    of the log family's transactions; ``holds``: whether they hold the message; ``sealed``: whether their logs are
    sealed. ``movers``: the life that each one makes, and its next step. ``acked``: whose acknowledgment took effect.
    """

    life: int = FIRST_LIFE
    limit: int = 0
    txn: str = OPEN
    operation: str = ""
    admitted: bool | None = None
    puts: int = 0
    logged: tuple[str, ...] = (OPEN,) * len(LOG_LIVES)
    holds: tuple[bool, ...] = (False,) * len(LOG_LIVES)
    sealed: tuple[bool, ...] = (False,) * len(LOG_LIVES)
    movers: tuple[tuple[int, int], ...] = ((0, 0),) * MOVERS
    acked: frozenset[str] = frozenset()


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without
        self._to_log = ["limit", "end", "store"]
        if without is Rule.LIMITED:
            self._to_log.remove("limit")
        elif without is Rule.LIMITED_FIRST:
            self._to_log = ["end", "limit", "store"]
        elif without is Rule.ENDED_FIRST:
            self._to_log = ["limit", "store", "end"]
        self._to_metadata = ["seal", "end", "limit", "store"]
        if without is Rule.SEALED:
            self._to_metadata.remove("seal")
        elif without is Rule.LIMITED_LAST:
            self._to_metadata = ["limit", "seal", "end", "store"]

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._metadata_transaction(state)
        for number in range(len(LOG_LIVES)):
            yield from self._log_transaction(state, number)
        for number in range(MOVERS):
            yield from self._mover(state, number)

    def _metadata_transaction(self, state: State) -> Iterator[tuple[str, State]]:
        if state.txn == OPEN:
            yield from self._acknowledging(state)
            if state.operation != PUT:
                yield "it is committed", state._replace(txn=COMMITTED)
        elif state.operation:
            yield "it is settled", _settled(state)

    def _acknowledging(self, state: State) -> Iterator[tuple[str, State]]:
        early = self._without is Rule.LOOKED_AFTERWARDS
        admits = state.limit not in LOG_LIVES
        if not state.operation and state.puts < PUTS_MAX:
            put = state._replace(operation=PUT, puts=state.puts + 1)
            if not early:
                yield "it puts its acknowledgment", put
            elif state.admitted is None:
                yield "it looks at the cursor", state._replace(admitted=admits and not state.acked)
            elif state.admitted:
                yield "it puts its acknowledgment", put
        if state.operation == PUT:
            may = state.admitted if early else admits and not state.acked
            yield "it confirms or takes back", state._replace(operation=HELD if may else "")

    def _log_transaction(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        if state.logged[number] != OPEN or state.life < LOG_LIVES[number]:
            return
        # A process that does not know of the next move goes on in its log, until that is sealed.
        if not state.holds[number] and not state.sealed[number] and not state.acked:
            yield f"{number} holds the message in its log", _hold(state, number, True)
        if state.holds[number]:
            yield f"{number} is committed", _end(state, number, COMMITTED)

    def _mover(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        makes, at = state.movers[number]
        steps = self._to_log if makes in LOG_LIVES else self._to_metadata
        if not makes or at == len(steps):
            if state.life < LAST_LIFE and makes <= state.life:
                yield f"mover {number} begins", _at(state, number, state.life + 1, 0)
            return
        what = steps[at]
        done, is_done = self._carried_out(state, makes, what)
        yield f"mover {number}: {what}", _at(done, number, makes, at + 1 if is_done else at)

    def _carried_out(self, state: State, makes: int, what: str) -> tuple[State, bool]:
        if what == "limit":
            is_later = makes > state.limit or self._without is Rule.LATER_LIFE
            return (state._replace(limit=makes) if is_later else state), True
        if what == "store":
            return (state._replace(life=makes) if state.life == makes - 1 else state), True
        if makes in LOG_LIVES:
            if state.operation and state.txn == OPEN:
                return state._replace(txn=ABORTED), False
            return (_settled(state) if state.operation else state), True
        number = LOG_LIVES.index(makes - 1)
        if what == "seal":
            return state._replace(sealed=_with(state.sealed, number, True)), True
        if state.holds[number] and state.logged[number] == OPEN:
            return _end(state, number, ABORTED), False
        return state, True


def _settled(state: State) -> State:
    acked = state.acked | {METADATA} if state.txn == COMMITTED and state.operation == HELD else state.acked
    return state._replace(operation="", acked=acked)


def _hold(state: State, number: int, held: bool) -> State:
    return state._replace(holds=_with(state.holds, number, held))


def _end(state: State, number: int, outcome: str) -> State:
    acked = state.acked | {str(number)} if outcome == COMMITTED else state.acked
    ended = state._replace(logged=_with(state.logged, number, outcome), acked=acked)
    return _hold(ended, number, False)


def _with(values: tuple[T, ...], number: int, value: T) -> tuple[T, ...]:
    return (*values[:number], value, *values[number + 1 :])


def _at(state: State, number: int, makes: int, at: int) -> State:
    return state._replace(movers=_with(state.movers, number, (makes, at)))


def wrong(state: State) -> str | None:
    return TWICE if len(state.acked) > 1 else None


def left(state: State) -> str | None:
    return LOST if state.txn == COMMITTED and state.operation == HELD and METADATA not in state.acked else None


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, wrong, left)
