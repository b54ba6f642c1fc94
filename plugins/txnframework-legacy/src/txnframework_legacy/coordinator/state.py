"""
The state that follows from a log's records.

There is no I/O, and every process that reads the records in order gets the same state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import msgspec

from txnframework.model import Participant, Position, State, Transaction, TxnID
from txnframework_legacy.coordinator.records import AddPartition, AddSubscription, AnyRecord, Forget, New, Update
from txnframework_legacy.log import RecordPosition


class LiveRecords:
    """
    The needed records of a log, by entry. An entry can be trimmed when none of its records is needed.

    A replay of the log restores this state. Trimming removes whole ledgers: those before the first ledger with a needed
    entry.
    """

    def __init__(self) -> None:
        self._indexes: dict[Position, set[int]] = {}
        self._entries: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._indexes)

    @property
    def records(self) -> int:
        """The number of needed records."""
        return sum(map(len, self._indexes.values()))

    def oldest(self) -> Position | None:
        """Return the position of the first needed record, with its index in the entry; None if no record is needed."""
        entry = min(self._indexes, default=None)
        return None if entry is None else Position(entry.ledger_id, entry.entry_id, min(self._indexes[entry]))

    def add(self, position: RecordPosition) -> None:
        """Mark a record as needed."""
        indexes = self._indexes.get(position.entry)
        if indexes is None:
            indexes = self._indexes[position.entry] = set()
            self._entries[position.entry.ledger_id] += 1
        indexes.add(position.index)

    def discard(self, position: RecordPosition) -> None:
        """Mark a record as no longer needed; an unknown record is ignored."""
        indexes = self._indexes.get(position.entry)
        if indexes is None:
            return
        indexes.discard(position.index)
        if not indexes:
            del self._indexes[position.entry]
            self._entries[position.entry.ledger_id] -= 1
            if not self._entries[position.entry.ledger_id]:
                del self._entries[position.entry.ledger_id]

    def first_ledger(self) -> int | None:
        """Return the first ledger with a needed entry; None if no entry is needed."""
        return min(self._entries, default=None)


NEXT: dict[State, frozenset[State]] = {
    State.OPEN: frozenset({State.COMMITTING, State.ABORTING}),
    State.COMMITTING: frozenset({State.COMMITTED}),
    State.ABORTING: frozenset({State.ABORTED}),
    State.COMMITTED: frozenset(),
    State.ABORTED: frozenset(),
}
"""The states that may follow each state; a final state has none."""

OUTCOME = {
    State.COMMITTING: State.COMMITTED,
    State.COMMITTED: State.COMMITTED,
    State.ABORTING: State.ABORTED,
    State.ABORTED: State.ABORTED,
}
"""The outcome of a decided transaction. Only its participants distinguish COMMITTING from COMMITTED."""


@dataclass(frozen=True, slots=True)
class LoggedTransaction:
    """
    A transaction as stored in its log, COMMITTING and ABORTING included; ``position`` is that of its first record.
    """

    transaction: Transaction
    position: RecordPosition

    @property
    def state(self) -> State:
        """The state in the log."""
        return self.transaction.state

    @property
    def settling(self) -> bool:
        """Whether the transaction is decided and not known to be settled at every participant."""
        return self.state in (State.COMMITTING, State.ABORTING)

    def as_described(self) -> Transaction:
        """
        Return the transaction as callers see it: a decided transaction has ended.

        It names its participants until all of them have settled. A participant that is named therefore still has to
        settle.
        """
        if self.state in (State.COMMITTED, State.ABORTED):
            return msgspec.structs.replace(self.transaction, participants=frozenset())
        return msgspec.structs.replace(self.transaction, state=OUTCOME.get(self.state, self.state))


class Transactions:
    """The transactions of one coordinator, by the numbers of their ids, up to a position in its log."""

    def __init__(self, coordinator: int) -> None:
        self._coordinator = coordinator
        self._logged: dict[int, LoggedTransaction] = {}
        self.live = LiveRecords()

    def get(self, number: int) -> LoggedTransaction | None:
        """Return a transaction; None if it is unknown."""
        return self._logged.get(number)

    def all(self) -> tuple[LoggedTransaction, ...]:
        """Return all known transactions, in the order of their ids."""
        return tuple(logged for _, logged in sorted(self._logged.items()))

    def apply(self, record: AnyRecord, position: RecordPosition) -> None:
        """Apply the next record; a record that does not fit the current state changes nothing."""
        match record:
            case New():
                self._begin(record, position)
            case AddPartition(number=number, segments=segments):
                self._add(number, frozenset(Participant(segment) for segment in segments))
            case AddSubscription(number=number, subscriptions=subscriptions):
                self._add(number, frozenset(Participant(segment, name) for segment, name in subscriptions))
            case Update():
                self._update(record)
            case Forget(numbers=numbers):
                for number in numbers:
                    self._forget(number)

    def trimmed(self, below_ledger_id: int) -> None:
        """
        Forget the transactions that began in a trimmed ledger.

        A ledger is trimmed only after every transaction that began in it was forgotten. The records that forgot them
        may have been trimmed with that ledger, or with a later one, before this process read them.
        """
        for number, logged in tuple(self._logged.items()):
            if logged.position.entry.ledger_id < below_ledger_id:
                self._forget(number)

    def _begin(self, record: New, position: RecordPosition) -> None:
        if record.number in self._logged:
            return
        txn_id = TxnID(self._coordinator, record.number)
        begun = Transaction(
            txn_id,
            State.OPEN,
            record.deadline_ms,
            record.created_ms,
            principal=record.principal,
            session=record.session,
        )
        self._logged[record.number] = LoggedTransaction(begun, position)
        self.live.add(position)

    def _add(self, number: int, participants: frozenset[Participant]) -> None:
        logged = self._logged.get(number)
        if logged is not None and logged.state is State.OPEN:
            whole = msgspec.structs.replace(
                logged.transaction, participants=logged.transaction.participants | participants
            )
            self._logged[number] = replace(logged, transaction=whole)

    def _update(self, record: Update) -> None:
        logged = self._logged.get(record.number)
        state = State(record.state)
        if logged is None or logged.state is not State(record.expected) or state not in NEXT[logged.state]:
            return
        before = logged.transaction
        after = msgspec.structs.replace(before, state=state)
        if before.state is State.OPEN:
            # A transaction ends when it is decided; settling it does not change that time.
            branches = None if record.branches is None else frozenset(record.branches)
            after = msgspec.structs.replace(after, finalized_ms=record.at_ms, branches=branches)
        self._logged[record.number] = replace(logged, transaction=after)

    def _forget(self, number: int) -> None:
        logged = self._logged.pop(number, None)
        if logged is not None:
            self.live.discard(logged.position)
