"""
Which entries of a segment may be read, given its tail, its intents and their headers, and the known outcomes; pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from txnframework.model.ids import Branch, TxnID
from txnframework.model.positions import Position
from txnframework.model.reads import Visibility
from txnframework.model.transactions import State, Transaction


class Intent(msgspec.Struct, frozen=True, gc=False):
    """A write operation: ``branch`` may have entries in ``ledger_id``, all of them after ``after``."""

    branch: Branch
    ledger_id: int
    after: Position


class Seen(msgspec.Struct, frozen=True, gc=False):
    """
    The result of one reading.

    ``max_read``: everything up to it is decided. ``pin``: the open transaction that holds it back, or None.
    ``aborted``: by ledger, the branches that ended without counting and may have no abort record yet. ``counted``: the
    branches that count.
    """

    max_read: Position
    pin: TxnID | None
    aborted: dict[int, frozenset[Branch]]
    counted: frozenset[Branch]


def undecided(
    intents: Sequence[Intent],
    headers: Mapping[TxnID, Transaction | None],
    announced: Position | None,
    items_max: int,
) -> list[TxnID]:
    """
    Return the transactions whose headers are read next; none if enough is known. ``intents`` are ordered by ``after``.

    The lowest open intent limits the readable entries, so headers of later intents are not needed. An announced
    position stays announced, even if a late intent is lower: every intent up to it needs its outcome.
    """
    wanted: dict[TxnID, None] = {}
    pinned = False
    for intent in intents:
        if pinned and (announced is None or intent.after >= announced):
            break
        txn_id = intent.branch.txn_id
        if txn_id not in headers:
            wanted[txn_id] = None
            if len(wanted) == items_max:
                break
        else:
            header = headers[txn_id]
            pinned = pinned or (header is not None and header.state is State.OPEN)
    return list(wanted)


def seen(last_confirmed: Position, intents: Sequence[Intent], headers: Mapping[TxnID, Transaction | None]) -> Seen:
    """
    Return the readable entries. ``last_confirmed`` was read before the intents, and the intents before the headers.

    An intent without header has no effect: its transaction was settled since.
    """
    pin: Intent | None = None
    aborted: dict[int, set[Branch]] = {}
    counted: set[Branch] = set()
    for intent in intents:
        header = headers.get(intent.branch.txn_id)
        if header is None:
            continue
        if header.state is State.OPEN:
            if pin is None or intent.after < pin.after:
                pin = intent
        elif header.counts(intent.branch.number):
            counted.add(intent.branch)
        else:
            aborted.setdefault(intent.ledger_id, set()).add(intent.branch)
    return Seen(
        last_confirmed if pin is None else min(pin.after, last_confirmed),
        None if pin is None else pin.branch.txn_id,
        {ledger_id: frozenset(branches) for ledger_id, branches in aborted.items()},
        frozenset(counted),
    )


def outcome_of(header: Transaction, branch: Branch) -> Visibility:
    """Return the outcome of a branch according to its transaction's header."""
    if header.state is State.OPEN:
        return Visibility.OPEN
    return Visibility.COMMITTED if header.counts(branch.number) else Visibility.ABORTED


class KnownOutcomes:
    """
    The known outcomes of branches: aborted ones, and those that count.

    The outcome of a branch never changes. A bounded number of outcomes is remembered, and forgotten ones are looked up
    again. All aborted branches of the last whole reading, and of the readings since, are kept. Their operations may
    have no abort record yet, so a lookup would find nothing.
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
