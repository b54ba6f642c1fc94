"""Whether an entry is aborted is decided when it is fetched (``entry_reader``, ``segment_view`` and ``outcomes`` in
``txnframework_metadata.buffer`` follow this).

Who takes part: a *writer*, who puts the intent of transaction t and appends entries of it (the first together with the
intent, in one step, where one database has both), and who may be paused and append more to the ledger that is still
open, after t was aborted; a writer of *plain* entries; a process that *ends* t; a *settler*, who writes the abort
record, deletes the intent and at last the header; a *trimmer*, who removes the ledger and, a while after, its abort
record; and one *reader* with two activities that run beside each other. The *reading* takes the ledger's end, then the
intents, then their headers, announces how far may be read, and keeps what it found aborted until the next reading. A
reading that t holds back may go on from what it found, the end and the intent: it looks at the header again. Entries
may be *read ahead* of the announcement, and how t ended may be learnt from its header at any time, once it has. The
*fetch* reads entries or takes those read ahead, and finds out how t ended: what is remembered for good, which may be
forgotten any time as its place is bounded; else what the last reading found; else the abort record.

The rule: everything announced has ended, so what neither the last reading nor an abort record calls aborted counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

ENTRIES_MAX = 3

COUNTED_WRONGLY = "an entry of t is shown although t is not committed"
DROPPED_WRONGLY = "an entry of t is hidden although t is committed"


class Rule(StrEnum):
    """What keeps every fetched entry judged rightly."""

    INTENT_NOT_AFTER_ENTRY = "no entry can be read before its intent, which is put before it or in one step with it"
    INTENT_WHILE_OPEN = "an intent is put, also in one step with an entry, only while the header is open"
    LOOKED_UP_AFTER_THE_READING = "an abort record is looked up after the reading whose announcement it decides"
    LAST_READING_FIRST = "what the last reading found is taken before abort records are looked up"
    ONLY_WHAT_IS_ANNOUNCED = "only entries up to what is announced are judged, and remembered"
    LONG_FETCHES_LOOK_AGAIN = "a fetch that took as long as abort records are kept looks if its entries are still there"


HARM = {
    Rule.INTENT_NOT_AFTER_ENTRY: COUNTED_WRONGLY,
    Rule.INTENT_WHILE_OPEN: COUNTED_WRONGLY,
    Rule.LOOKED_UP_AFTER_THE_READING: COUNTED_WRONGLY,
    Rule.LAST_READING_FIRST: COUNTED_WRONGLY,
    Rule.ONLY_WHAT_IS_ANNOUNCED: COUNTED_WRONGLY,
    Rule.LONG_FETCHES_LOOK_AGAIN: COUNTED_WRONGLY,
}
STATES_MIN = 3_000


class Header(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    GONE = "gone"


class Ledger(StrEnum):
    OPEN = "open"
    TRIMMED = "trimmed"
    COLLECTED = "trimmed long ago"


class Writer(StrEnum):
    IDLE = "idle"
    HALFWAY = "has appended without an intent"
    MAY_APPEND = "may append"
    DONE = "done"


class Reading(NamedTuple):
    """One reading under way: where the ledger ended, and whether t's intent stood, once that was looked at."""

    end: int
    intent: bool | None = None


class Fetch(NamedTuple):
    """One fetch under way: how far it goes, what the last reading told, and what the abort record did."""

    upto: int
    aborted_by_reading: bool | None = None
    aborted_by_record: bool | None = None
    long: bool = False


class State(NamedTuple):
    """
    ``entries``: "t", or "p" for a plain one. ``seen_aborted``: what the last reading found. ``known_aborted``: what is
    remembered. ``ahead``: how many entries were read ahead, and ``ahead_long``, whether that is as long ago as abort
    records are kept. ``looked_up_early``: whether an abort record stood when a reading began, if it is looked up then.
    """

    header: Header = Header.OPEN
    committed: bool = False
    intent: bool = False
    abort_record: bool = False
    entries: str = ""
    ledger: Ledger = Ledger.OPEN
    writer: Writer = Writer.IDLE
    reading: Reading | None = None
    announced: int = 0
    seen_aborted: bool = False
    known_aborted: bool | None = None
    ahead: int = 0
    ahead_long: bool = False
    looked_up_early: bool | None = None
    fetch: Fetch | None = None
    harm: str | None = None


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._writing(state)
        yield from self._settling(state)
        yield from self._reading(state)
        yield from self._fetching(state)

    def _writing(self, state: State) -> Iterator[tuple[str, State]]:
        admits = state.header is Header.OPEN or self._without is Rule.INTENT_WHILE_OPEN
        if state.writer is Writer.IDLE and admits:
            yield "the writer puts its intent", state._replace(writer=Writer.MAY_APPEND, intent=True)
            if state.ledger is Ledger.OPEN and len(state.entries) < ENTRIES_MAX:
                appended = state._replace(entries=state.entries + "t")
                if self._without is Rule.INTENT_NOT_AFTER_ENTRY:
                    yield "the writer appends before its intent", appended._replace(writer=Writer.HALFWAY)
                else:
                    whole = appended._replace(writer=Writer.MAY_APPEND, intent=True)
                    yield "the writer puts its intent and appends, in one step", whole
        if state.writer is Writer.HALFWAY:
            yield "the writer puts its intent late", state._replace(writer=Writer.MAY_APPEND, intent=True)
        if state.ledger is Ledger.OPEN:
            if state.writer is Writer.MAY_APPEND and len(state.entries) < ENTRIES_MAX:
                last = "t" in state.entries
                writer = Writer.DONE if last else Writer.MAY_APPEND
                yield "the writer appends", state._replace(entries=state.entries + "t", writer=writer)
            if len(state.entries) < ENTRIES_MAX - 1:
                yield "a plain entry is appended", state._replace(entries=state.entries + "p")
        if state.header is Header.OPEN:
            yield "t is aborted", state._replace(header=Header.ABORTED)
            if "t" in state.entries or state.writer is Writer.IDLE:  # its writer reported, and sends no more
                yield (
                    "t is committed",
                    state._replace(header=Header.COMMITTED, committed=True, writer=Writer.DONE),
                )

    def _settling(self, state: State) -> Iterator[tuple[str, State]]:
        if state.header in (Header.COMMITTED, Header.ABORTED):
            if not state.intent:
                yield "the header is collected", state._replace(header=Header.GONE)
            elif state.header is Header.ABORTED and not state.abort_record:
                yield "the abort record is written", state._replace(abort_record=True)
            else:
                yield "the intent is deleted", state._replace(intent=False)
        if state.ledger is Ledger.OPEN and 0 < len(state.entries) == state.announced:
            yield "the ledger is closed and trimmed", state._replace(ledger=Ledger.TRIMMED)
        if state.ledger is Ledger.TRIMMED and not state.intent:
            # Its time has passed: a fetch that is under way and has entries of the ledger took at least as long.
            fetch = None if state.fetch is None else state.fetch._replace(long=True)
            collected = state._replace(
                ledger=Ledger.COLLECTED, abort_record=False, fetch=fetch, ahead_long=state.ahead > 0
            )
            yield "a while later the abort record is collected", collected

    def _reading(self, state: State) -> Iterator[tuple[str, State]]:
        reading = state.reading
        if reading is None:
            if state.announced < len(state.entries):
                end = len(state.entries)
                early = state.abort_record if self._without is Rule.LOOKED_UP_AFTER_THE_READING else None
                begun = state._replace(reading=Reading(end), looked_up_early=early)
                yield f"a reading finds the end at {end}", begun
        elif reading.intent is None:
            text = "the intent" if state.intent else "no intent"
            yield f"the reading finds {text}", state._replace(reading=reading._replace(intent=state.intent))
        else:
            pinned = reading.intent and state.header is Header.OPEN
            aborted = reading.intent and state.header is Header.ABORTED
            # "t" stands first where its writer noted the end before: nothing of it can stand earlier.
            upto = state.entries[: reading.end].find("t") if pinned else -1
            announced = max(state.announced, reading.end if upto < 0 else upto)
            known = state.known_aborted
            if reading.intent and state.header in (Header.COMMITTED, Header.ABORTED):
                known = aborted
            found = f"finds t {state.header}, and " if reading.intent else ""
            yield (
                f"the reading {found}announces {announced}",
                state._replace(
                    reading=reading if pinned else None, announced=announced, seen_aborted=aborted, known_aborted=known
                ),
            )
            if pinned:
                yield "the reading is dropped for a new one", state._replace(reading=None)

    def _fetching(self, state: State) -> Iterator[tuple[str, State]]:
        if state.known_aborted is not None:
            yield "what is remembered of t is forgotten", state._replace(known_aborted=None)
        if state.header in (Header.COMMITTED, Header.ABORTED):
            known = state.header is Header.ABORTED
            yield f"the reader learns that t {state.header}", state._replace(known_aborted=known)
        if state.ledger is Ledger.OPEN and state.ahead < len(state.entries):
            yield "entries are read ahead", state._replace(ahead=len(state.entries), ahead_long=False)
        fetch = state.fetch
        if fetch is None:
            if state.ledger is Ledger.OPEN:
                yield from self._begin(state, len(state.entries), long=False)
            elif state.ahead:
                yield from self._begin(state, state.ahead, long=state.ahead_long)
        elif fetch.aborted_by_record is None:
            text = "an" if state.abort_record else "no"
            looked_up = fetch._replace(aborted_by_record=state.abort_record)
            yield f"the fetch finds {text} abort record", state._replace(fetch=looked_up)
        elif fetch.long and state.ledger is not Ledger.OPEN and self._without is not Rule.LONG_FETCHES_LOOK_AGAIN:
            yield "the fetch finds that its entries are gone", state._replace(fetch=None)
        else:
            by_reading = state.seen_aborted if fetch.aborted_by_reading is None else fetch.aborted_by_reading
            aborted = by_reading or fetch.aborted_by_record
            text = "aborted" if aborted else "committed"
            judged = state._replace(fetch=None, known_aborted=aborted, harm=_harm(state, fetch.upto, aborted))
            yield f"the fetch takes t for {text}", judged

    def _begin(self, state: State, there: int, *, long: bool) -> Iterator[tuple[str, State]]:
        """Begin a fetch of the first entries that are ``there``, in the ledger or because they were read ahead."""
        upto = there if self._without is Rule.ONLY_WHAT_IS_ANNOUNCED else min(state.announced, there)
        if "t" not in state.entries[:upto]:
            return
        if state.known_aborted is not None:
            # Also what was remembered wrongly does its harm among what is announced only.
            text = "aborted" if state.known_aborted else "committed"
            harm = _harm(state, state.announced, state.known_aborted)
            yield f"a fetch of what is announced remembers t as {text}", state._replace(harm=harm)
            return
        fetch = Fetch(min(state.announced, there), aborted_by_reading=state.seen_aborted, long=long)
        if self._without is Rule.LAST_READING_FIRST:
            fetch = Fetch(min(state.announced, there), long=long)
        elif self._without is Rule.LOOKED_UP_AFTER_THE_READING:
            fetch = fetch._replace(aborted_by_record=state.looked_up_early)
        yield f"a fetch reads entries up to {upto}", state._replace(fetch=fetch)


def _harm(state: State, upto: int, aborted: bool) -> str | None:
    if "t" not in state.entries[:upto]:
        return None
    if aborted and state.committed:
        return DROPPED_WRONGLY
    return COUNTED_WRONGLY if not aborted and not state.committed else None


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, lambda state: state.harm)
