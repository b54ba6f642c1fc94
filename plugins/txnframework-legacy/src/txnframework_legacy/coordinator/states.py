"""The meaning of a log's records: no I/O, and the same result in every process that reads them in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from txnframework.model import Participant, State, Transaction, TxnID
from txnframework_legacy.coordinator.records import AddPartition, AddSubscription, AnyRecord, Forget, New, Update
from txnframework_legacy.log import LiveRecords, Place

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
class Logged:
    """
    A transaction as stored in its log, COMMITTING and ABORTING included; ``place`` is the position of its first record.
    """

    transaction: Transaction
    place: Place

    @property
    def state(self) -> State:
        """The state in the log."""
        return self.transaction.state

    @property
    def settling(self) -> bool:
        """Whether the transaction is decided and not known to be settled at every participant."""
        return self.state in (State.COMMITTING, State.ABORTING)

    def as_told(self) -> Transaction:
        """
        Return the transaction as callers see it: a decided transaction has ended.

        It names its participants until all of them have settled. A participant that is named therefore still has to
        settle.
        """
        if self.state in (State.COMMITTED, State.ABORTED):
            return replace(self.transaction, participants=frozenset())
        return replace(self.transaction, state=OUTCOME.get(self.state, self.state))


class Transactions:
    """The transactions of one coordinator, by the numbers of their ids, up to a position in its log."""

    def __init__(self, coordinator: int) -> None:
        self._coordinator = coordinator
        self._logged: dict[int, Logged] = {}
        self.live = LiveRecords()

    def get(self, number: int) -> Logged | None:
        """Return a transaction; None if it is unknown."""
        return self._logged.get(number)

    def all(self) -> tuple[Logged, ...]:
        """Return all known transactions, in the order of their ids."""
        return tuple(logged for _, logged in sorted(self._logged.items()))

    def apply(self, record: AnyRecord, place: Place) -> None:
        """Apply the next record; a record that does not fit the current state changes nothing."""
        match record:
            case New():
                self._begin(record, place)
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
            if logged.place.entry.ledger_id < below_ledger_id:
                self._forget(number)

    def _begin(self, record: New, place: Place) -> None:
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
        self._logged[record.number] = Logged(begun, place)
        self.live.add(place)

    def _add(self, number: int, participants: frozenset[Participant]) -> None:
        logged = self._logged.get(number)
        if logged is not None and logged.state is State.OPEN:
            whole = replace(logged.transaction, participants=logged.transaction.participants | participants)
            self._logged[number] = replace(logged, transaction=whole)

    def _update(self, record: Update) -> None:
        logged = self._logged.get(record.number)
        state = State(record.state)
        if logged is None or logged.state is not State(record.expected) or state not in NEXT[logged.state]:
            return
        before = logged.transaction
        after = replace(before, state=state)
        if before.state is State.OPEN:
            # A transaction ends when it is decided; settling it does not change that time.
            branches = None if record.branches is None else frozenset(record.branches)
            after = replace(after, finalized_ms=record.at_ms, branches=branches)
        self._logged[record.number] = replace(logged, transaction=after)

    def _forget(self, number: int) -> None:
        logged = self._logged.pop(number, None)
        if logged is not None:
            self.live.discard(logged.place)
