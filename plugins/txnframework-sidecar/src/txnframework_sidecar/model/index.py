"""The transaction index: the meaning of a sidecar's entries, the same in every process that reads them in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from txnframework.model import EARLIEST, Branch, Position, TxnID, Visibility
from txnframework_sidecar.model.markers import Note, Written
from txnframework_sidecar.model.parts import Run
from txnframework_sidecar.options import SidecarOptions


@dataclass(frozen=True, slots=True)
class Late:
    """The late entries of a branch: those from ``first`` on do not count, and none is after ``last``."""

    first: Position
    last: Position


@dataclass
class TransactionIndex:
    """
    The state of a sidecar up to ``upto``; its size depends on the open transactions, not on the ended ones.

    * ``writing``: the runs of each transaction that has no note yet.
    * ``noted``: the notes in the ledger of ``upto``. An ended transaction is not admitted to a later ledger, so an
      entry can follow its note only there.
    * ``aborted``: branches that do not count, with the last entry of each.
    * ``late``: branches that count except for these entries, which no marker lists.
    """

    bounds: SidecarOptions
    upto: Position = EARLIEST
    writing: dict[TxnID, list[Run]] = field(default_factory=dict)
    noted: dict[TxnID, Note] = field(default_factory=dict)
    aborted: dict[Branch, Position] = field(default_factory=dict)
    late: dict[Branch, Late] = field(default_factory=dict)

    def apply(self, found: Written | Note, position: Position) -> None:
        """Apply the next entry."""
        if position.ledger_id != self.upto.ledger_id:
            self.noted.clear()
        self.upto = position
        if isinstance(found, Note):
            self._note(found)
        elif found.txn_id in self.noted:
            self._be_late(found.run, self.noted[found.txn_id])
        else:
            self._write(found)

    def listed(self, txn_id: TxnID, branches: frozenset[int]) -> list[Run]:
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

    def without(self, below_ledger_id: int, is_due: Callable[[], bool]) -> None:
        """
        Forget entries in trimmed ledgers; aborted ones only when ``is_due`` says that no reader can still hold them.
        """
        self.writing = {txn: runs for txn, runs in self.writing.items() if runs[-1].upto.ledger_id >= below_ledger_id}
        if is_due():
            self.aborted = {one: last for one, last in self.aborted.items() if last.ledger_id >= below_ledger_id}
            self.late = {one: late for one, late in self.late.items() if late.last.ledger_id >= below_ledger_id}

    def _write(self, written: Written) -> None:
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
                self._be_late(run, note)

    def _be_late(self, run: Run, note: Note) -> None:
        """
        Record entries of a branch after the note's ``upto`` as late: a paused writer stored them, and no marker lists
        them.

        In a branch that does not count, this changes nothing.
        """
        branch = Branch(note.txn_id, run.branch)
        first = max(run.begun, Position(note.upto.ledger_id, note.upto.entry_id + 1))
        known = self.late.get(branch)
        self.late[branch] = Late(first if known is None else min(first, known.first), run.upto)
