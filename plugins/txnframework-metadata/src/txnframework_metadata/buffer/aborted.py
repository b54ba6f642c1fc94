"""What this process knows of how branches with decided entries ended; pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from txnframework.model.ids import Branch


class KnownOutcomes:
    """
    Which branches are known to be aborted, or known to count.

    How a branch ended never changes, so what was found once holds for ever; a bounded number is kept, and what is
    forgotten is looked up again. What the last whole reading of the segment found aborted, and the others since, is
    kept whole: those operations may have no abort record yet, so looking would tell nothing.
    """

    def __init__(self, branches_max: int) -> None:
        self._branches_max = branches_max
        self._unsettled: Mapping[int, frozenset[Branch]] = {}
        self._ended: OrderedDict[Branch, bool] = OrderedDict()

    @property
    def unsettled(self) -> int:
        """Of how many operations it is kept that they ended without counting and may have no abort record yet."""
        return sum(map(len, self._unsettled.values()))

    def observe(
        self, aborted: Mapping[int, frozenset[Branch]], counted: Iterable[Branch], *, is_whole: bool = True
    ) -> None:
        """
        Take in one reading: by ledger, the operations of branches that ended without counting; those that count.

        ``is_whole``: it looked at everything that is not settled, not only at what came since the last one.
        """
        self._unsettled = aborted if is_whole else _united(self._unsettled, aborted)
        for branches in aborted.values():
            self.note(branches, aborted=True)
        self.note(counted, aborted=False)

    def note(self, branches: Iterable[Branch], *, aborted: bool) -> None:
        """Remember how branches ended, and forget the least recently used ones beyond the bound."""
        for branch in branches:
            self._ended[branch] = aborted
        while len(self._ended) > self._branches_max:
            self._ended.popitem(last=False)

    def is_aborted(self, branch: Branch, ledger_id: int) -> bool | None:
        """Return whether a branch with decided entries in a ledger is aborted, or None: its abort record tells."""
        if branch in self._unsettled.get(ledger_id, ()):
            return True
        known = self._ended.get(branch)
        if known is not None:
            self._ended.move_to_end(branch)
        return known

    def unsettled_between(self, first: int, last: int) -> frozenset[Branch]:
        """Return the aborted branches of the last reading in the ledgers from ``first`` to ``last``."""
        ledgers = [branches for ledger_id, branches in self._unsettled.items() if first <= ledger_id <= last]
        return frozenset().union(*ledgers)


def _united(
    one: Mapping[int, frozenset[Branch]], other: Mapping[int, frozenset[Branch]]
) -> Mapping[int, frozenset[Branch]]:
    """Return the branches of both, by ledger."""
    united = dict(one)
    for ledger_id, branches in other.items():
        united[ledger_id] = united.get(ledger_id, frozenset()) | branches
    return united
