"""What an append, a roll or a trim does to a managed ledger in a known state; pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from txnframework.errors import LedgerClosed, LedgerSealed
from txnframework.model import Append, Appended, Branch, Position
from txnframework_nats.ledgers._records import Added, Forgotten, Origin, Trimmed
from txnframework_nats.ledgers._state import LedgerState
from txnframework_nats.ledgers._windows import SequenceCopy, SequenceWindow

LEDGERS_TRIMMED_MAX = 100
"""The most ledgers that one step of a trim removes."""

_SILENT_MAX = 100
_ABORTED_BYTES = 80
"""Twice what the name of an aborted branch takes, so that half of a message is left for the names of producers."""


class Limits(msgspec.Struct, frozen=True):
    """When a ledger is closed: by the append that reaches so many entries or bytes."""

    ledger_entries_max: int
    ledger_bytes_max: int


class Wanted(msgspec.Struct, frozen=True):
    """One call of append."""

    entries: tuple[Append, ...]
    ledger_id: int | None


Answer = tuple[Appended, ...] | LedgerSealed | LedgerClosed
"""The result of one call, or why nothing of it was appended."""


class Decision(msgspec.Struct, frozen=True):
    """
    The answers to calls of append, in order, and the record that makes them true; None: there is nothing to store.
    """

    answers: tuple[Answer, ...]
    added: Added | None
    data: tuple[bytes, ...] = ()


class _Draft:
    """A record in the making; the state stays as it is."""

    def __init__(self, state: LedgerState) -> None:
        self.data: list[bytes] = []
        self.messages: list[int] = []
        self.origins: list[Origin] = []
        self.producers: dict[str, int] = {}
        self._state = state
        self._added: dict[str, SequenceWindow] = {}
        self._replaced: set[Position] = set()

    def append(self, entry: Append) -> Appended:
        """Append one entry, or report the copy that is stored already."""
        position = Position(self._state.open.ledger_id, self._state.open.entries + len(self.data))
        sequence, txn, branch = entry.sequence, "", 0
        if entry.branch is not None:
            txn, branch = str(entry.branch.txn_id), entry.branch.number
        origin = Origin(len(self.data), txn, branch)
        if sequence is not None:
            replaces = entry.replaces.entry if entry.replaces is not None else None
            copies = self._overlapping(sequence.producer, sequence.first, sequence.last)
            for copy in copies:
                if copy.position != replaces:
                    return copy.appended(sequence.producer)
            self._replaced.update(copy.position for copy in copies)
            window = self._added.setdefault(sequence.producer, SequenceWindow())
            window.put(SequenceCopy(sequence.first, sequence.last, position, entry.branch), self._state.window)
            producer = self.producers.setdefault(sequence.producer, len(self.producers))
            origin = Origin(len(self.data), txn, branch, producer, sequence.first, sequence.last)
        if txn or sequence is not None:
            self.origins.append(origin)
        self.data.append(bytes(entry.data))
        self.messages.append(entry.messages)
        return Appended(position)

    def _overlapping(self, producer: str, first: int, last: int) -> list[SequenceCopy]:
        stored = [copy for copy in self._state.find(producer, first, last) if copy.position not in self._replaced]
        added = self._added.get(producer)
        return stored + added.overlapping(first, last) if added else stored


def decide_appends(state: LedgerState, calls: Sequence[Wanted], now_ms: int, token: bytes, limits: Limits) -> Decision:
    """Return what becomes of calls of append that are stored as one record."""
    state.require_present()
    draft, opened = _Draft(state), state.open
    answers: list[Answer] = []
    for call in calls:
        if state.sealed:
            answers.append(LedgerSealed(state.name))
        elif call.ledger_id not in (None, opened.ledger_id):
            answers.append(LedgerClosed(state.name, call.ledger_id if call.ledger_id is not None else 0))
        else:
            answers.append(tuple(draft.append(entry) for entry in call.entries))
    if not draft.data:
        return Decision(tuple(answers), None)
    sizes = tuple(map(len, draft.data))
    entries, size = opened.entries + len(sizes), opened.bytes + sum(sizes)
    added = Added(
        token,
        opened.entries,
        opened.messages,
        # The time of a row never decreases, so that it can be searched by time.
        max(now_ms, opened.appended_ms),
        sizes,
        () if set(draft.messages) == {1} else tuple(draft.messages),
        tuple(draft.producers),
        tuple(draft.origins),
        0,
        entries >= limits.ledger_entries_max or size >= limits.ledger_bytes_max,
    )
    return Decision(tuple(answers), added, tuple(draft.data))


def decide_trim(
    state: LedgerState,
    ledger_id: int,
    aborted: frozenset[Branch],
    silent_since_ms: int,
    token: bytes,
    message_bytes: int,
) -> Forgotten | Trimmed | None:
    """
    Return the record of one step of a trim, or None if there is nothing to remove; more steps follow a ``Forgotten``.

    :param message_bytes: the largest data of one message.
    """
    state.require_present()
    gone = [one for one in state.ledgers[:-1] if one.ledger_id < ledger_id][:LEDGERS_TRIMMED_MAX]
    silent = [name for name, window in state.windows.items() if window.appended_ms < silent_since_ms]
    if not gone and not silent:
        return None
    below = gone[-1].ledger_id + 1 if gone else 0
    concerned = set().union(*(window.branches_below(below) for window in state.windows.values())) & aborted
    named = sorted((str(branch.txn_id), branch.number) for branch in concerned)
    named_max = message_bytes // _ABORTED_BYTES
    if len(named) > named_max:
        return Forgotten(token, below, tuple(named[:named_max]))
    return Trimmed(token, below, tuple(named), tuple(silent[:_SILENT_MAX]))
