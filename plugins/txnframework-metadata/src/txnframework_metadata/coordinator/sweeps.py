"""Settling, expiring and collecting transactions: any number of processes may do so at any time, repeatedly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from txnframework.config import TransactionsSection
from txnframework.environment import Environment
from txnframework.errors import (
    Corrupt,
    InvalidTransactionState,
    LedgerNotFound,
    OutcomeUnknown,
    TxnFrameworkError,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import IMetadataStore, IParticipants
from txnframework.model import index_keys
from txnframework.model.ids import TxnID
from txnframework.model.indexes import TXN_BY_DEADLINE, TXN_BY_FINAL_STATE
from txnframework.model.metadata import Expect, IndexRange, KeyRange
from txnframework.model.paths import abort_records_range, all_operations_range, header_key, trimmed_key
from txnframework.model.transactions import Participant, State, SweepResult, Transaction
from txnframework_metadata.coordinator.applications import Applications
from txnframework_metadata.options import CoordinatorOptions
from txnframework_metadata.records.headers import Header, abort_open, header_of, read_header
from txnframework_metadata.records.operations import forget, scan_operations
from txnframework_metadata.records.shared_operations import SharedOperations
from txnframework_metadata.records.views import StoredOperation, operation_of, participants_of

_LOG = logging.getLogger(__name__)

_FINAL = (State.COMMITTED, State.ABORTED)


@dataclass
class _Tally:
    """The result of one sweep so far."""

    done: int = 0
    left: int = 0
    next_ms: int | None = None
    overdue: list[Transaction] = field(default_factory=list)

    def due(self, at_ms: int) -> None:
        """Note that work is due at ``at_ms``."""
        self.next_ms = at_ms if self.next_ms is None else min(self.next_ms, at_ms)

    def swept(self) -> SweepResult:
        """Return the result as a value."""
        return SweepResult(self.done, self.left, self.next_ms, tuple(self.overdue))


class Sweeps:
    """Finishes ended transactions; the only decision made here is an abort at the deadline."""

    def __init__(
        self,
        store: IMetadataStore,
        participants: IParticipants,
        applications: Applications,
        environment: Environment,
        transactions: TransactionsSection,
        options: CoordinatorOptions,
        shared: SharedOperations,
    ) -> None:
        self._store = store
        self._participants = participants
        self._applications = applications
        self._environment = environment
        self._transactions = transactions
        self._options = options
        self._shared = shared
        # The rest of a pass that takes several sweeps. If it is empty, the next sweep begins a new pass.
        self._overdue_left: IndexRange | None = None
        self._finals_left: dict[State, IndexRange] = {}
        self._operations_left: KeyRange | None = None
        # Sweeps of one process may run at the same time: the host's own, and one that was requested. They share one
        # pass.
        self._collecting = asyncio.Lock()

    # -- settling -------------------------------------------------------------------------------------

    async def settle(self, txn_id: TxnID, ended: Transaction | None = None) -> SweepResult:
        """
        Make an ended transaction's outcome take effect where it has operations left.

        :param ended: the ended transaction, if it is known; it saves reading its header.
        """
        await self._shared.until_taken_effect(txn_id)
        if ended is None:
            header = await read_header(self._store, txn_id)
            ended = None if header is None else header.transaction
        operations = await scan_operations(self._store, txn_id, self._options.page_records)
        if ended is None:
            await forget(self._store, operations)  # settled since, so nothing is left to do
            return SweepResult(len(operations), 0)
        if ended.state is State.OPEN:
            raise InvalidTransactionState(txn_id, State.OPEN, "only an ended transaction can be settled")
        if not operations:
            return SweepResult(0, 0)
        if await self._take_effect(ended, operations):
            # No operation was added after the end, so nothing can be left.
            return SweepResult(len(operations), 0)
        return await self._counted(ended, operations)

    async def _settle_ended(self, ended: Transaction, operations: Sequence[StoredOperation]) -> SweepResult:
        """Settle the transaction at every participant, and count the operations that are left."""
        if not operations:
            return SweepResult(0, 0)
        await self._take_effect(ended, operations)
        return await self._counted(ended, operations)

    async def _counted(self, ended: Transaction, operations: Sequence[StoredOperation]) -> SweepResult:
        left = len(await scan_operations(self._store, ended.txn_id, self._options.page_records))
        return SweepResult(max(0, len(operations) - left), left)

    async def _take_effect(self, ended: Transaction, operations: Sequence[StoredOperation]) -> bool:
        """
        Settle the transaction at every participant and at its application; return whether all of them succeeded.

        The operations of a participant that failed stay stored, and a later sweep finds them. Participants are settled
        concurrently: many segments take about as long as one. Where all writes count and the buffer is open here, the
        outcome needs no step of the segment: the operations are removed together.
        """
        room = asyncio.Semaphore(self._options.participants_together_max)

        async def settle(participant: Participant) -> bool:
            async with room:
                return await self._settle_at(participant, ended, operations)

        removable, others = self._shared.tell_committed(ended, operations)
        with self._shared.settling(ended.txn_id, others):
            done = await asyncio.gather(*map(settle, sorted(participants_of(others))))
        try:
            await forget(self._store, removable)
        except TxnFrameworkError as error:
            _LOG.warning("the operations of transaction %s could not be removed: %s", ended.txn_id, error)
            return False
        try:
            await self._applications.settle(ended, operations)
        except (Unavailable, OutcomeUnknown, Corrupt) as error:
            _LOG.warning("transaction %s could not be settled at its application: %s", ended.txn_id, error)
            return False
        return all(done)

    async def _settle_at(
        self, participant: Participant, ended: Transaction, operations: Sequence[StoredOperation]
    ) -> bool:
        """Settle the transaction at one participant; return whether it succeeded."""
        try:
            await self._participants.settle(participant, ended)
        except LedgerNotFound:
            # The participant was deleted, so the outcome has nothing left to take effect on.
            await forget(self._store, [one for one in operations if participants_of([one]) == {participant}])
        except TxnFrameworkError as error:
            _LOG.warning("transaction %s could not be settled at %s: %s", ended.txn_id, participant, error)
            return False
        return True

    async def forget_segment(self, segment: str, upto_ledger_id: int | None) -> None:
        """
        Delete the abort records of a deleted segment up to one ledger, and the record of when they may be collected.

        If the segment's name was reused, the abort records of the new segment start waiting again: they stay longer,
        never shorter.
        """
        below = None if upto_ledger_id is None else upto_ledger_id + 1
        left: KeyRange | IndexRange | None = abort_records_range(segment, 0, below)
        while isinstance(left, KeyRange):
            page = await self._store.scan(left, self._options.page_records)
            for record in page.records:
                await self._store.delete(record.key, Expect.ANY)
            left = page.resume
        await self._store.delete(trimmed_key(segment), Expect.ANY)

    # -- timing out -----------------------------------------------------------------------------------

    async def expire(self, now_ms: int) -> SweepResult:
        """Abort a bounded number of transactions whose deadline has passed on every host's clock."""
        tally = _Tally()
        skew_ms = self._transactions.max_clock_skew_ms
        overdue = index_keys.range_below(TXN_BY_DEADLINE, now_ms - skew_ms)
        # Continue where the last sweep stopped: a page of headers that cannot be aborted must not hide the others for
        # ever.
        page = await self._store.scan_index(self._overdue_left or overdue, self._transactions.sweep_transactions_max)
        self._overdue_left = page.resume if isinstance(page.resume, IndexRange) else None
        for record in page.records:
            try:
                transaction = header_of(record).transaction
                ended = await abort_open(self._store, self._environment, transaction, self._options.attempts_max)
                tally.done += 1
                if ended is not None and ended.state is State.ABORTED:
                    tally.overdue.append(ended)
            except Corrupt as error:
                _LOG.error("a transaction cannot be aborted at its deadline: %s", error)
                tally.left += 1
            except (Unavailable, OutcomeUnknown) as error:
                _LOG.warning("%s could not be aborted at its deadline: %s", record.key.path, error)
                tally.left += 1
                tally.due(now_ms)
        if self._overdue_left is not None:
            tally.left += 1
            tally.due(now_ms)
        following = await self._first_readable(_rest(overdue, index_keys.prefix_range(TXN_BY_DEADLINE)))
        if following is not None:
            tally.due(following.transaction.deadline_ms + skew_ms)
        return tally.swept()

    async def _first_readable(self, entries: IndexRange) -> Header | None:
        """Return the first header in a range that is not damaged."""
        left: IndexRange | KeyRange | None = entries
        records_max = 1
        while isinstance(left, IndexRange):
            page = await self._store.scan_index(left, records_max)
            for record in page.records:
                with contextlib.suppress(Corrupt):
                    return header_of(record)
            left, records_max = page.resume, self._options.page_records
        return None

    # -- collecting -----------------------------------------------------------------------------------

    async def collect(self, now_ms: int) -> SweepResult:
        """
        Delete transactions that ended long ago and have no operations left; settle operations that other processes
        left.

        A header is deleted only when none of its operations is left, because it decides their effect.
        """
        async with self._collecting:
            return await self._collect(now_ms)

    async def _collect(self, now_ms: int) -> SweepResult:
        tally = _Tally()
        kept_ms = self._transactions.retention_ms + self._transactions.max_clock_skew_ms
        if not self._finals_left and self._operations_left is None:
            # Finish a pass before the next one begins. Otherwise passes over different data would prolong each other
            # endlessly.
            self._finals_left = {state: _expired(state, now_ms - kept_ms) for state in _FINAL}
            self._operations_left = all_operations_range()
        room = self._transactions.sweep_transactions_max
        for state in tuple(self._finals_left):
            # Collect at least one of each state: headers of one state that cannot be collected must not starve the
            # other.
            share = room // 2 if state is not tuple(self._finals_left)[-1] else room
            room -= await self._collect_state(state, max(1, share), tally)
        for state in _FINAL:
            await self._note_next(state, now_ms, kept_ms, tally)
        if self._operations_left is not None:
            await self._finish_operations(self._operations_left, now_ms, tally)
        for left in (*self._finals_left.values(), self._operations_left):
            if left is not None:
                tally.left += 1
                tally.due(now_ms)
        return tally.swept()

    async def _collect_state(self, state: State, room: int, tally: _Tally) -> int:
        """Collect a page of headers of one final state, oldest first; return how many were examined."""
        page = await self._store.scan_index(self._finals_left[state], room)
        if isinstance(page.resume, IndexRange):
            self._finals_left[state] = page.resume
        else:
            del self._finals_left[state]
        for record in page.records:
            try:
                collected = await self._collect_one(header_of(record))
            except Corrupt as error:
                _LOG.error("a transaction cannot be collected: %s", error)
                collected = False
            if collected:
                tally.done += 1
            else:
                tally.left += 1
        return len(page.records)

    async def _note_next(self, state: State, now_ms: int, kept_ms: int, tally: _Tally) -> None:
        """Note when the oldest header of a state that is still retained can be collected."""
        whole = index_keys.prefix_range(TXN_BY_FINAL_STATE, state.value)
        oldest = await self._first_readable(_rest(_expired(state, now_ms - kept_ms), whole))
        if oldest is not None:
            tally.due((oldest.transaction.finalized_ms or 0) + kept_ms)

    async def _collect_one(self, header: Header) -> bool:
        """Settle the rest of a transaction, then delete its header; return False if operations are left."""
        txn_id = header.transaction.txn_id
        operations = await scan_operations(self._store, txn_id, self._options.page_records)
        if (await self._settle_ended(header.transaction, operations)).left:
            return False
        try:
            await self._store.delete(header_key(txn_id), header.version)
        except VersionMismatch as error:
            return error.actual is None
        except (Unavailable, OutcomeUnknown) as error:
            _LOG.warning("the header of transaction %s could not be deleted: %s", txn_id, error)
            return False
        return True

    async def _finish_operations(self, left: KeyRange, now_ms: int, tally: _Tally) -> None:
        """
        Examine a page of operations of all transactions, and finish those that the ending process did not.

        A header is deleted after the operations of its transaction. So if it is gone, they were settled since the page
        was read.
        """
        page = await self._store.scan(left, self._options.page_records)
        self._operations_left = page.resume if isinstance(page.resume, KeyRange) else None
        by_txn: dict[TxnID, list[StoredOperation]] = {}
        for record in page.records:
            try:
                operation = operation_of(record)
            except Corrupt as error:
                _LOG.error("an operation cannot be finished: %s", error)
                tally.left += 1
            else:
                by_txn.setdefault(operation.txn_id, []).append(operation)
        for txn_id, operations in by_txn.items():
            try:
                await self._finish_transaction(txn_id, operations, now_ms, tally)
            except Corrupt as error:
                _LOG.error("operations of a transaction cannot be finished: %s", error)
                tally.left += len(operations)

    async def _finish_transaction(
        self, txn_id: TxnID, operations: Sequence[StoredOperation], now_ms: int, tally: _Tally
    ) -> None:
        """Finish the transaction of these operations, unless the process that ended it still has time to do so."""
        header = await read_header(self._store, txn_id)
        if header is None:
            await forget(self._store, operations)
            tally.done += len(operations)
        elif header.transaction.finalized_ms is not None:
            due_ms = header.transaction.finalized_ms + self._options.settle_delay_ms
            if due_ms > now_ms:
                tally.due(due_ms)
                return
            # Read all of them, not only this page: a batch's beginning and its ranges are in different operations.
            whole = await scan_operations(self._store, txn_id, self._options.page_records)
            swept = await self._settle_ended(header.transaction, whole)
            tally.done += swept.done
            tally.left += swept.left


def _expired(state: State, finalized_ms_max: int) -> IndexRange:
    """Return the index range of headers of a final state that ended no later than ``finalized_ms_max``."""
    return index_keys.range_below(TXN_BY_FINAL_STATE, state.value, finalized_ms_max)


def _rest(first: IndexRange, whole: IndexRange) -> IndexRange:
    """Return the part of a range that follows its first part."""
    return IndexRange(whole.index, first.stop, whole.stop)
