"""The transaction index: what the entries of a sidecar mean; the same in every process that reads them in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from txnframework.model import EARLIEST, Branch, Position, TxnID, Visibility
from txnframework_sidecar.model.markers import Note, Written
from txnframework_sidecar.model.parts import Run
from txnframework_sidecar.options import SidecarOptions


@dataclass(frozen=True, slots=True)
class Late:
    """No entry of a branch from ``first`` on counts, and it has none behind ``last``."""

    first: Position
    last: Position


@dataclass
class TransactionIndex:
    """
    What is known of a sidecar up to ``upto``; it grows with what is open, not with what was.

    ``writing``: where the messages of each transaction stand that is not noted as over. ``noted``: the notes in the
    ledger of ``upto``; nobody is admitted to a later ledger for a transaction that was over before, so only there can
    an entry stand behind its note. ``aborted``: branches that do not count, with the last entry of each. ``late``:
    branches that count, but for these entries, which no marker lists.
    """

    bounds: SidecarOptions
    upto: Position = EARLIEST
    writing: dict[TxnID, list[Run]] = field(default_factory=dict)
    noted: dict[TxnID, Note] = field(default_factory=dict)
    aborted: dict[Branch, Position] = field(default_factory=dict)
    late: dict[Branch, Late] = field(default_factory=dict)

    def apply(self, found: Written | Note, position: Position) -> None:
        """Go on by one entry."""
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
        """Return what a commit with these branches makes visible, in order."""
        return [run for run in self.writing.get(txn_id, ()) if run.branch in branches]

    def of_branch(self, branch: Branch) -> Visibility | None:
        """Return what is known of a branch; None: nothing, if it is here at all."""
        if branch in self.aborted:
            return Visibility.ABORTED
        note = self.noted.get(branch.txn_id)
        if note is not None:
            return Visibility.COMMITTED if branch.number in note.branches else Visibility.ABORTED
        return Visibility.OPEN if branch.txn_id in self.writing else None

    def of_copy(self, branch: Branch, position: Position) -> Visibility | None:
        """Return what is known of one entry of a branch."""
        late = self.late.get(branch)
        return Visibility.ABORTED if late is not None and position >= late.first else self.of_branch(branch)

    def has_own_ledger(self, txn_id: TxnID) -> bool:
        """Return whether an open transaction is known to have gone on in a ledger of its own."""
        runs = self.writing.get(txn_id)
        return runs is not None and runs[-1].own

    def first_open_ledger(self) -> int | None:
        """Return the first ledger with an entry of a transaction that is not noted as over; None: there is none."""
        return min((runs[0].begun.ledger_id for runs in self.writing.values()), default=None)

    def aborted_before(self, ledger_id: int) -> frozenset[Branch]:
        """
        Return the branches that may have entries before a ledger which do not count.

        Of a branch with a late entry the others go as well: a producer that repeats one of them after it was trimmed is
        not recognized then. To confirm the late one instead would lose it.
        """
        late = {branch for branch, late in self.late.items() if late.first.ledger_id < ledger_id}
        return frozenset(self.aborted) | late

    def without(self, below_ledger_id: int, is_due: Callable[[], bool]) -> None:
        """Forget what stands in ledgers that are gone, long enough for whoever read it before."""
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
        Written by somebody who was paused, after the decision: no marker lists what stands behind ``upto`` of the note.

        Of a branch that does not count none of it does anyway.
        """
        branch = Branch(note.txn_id, run.branch)
        first = max(run.begun, Position(note.upto.ledger_id, note.upto.entry_id + 1))
        known = self.late.get(branch)
        self.late[branch] = Late(first if known is None else min(first, known.first), run.upto)
