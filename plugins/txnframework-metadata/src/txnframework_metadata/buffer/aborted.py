"""Known outcomes of branches with decided entries; pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from txnframework.model.ids import Branch


class KnownOutcomes:
    """
    Which branches are known to be aborted, and which to count.

    The outcome of a branch never changes. A bounded number is remembered; a forgotten one is looked up again. The
    aborted branches of the last whole reading, and of the readings since, are all kept: their operations may have no
    abort record yet, so a lookup would find nothing.
    """

    def __init__(self, branches_max: int) -> None:
        self._branches_max = branches_max
        self._unsettled: Mapping[int, frozenset[Branch]] = {}
        self._ended: OrderedDict[Branch, bool] = OrderedDict()

    @property
    def unsettled(self) -> int:
        """The number of kept operations whose branch does not count and may have no abort record yet."""
        return sum(map(len, self._unsettled.values()))

    def observe(
        self, aborted: Mapping[int, frozenset[Branch]], counted: Iterable[Branch], *, is_whole: bool = True
    ) -> None:
        """
        Store the result of one reading: the branches that do not count, by ledger, and the branches that count.

        :param is_whole: the reading covered everything that is not settled, not only what came after the last reading.
        """
        self._unsettled = aborted if is_whole else _united(self._unsettled, aborted)
        for branches in aborted.values():
            self.note(branches, aborted=True)
        self.note(counted, aborted=False)

    def note(self, branches: Iterable[Branch], *, aborted: bool) -> None:
        """Remember the outcome of branches, and forget the least recently used ones beyond the bound."""
        for branch in branches:
            self._ended[branch] = aborted
        while len(self._ended) > self._branches_max:
            self._ended.popitem(last=False)

    def is_aborted(self, branch: Branch, ledger_id: int) -> bool | None:
        """
        Return whether a branch with decided entries in a ledger is aborted.

        None means that only its abort record can show it.
        """
        if branch in self._unsettled.get(ledger_id, ()):
            return True
        known = self._ended.get(branch)
        if known is not None:
            self._ended.move_to_end(branch)
        return known

    def unsettled_between(self, first: int, last: int) -> frozenset[Branch]:
        """Return the aborted branches of the last readings in the ledgers from ``first`` to ``last``."""
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
