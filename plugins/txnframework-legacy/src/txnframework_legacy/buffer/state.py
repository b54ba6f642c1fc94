"""
The state of a topic, computed from its entries and markers, without I/O.

Every process that reads the entries and markers in order gets the same state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txnframework.model import EARLIEST, Branch, Position, TxnID, Visibility
from txnframework_legacy.buffer.markers import Marker


@dataclass
class OpenTransaction:
    """The entries of an open transaction: the position of the first one, and of the last one of each branch."""

    first: Position
    branches: dict[int, Position] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AbortedBranch:
    """A branch that does not count: the positions of its last entry and of its transaction's marker."""

    last: Position
    marker: Position


@dataclass
class TopicState:
    """
    The state of a topic up to ``upto``.

    ``writing``: the open transactions. ``marked``: the markers in the ledger of ``upto``. ``aborted``: the branches
    that do not count, in the order of their markers. ``late``: entries after the marker of their transaction.
    """

    upto: Position = EARLIEST
    writing: dict[TxnID, OpenTransaction] = field(default_factory=dict)
    marked: dict[TxnID, Marker] = field(default_factory=dict)
    aborted: dict[Branch, AbortedBranch] = field(default_factory=dict)
    late: dict[Position, Branch] = field(default_factory=dict)

    def apply(self, found: Branch | Marker | None, position: Position) -> None:
        """Apply the next entry."""
        if position.ledger_id != self.upto.ledger_id:
            # No transaction with a marker in an earlier ledger is admitted to this one.
            self.marked.clear()
        self.upto = position
        if isinstance(found, Marker):
            self._mark(found, position)
        elif found is not None:
            self._write(found, position)

    def readable(self) -> Position:
        """Return the position up to which all entries are decided."""
        first = min((writing.first for writing in self.writing.values()), default=None)
        return self.upto if first is None else Position(first.ledger_id, first.entry_id - 1)

    def visibility(self, branch: Branch | None, position: Position) -> Visibility:
        """Return the visibility of an entry at or before ``upto``."""
        if branch is None:
            return Visibility.COMMITTED
        if position in self.late:
            return Visibility.ABORTED
        return self.of_branch(branch) or Visibility.COMMITTED

    def of_branch(self, branch: Branch) -> Visibility | None:
        """Return the visibility of a branch; None if it is neither open nor aborted, or has no entries here."""
        if branch in self.aborted:
            return Visibility.ABORTED
        return Visibility.OPEN if branch.txn_id in self.writing else None

    def aborted_since(self, marker: Position, first_ledger_id: int) -> list[tuple[Branch, AbortedBranch]]:
        """
        Return the branches whose marker is after ``marker``, in that order, except those whose entries are all trimmed.
        """
        since: list[tuple[Branch, AbortedBranch]] = []
        for branch in reversed(self.aborted):  # newest last; many may precede
            one = self.aborted[branch]
            if one.marker <= marker:
                break
            if one.last.ledger_id >= first_ledger_id:
                since.append((branch, one))
        return since[::-1]

    def aborted_before(self, ledger_id: int) -> frozenset[Branch]:
        """
        Return the branches that may have aborted or late entries before a ledger.

        A branch with a late entry is dropped as a whole. If a producer repeats one of its other entries after the trim,
        the copy is not recognized. Confirming the late entry instead would lose it.
        """
        late = {branch for position, branch in self.late.items() if position.ledger_id < ledger_id}
        return frozenset(self.aborted) | late

    def without(self, below_ledger_id: int, *, forget_aborted: bool) -> None:
        """Forget entries in trimmed ledgers; ``forget_aborted``: no reader can still hold an aborted one of them."""
        self.writing = {
            txn: one for txn, one in self.writing.items() if max(one.branches.values()).ledger_id >= below_ledger_id
        }
        if forget_aborted:
            self.aborted = {
                branch: one for branch, one in self.aborted.items() if one.last.ledger_id >= below_ledger_id
            }
            self.late = {at: one for at, one in self.late.items() if at.ledger_id >= below_ledger_id}

    def _write(self, branch: Branch, position: Position) -> None:
        if branch.txn_id in self.marked:
            self.late[position] = branch
            return
        writing = self.writing.setdefault(branch.txn_id, OpenTransaction(position))
        writing.branches[branch.number] = position

    def _mark(self, marker: Marker, position: Position) -> None:
        if marker.txn_id in self.marked:
            return  # the first one decides
        self.marked[marker.txn_id] = marker
        writing = self.writing.pop(marker.txn_id, None)
        for number, last in writing.branches.items() if writing is not None else ():
            if not marker.counts(number):
                self.aborted[Branch(marker.txn_id, number)] = AbortedBranch(last, position)
