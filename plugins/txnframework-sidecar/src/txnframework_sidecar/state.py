"""
The state that follows from the entries of a topic and its sidecar.

There is no I/O, and every process gets the same state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from txnframework.model import EARLIEST, Branch, Position, TxnID, Visibility
from txnframework_sidecar.markers import Marker, Note, StoredRun
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.parts import MessageRun


@dataclass(slots=True)
class CommitMarkers:
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
class TopicState:
    """
    The state of a topic up to ``upto``.

    * ``marked``: the commits with markers in the ledger of ``upto``, and earlier ones without a note. A commit that is
      neither here nor noted has no marker.
    * ``repeated``: markers of a commit that already has earlier ones.
    * ``early_notes``: notes that were read before the marker that they name.
    """

    upto: Position = EARLIEST
    marked: dict[TxnID, CommitMarkers] = field(default_factory=dict)
    repeated: set[Position] = field(default_factory=set)
    early_notes: dict[TxnID, Position] = field(default_factory=dict)
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
            self.early_notes[note.txn_id] = note.marker

    def to_be_noted(self, below_ledger_id: int) -> dict[TxnID, CommitMarkers]:
        """Return the commits without a note whose markers are before a ledger."""
        return {txn: one for txn, one in self.marked.items() if not one.noted and one.first.ledger_id < below_ledger_id}

    def without(self, below_ledger_id: int) -> None:
        """Forget the entries of trimmed ledgers."""
        before = Position(below_ledger_id, -1)
        self.upto = max(self.upto, before)
        self.repeated = {at for at in self.repeated if at > before}
        self.early_notes = {txn: at for txn, at in self.early_notes.items() if at > self.upto}
        self.references.trimmed(before)

    def _mark(self, marker: Marker, position: Position) -> None:
        first = marker.first(position)
        marked = self.marked.get(marker.txn_id)
        if marked is None:
            noted = self.early_notes.pop(marker.txn_id, None) is not None
            self.marked[marker.txn_id] = CommitMarkers(first, marker.branches, marker.upto, noted)
        elif marked.first != first:
            self.repeated.add(position)  # the first one decides
            return
        if marker.part.spans:
            self.references.add(position, marker)


@dataclass(frozen=True, slots=True)
class LateEntries:
    """The late entries of a branch: those from ``first`` on do not count, and none is after ``last``."""

    first: Position
    last: Position


@dataclass
class SidecarState:
    """
    The state of a sidecar up to ``upto``; its size depends on the open transactions, not on the ended ones.

    * ``writing``: the runs of each transaction that has no note yet.
    * ``noted``: the notes in the ledger of ``upto``. An ended transaction is not admitted to a later ledger, so an
      entry can follow its note only there.
    * ``aborted``: branches that do not count, with the last entry of each.
    * ``late``: the late entries of branches that count. No marker lists these entries, so they do not count.
    """

    bounds: SidecarOptions
    upto: Position = EARLIEST
    writing: dict[TxnID, list[MessageRun]] = field(default_factory=dict)
    noted: dict[TxnID, Note] = field(default_factory=dict)
    aborted: dict[Branch, Position] = field(default_factory=dict)
    late: dict[Branch, LateEntries] = field(default_factory=dict)

    def apply(self, found: StoredRun | Note, position: Position) -> None:
        """Apply the next entry."""
        if position.ledger_id != self.upto.ledger_id:
            self.noted.clear()
        self.upto = position
        if isinstance(found, Note):
            self._note(found)
        elif found.txn_id in self.noted:
            self._add_late(found.run, self.noted[found.txn_id])
        else:
            self._write(found)

    def listed(self, txn_id: TxnID, branches: frozenset[int]) -> list[MessageRun]:
        """Return the runs that a commit with these branches makes visible, in order."""
        return [run for run in self.writing.get(txn_id, ()) if run.branch in branches]

    def of_branch(self, branch: Branch) -> Visibility | None:
        """Return the visibility of a branch; None if it is neither open, noted nor aborted here."""
        if branch in self.aborted:
            return Visibility.ABORTED
        note = self.noted.get(branch.txn_id)
        if note is not None:
            return Visibility.COMMITTED if branch.number in note.branches else Visibility.ABORTED
        return Visibility.OPEN if branch.txn_id in self.writing else None

    def of_copy(self, branch: Branch, position: Position) -> Visibility | None:
        """Return the visibility of one entry of a branch; None as in ``of_branch``."""
        late = self.late.get(branch)
        return Visibility.ABORTED if late is not None and position >= late.first else self.of_branch(branch)

    def has_own_ledger(self, txn_id: TxnID) -> bool:
        """Return whether an open transaction is known to use an own ledger."""
        runs = self.writing.get(txn_id)
        return runs is not None and runs[-1].own

    def first_open_ledger(self) -> int | None:
        """Return the first ledger with an entry of a transaction without a note; None if there is none."""
        return min((runs[0].begun.ledger_id for runs in self.writing.values()), default=None)

    def aborted_before(self, ledger_id: int) -> frozenset[Branch]:
        """
        Return the branches that may have aborted or late entries before a ledger.

        A branch with a late entry is dropped as a whole. If a producer repeats one of its other entries after the trim,
        the copy is not recognized. Confirming the late entry instead would lose it.
        """
        late = {branch for branch, late in self.late.items() if late.first.ledger_id < ledger_id}
        return frozenset(self.aborted) | late

    def without(self, below_ledger_id: int, *, forget_aborted: bool) -> None:
        """Forget entries in trimmed ledgers; ``forget_aborted``: no reader can still hold an aborted one of them."""
        self.writing = {txn: runs for txn, runs in self.writing.items() if runs[-1].upto.ledger_id >= below_ledger_id}
        if forget_aborted:
            self.aborted = {one: last for one, last in self.aborted.items() if last.ledger_id >= below_ledger_id}
            self.late = {one: late for one, late in self.late.items() if late.last.ledger_id >= below_ledger_id}

    def _write(self, written: StoredRun) -> None:
        runs = self.writing.setdefault(written.txn_id, [])
        together = runs[-1].then(written.run, self.bounds) if runs else None
        if together is None:
            runs.append(written.run)
        else:
            runs[-1] = together

    def _note(self, note: Note) -> None:
        if note.txn_id in self.noted:
            return  # the first one decides
        self.noted[note.txn_id] = note
        for run in self.writing.pop(note.txn_id, ()):
            branch = Branch(note.txn_id, run.branch)
            if run.branch not in note.branches:
                self.aborted[branch] = run.upto
            elif run.upto > note.upto:
                self._add_late(run, note)

    def _add_late(self, run: MessageRun, note: Note) -> None:
        """
        Record entries of a branch after the note's ``upto`` as late: a paused writer stored them, and no marker lists
        them.

        In a branch that does not count, this changes nothing.
        """
        branch = Branch(note.txn_id, run.branch)
        first = max(run.begun, Position(note.upto.ledger_id, note.upto.entry_id + 1))
        known = self.late.get(branch)
        self.late[branch] = LateEntries(first if known is None else min(first, known.first), run.upto)
