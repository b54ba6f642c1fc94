"""
The beginning of a log is removed once a snapshot covers it, and an opener never takes the rest for the whole
(``txnframework_nats.ledgers`` follows this).

Who takes part: a *writer*, who appends records; two *trimmers*, each of which reads the log, stores a snapshot of what
it has read, and removes records from the beginning of the log; and an *opener*, who reads the snapshot and then the
records behind it. Anybody may be paused between two steps. A snapshot names the last record that it covers, and a
record names the one before it.

The rule: what is removed can be read from the snapshot, whichever snapshot an opener has found.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

RECORDS_MAX = 5
TRIMMERS = 2

LOST = "a record is neither in the log nor in the snapshot"
INCOMPLETE = "an opener takes a log with a gap for the whole"


class Rule(StrEnum):
    """What keeps every record readable, and every reading whole."""

    SNAPSHOT_FIRST = "records are removed after the snapshot that covers them was stored"
    ONLY_FORWARD = "a snapshot is stored only over the one that its writer has read, and covers more"
    CHAINED = "an opener begins again if a record does not follow the one before"


HARM = {Rule.SNAPSHOT_FIRST: LOST, Rule.ONLY_FORWARD: LOST, Rule.CHAINED: INCOMPLETE}
STATES_MIN = 1_000


class Trimmer(NamedTuple):
    """``read``: the records that it has read. ``over``: the snapshot that it found. ``stored``: its snapshot is."""

    read: int | None = None
    over: int = 0
    stored: bool = False


class State(NamedTuple):
    """
    ``written``: the number of the last record. ``removed``: of the last one that was removed. ``snapshot``: of the last
    one that the stored snapshot covers. ``found``: what the snapshot covered that the opener has read.
    """

    written: int = 0
    removed: int = 0
    snapshot: int = 0
    trimmers: tuple[Trimmer, ...] = (Trimmer(),) * TRIMMERS
    found: int | None = None
    harm: str | None = None


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.written < RECORDS_MAX:
            yield "a record is appended", state._replace(written=state.written + 1)
        for number, trimmer in enumerate(state.trimmers):
            yield from self._trimming(state, number, trimmer)
        yield from self._opening(state)

    def _trimming(self, state: State, number: int, trimmer: Trimmer) -> Iterator[tuple[str, State]]:
        if trimmer.read is None:
            if state.written > state.removed:
                read = trimmer._replace(read=state.written, over=state.snapshot)
                yield f"trimmer {number} reads up to {state.written}", _with(state, number, read)
        elif not trimmer.stored:
            free = trimmer.over == state.snapshot and trimmer.read > state.snapshot
            if free or self._without is Rule.ONLY_FORWARD:
                following = state._replace(snapshot=trimmer.read)
                yield (
                    f"trimmer {number} stores its snapshot of {trimmer.read}",
                    _with(following, number, trimmer._replace(stored=True)),
                )
            else:
                yield f"trimmer {number} is refused, and begins again", _with(state, number, Trimmer())
            if self._without is Rule.SNAPSHOT_FIRST:
                yield from self._removing(state, number, trimmer.read)
        else:
            yield from self._removing(state, number, trimmer.read)

    def _removing(self, state: State, number: int, upto: int) -> Iterator[tuple[str, State]]:
        """The last record stays, as the next one is appended behind it."""
        removed = state._replace(removed=max(state.removed, upto - 1))
        yield f"trimmer {number} removes up to {upto - 1}", _with(removed, number, Trimmer())

    def _opening(self, state: State) -> Iterator[tuple[str, State]]:
        if state.found is None:
            yield f"the opener finds a snapshot of {state.snapshot}", state._replace(found=state.snapshot)
        elif state.removed > state.found and self._without is not Rule.CHAINED:
            yield "the opener finds a gap, and begins again", state._replace(found=None)
        else:
            harm = INCOMPLETE if state.removed > state.found else None
            yield "the opener reads the records behind it", state._replace(found=None, harm=harm)


def _with(state: State, number: int, trimmer: Trimmer) -> State:
    return state._replace(trimmers=(*state.trimmers[:number], trimmer, *state.trimmers[number + 1 :]))


def wrong(state: State) -> str | None:
    if state.harm:
        return state.harm
    return LOST if state.removed > state.snapshot else None


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, wrong)
