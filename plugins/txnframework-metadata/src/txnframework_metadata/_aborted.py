"""Which branches are aborted in which ledger of a segment, as far as this process needs to know; pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from txnframework.model.ids import Branch


class AbortedBranches:
    """
    Complete for every announced entry of the ledgers that it knows.

    Each reading of the segment brings the abort records from the ledger on where announcing stood (``base``), and the
    aborted operations of all ledgers. What is older is loaded when somebody reads there, and kept for a bounded number
    of ledgers. An aborted operation may be settled between two readings: it then has an abort record, which an older
    ledger's set, loaded before, does not show. So what operations said is added to every set there is.
    """

    def __init__(self, ledgers_max: int) -> None:
        self._ledgers_max = ledgers_max
        self._base: int | None = None
        self._sets: OrderedDict[int, set[Branch]] = OrderedDict()
        self._operations: Mapping[int, frozenset[Branch]] = {}

    def observe(
        self, base: int, operations: Mapping[int, frozenset[Branch]], records: Iterable[tuple[int, Branch]]
    ) -> None:
        """Take in one reading: the abort records from ledger ``base`` on, and the aborted operations of any ledger."""
        self._base = base if self._base is None else max(base, self._base)
        self._operations = operations
        for ledger_id, branch in records:
            if ledger_id >= self._base:
                self._sets.setdefault(ledger_id, set()).add(branch)
        for ledger_id, branches in operations.items():
            if ledger_id >= self._base or ledger_id in self._sets:
                self._sets.setdefault(ledger_id, set()).update(branches)
        self._evict()

    def knows(self, ledger_id: int) -> bool:
        """Whether a ledger's aborted branches are here."""
        return ledger_id in self._sets or (self._base is not None and ledger_id >= self._base)

    def add_ledger(self, ledger_id: int, branches: Iterable[Branch]) -> None:
        """Take in all abort records of one older ledger, read after the last observation began."""
        known = self._sets.setdefault(ledger_id, set())
        known.update(branches)
        known.update(self._operations.get(ledger_id, ()))
        self._evict()

    def of_ledger(self, ledger_id: int) -> frozenset[Branch]:
        """Return a ledger's aborted branches, and mark it as used."""
        if ledger_id in self._sets:
            self._sets.move_to_end(ledger_id)
        return frozenset(self._sets.get(ledger_id, ())) | self._operations.get(ledger_id, frozenset())

    def between(self, first: int, last: int) -> frozenset[Branch]:
        """Return what is known here of the ledgers from ``first`` to ``last``."""
        known = [self._sets, self._operations]
        return frozenset(
            branch
            for by_ledger in known
            for ledger_id, branches in by_ledger.items()
            if first <= ledger_id <= last
            for branch in branches
        )

    def drop_below(self, ledger_id: int) -> None:
        """Forget ledgers that were trimmed."""
        for old in [known for known in self._sets if known < ledger_id]:
            del self._sets[old]

    def _evict(self) -> None:
        """Forget the least recently used older ledgers beyond the bound; they are loaded again when needed."""
        base = self._base or 0
        older = [known for known in self._sets if known < base]
        for ledger_id in older[: max(0, len(older) - self._ledgers_max)]:
            del self._sets[ledger_id]
