"""The meaning of a topic's markers, the same in every process that reads them in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from txnframework.model import EARLIEST, Position, TxnID
from txnframework_sidecar.model.markers import Marker, Note


@dataclass(slots=True)
class Marked:
    """
    The markers of a commit: the first one's position, the branches that count, the listed ``upto``, and whether it is
    noted.
    """

    first: Position
    branches: frozenset[int]
    upto: Position
    noted: bool = False


@dataclass
class References:
    """
    The ledgers beside the topic that its markers still refer to: the retention cursor.

    ``lowest``: the last marker for each lowest ledger of the sidecar, so its size depends on the number of these
    ledgers. ``own``: transactions with messages in an own ledger, with the last marker that lists some of them.
    """

    lowest: deque[tuple[Position, int]] = field(default_factory=deque)
    own: dict[TxnID, Position] = field(default_factory=dict)

    def add(self, marker: Position, found: Marker) -> None:
        """Add the references of a marker."""
        if found.part.own:
            self.own[found.txn_id] = marker
            return
        ledger_id = min(span.ledger_id for span in found.part.spans)
        while self.lowest and self.lowest[-1][1] >= ledger_id:
            self.lowest.pop()
        self.lowest.append((marker, ledger_id))

    def compacted(self, upto: Position) -> None:
        """Drop the references to the sidecar of markers up to here; own ledgers are not compacted."""
        while self.lowest and self.lowest[0][0] <= upto:
            self.lowest.popleft()

    def trimmed(self, upto: Position) -> None:
        """Drop all references of markers up to here."""
        self.compacted(upto)
        self.own = {txn_id: last for txn_id, last in self.own.items() if last > upto}

    def first_ledger(self) -> int | None:
        """Return the first ledger of the sidecar that is referred to; None if there is none."""
        return self.lowest[0][1] if self.lowest else None


@dataclass
class Stream:
    """
    The state of a topic up to ``upto``.

    * ``marked``: the commits with markers in the ledger of ``upto``, and earlier ones without a note. A commit that is
      neither here nor noted has no marker.
    * ``repeated``: markers of a commit that already has earlier ones.
    * ``ahead``: notes that were read before the marker that they name.
    """

    upto: Position = EARLIEST
    marked: dict[TxnID, Marked] = field(default_factory=dict)
    repeated: set[Position] = field(default_factory=set)
    ahead: dict[TxnID, Position] = field(default_factory=dict)
    references: References = field(default_factory=References)

    def apply(self, found: Marker | None, position: Position) -> None:
        """Apply the next entry."""
        if position.ledger_id != self.upto.ledger_id:
            # A marker is appended only to the ledger that was open before the topic and the sidecar were read. A
            # process that found a note, or a marker that is kept here without one, appends no marker to this ledger.
            self.marked = {txn: one for txn, one in self.marked.items() if not one.noted}
        self.upto = position
        if found is not None:
            self._mark(found, position)

    def noted(self, note: Note) -> None:
        """Apply a note of the sidecar."""
        if note.marker is None:
            return
        marked = self.marked.get(note.txn_id)
        if marked is not None:
            marked.noted = True
            if marked.first.ledger_id < self.upto.ledger_id:
                del self.marked[note.txn_id]
        elif note.marker > self.upto:
            self.ahead[note.txn_id] = note.marker

    def to_be_noted(self, below_ledger_id: int) -> dict[TxnID, Marked]:
        """Return the commits without a note whose markers are before a ledger."""
        return {txn: one for txn, one in self.marked.items() if not one.noted and one.first.ledger_id < below_ledger_id}

    def without(self, below_ledger_id: int) -> None:
        """Forget the entries of trimmed ledgers."""
        before = Position(below_ledger_id, -1)
        self.upto = max(self.upto, before)
        self.repeated = {at for at in self.repeated if at > before}
        self.ahead = {txn: at for txn, at in self.ahead.items() if at > self.upto}
        self.references.trimmed(before)

    def _mark(self, marker: Marker, position: Position) -> None:
        first = marker.first(position)
        marked = self.marked.get(marker.txn_id)
        if marked is None:
            noted = self.ahead.pop(marker.txn_id, None) is not None
            self.marked[marker.txn_id] = Marked(first, marker.branches, marker.upto, noted)
        elif marked.first != first:
            self.repeated.add(position)  # the first one decides
            return
        if marker.part.spans:
            self.references.add(position, marker)
