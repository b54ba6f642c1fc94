"""
Opening refuses a ledger of which an older state was restored, and never a healthy one that is busy
(``txnframework_metadata.buffer.segment_view`` follows this).

Who takes part: *writers*, who append entries and put intents that name the ledger's end; a *settler*, who writes an
abort record that speaks of the end; and one *opener*, who reads where the ledger ends, the intents, the abort records
that speak of more than that, and again where it ends. The ledger is healthy; or it was restored after intents or abort
records had named positions that it no longer has, and then it is opened before any write.

The rule: all that the metadata store says is read before the end that bounds it. The first look at the end only saves
reading abort records that cannot matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

END_MAX = 3

REFUSED = "a healthy ledger is refused"
ACCEPTED = "a restored ledger is accepted"


class Rule(StrEnum):
    """How a restored ledger is distinguished from a busy one."""

    END_LAST = "the end is read after what speaks of it"
    INTENTS_ARE_READ = "no intent may speak of more than the end"
    ABORT_RECORDS_ARE_READ = "no abort record may speak of more than the end"


HARM = {Rule.END_LAST: REFUSED, Rule.INTENTS_ARE_READ: ACCEPTED, Rule.ABORT_RECORDS_ARE_READ: ACCEPTED}
STATES_MIN = 1_000


class State(NamedTuple):
    """``intent``, ``record``: the furthest places spoken of; ``first_end``, ``furthest``, ``end``: what was read."""

    ledger_end: int = 0
    intent: int = 0
    record: int = 0
    restored: bool = False
    first_end: int | None = None
    intents_read: bool = False
    records_read: bool = False
    furthest: int = 0
    end: int | None = None


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.restored:
            if state.ledger_end < END_MAX:
                yield "an entry is appended", state._replace(ledger_end=state.ledger_end + 1)
            yield "an intent speaks of the end", state._replace(intent=state.ledger_end)
            yield "an abort record speaks of the end", state._replace(record=state.ledger_end)
        if state.first_end is None:
            if max(state.intent, state.record) == state.ledger_end > 0:
                restored = state._replace(ledger_end=state.ledger_end - 1, restored=True)
                yield "the ledger is restored without its last entry", restored
            yield f"the opener finds the end at {state.ledger_end}", state._replace(first_end=state.ledger_end)
        elif not state.intents_read:
            found = 0 if self._without is Rule.INTENTS_ARE_READ else state.intent
            yield f"intents speak of {found}", state._replace(intents_read=True, furthest=found)
        elif not state.records_read:
            relevant = state.record > state.first_end and self._without is not Rule.ABORT_RECORDS_ARE_READ
            found = state.record if relevant else 0
            text = f"abort records speak of {found}" if relevant else "no abort record speaks of more"
            yield text, state._replace(records_read=True, furthest=max(state.furthest, found))
        elif state.end is None:
            end = state.first_end if self._without is Rule.END_LAST else state.ledger_end
            yield f"the opener takes {end} for the end", state._replace(end=end)


def wrong(state: State) -> str | None:
    if state.end is None:
        return None
    refused = state.furthest > state.end
    if state.restored:
        return None if refused else ACCEPTED
    return REFUSED if refused else None


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, wrong)
