"""Settling, timing out and collecting: any number of processes may do it, at any time, as often as they like."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from txnframework.config import TransactionsSection
from txnframework.environment import Environment
from txnframework.errors import (
    InvalidTransactionState,
    OutcomeUnknown,
    TxnFrameworkError,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import IMetadataStore, IParticipants
from txnframework.model import index_keys
from txnframework.model.ids import TxnID
from txnframework.model.indexes import TXN_BY_DEADLINE, TXN_BY_FINAL_STATE
from txnframework.model.metadata import KeyRange
from txnframework.model.paths import all_operations_range, header_key
from txnframework.model.transactions import State, Swept, Transaction
from txnframework_metadata._applications import Applications
from txnframework_metadata._ending import abort_open
from txnframework_metadata._operations import forget, read_header, scan_operations
from txnframework_metadata._options import CoordinatorOptions
from txnframework_metadata._views import Header, StoredOperation, header_of, operation_of, participants_of

_LOG = logging.getLogger(__name__)


@dataclass
class _Tally:
    """What one sweep has come to so far."""

    done: int = 0
    left: int = 0
    next_ms: int | None = None

    def due(self, at_ms: int) -> None:
        """There is work at ``at_ms``."""
        self.next_ms = at_ms if self.next_ms is None else min(self.next_ms, at_ms)

    def swept(self) -> Swept:
        """Return it as a value."""
        return Swept(self.done, self.left, self.next_ms)


class Sweeps:
    """Finishes what transactions left behind: nothing here decides anything but an abort at the deadline."""

    def __init__(
        self,
        store: IMetadataStore,
        participants: IParticipants,
        applications: Applications,
        environment: Environment,
        transactions: TransactionsSection,
        options: CoordinatorOptions,
    ) -> None:
        self._store = store
        self._participants = participants
        self._applications = applications
        self._environment = environment
        self._transactions = transactions
        self._options = options
        self._operations_left: KeyRange = all_operations_range()

    # -- settling -------------------------------------------------------------------------------------

    async def settle(self, txn_id: TxnID) -> Swept:
        """Make one ended transaction's outcome take effect wherever it has operations left."""
        header = await read_header(self._store, txn_id)
        operations = await scan_operations(self._store, txn_id, self._options.page_records)
        if header is None:
            await forget(self._store, operations)  # never admitted: no effect to wait for
            return Swept(len(operations), 0)
        if header.transaction.state is State.OPEN:
            raise InvalidTransactionState(txn_id, State.OPEN, "only an ended transaction can be settled")
        return await self._settle_ended(header.transaction, operations)

    async def _settle_ended(self, ended: Transaction, operations: Sequence[StoredOperation]) -> Swept:
        """Let every participant do its part; what one of them cannot do stays and is found again."""
        if not operations:
            return Swept(0, 0)
        for participant in sorted(participants_of(operations)):
            try:
                await self._participants.settle(participant, ended)
            except TxnFrameworkError as error:
                _LOG.warning("transaction %s could not be settled at %s: %s", ended.txn_id, participant, error)
        try:
            await self._applications.settle(ended, operations)
        except (Unavailable, OutcomeUnknown) as error:
            _LOG.warning("transaction %s could not be settled at its application: %s", ended.txn_id, error)
        left = len(await scan_operations(self._store, ended.txn_id, self._options.page_records))
        return Swept(max(0, len(operations) - left), left)

    # -- timing out -----------------------------------------------------------------------------------

    async def expire(self, now_ms: int) -> Swept:
        """Abort what is past its deadline on whichever host's clock, a bounded number."""
        tally = _Tally()
        skew_ms = self._transactions.max_clock_skew_ms
        overdue = index_keys.range_below(TXN_BY_DEADLINE, now_ms - skew_ms)
        page = await self._store.scan_index(overdue, self._transactions.sweep_transactions_max)
        for record in page.records:
            transaction = header_of(record).transaction
            try:
                await abort_open(self._store, self._environment, transaction, self._options.attempts_max)
                tally.done += 1
            except (Unavailable, OutcomeUnknown) as error:
                _LOG.warning("transaction %s could not be aborted at its deadline: %s", transaction.txn_id, error)
                tally.left += 1
        if page.resume is not None:
            tally.left += 1
        following = await self._store.scan_index(index_keys.prefix_range(TXN_BY_DEADLINE), 1)
        for record in following.records:
            tally.due(header_of(record).transaction.deadline_ms + skew_ms)
        return tally.swept()

    # -- collecting -----------------------------------------------------------------------------------

    async def collect(self, now_ms: int) -> Swept:
        """
        Forget transactions that ended long ago and left nothing undone; finish what others left undone.

        A header goes only when no operation of it is left: it is what an operation's effect is decided by.
        """
        tally = _Tally()
        room = self._transactions.sweep_transactions_max
        for state in (State.COMMITTED, State.ABORTED):
            room -= await self._collect_state(state, now_ms, room, tally)
        await self._finish_operations(now_ms, tally)
        return tally.swept()

    async def _collect_state(self, state: State, now_ms: int, room: int, tally: _Tally) -> int:
        """Collect headers of one final state, oldest first; return how many were looked at."""
        kept_ms = self._transactions.retention_ms + self._transactions.max_clock_skew_ms
        looked_at = 0
        if room > 0:
            expired = index_keys.range_below(TXN_BY_FINAL_STATE, state.value, now_ms - kept_ms)
            page = await self._store.scan_index(expired, room)
            for record in page.records:
                looked_at += 1
                if await self._collect_one(header_of(record)):
                    tally.done += 1
                else:
                    tally.left += 1
            if page.resume is not None:
                tally.left += 1
                tally.due(now_ms)
        oldest = await self._store.scan_index(index_keys.prefix_range(TXN_BY_FINAL_STATE, state.value), 1)
        for record in oldest.records:
            due_ms = (header_of(record).transaction.finalized_ms or 0) + kept_ms
            if due_ms > now_ms:
                tally.due(due_ms)
        return looked_at

    async def _collect_one(self, header: Header) -> bool:
        """Settle what is left of a transaction, then delete its header; False if something is still left."""
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

    async def _finish_operations(self, now_ms: int, tally: _Tally) -> None:
        """
        Look at a page of operations of all transactions: finish those of transactions whose process did not.

        An operation whose header is gone was put on a store without atomic batches by a process that died before it
        could look again; it was never admitted and is deleted without effect.
        """
        page = await self._store.scan(self._operations_left, self._options.page_records)
        more = isinstance(page.resume, KeyRange)
        self._operations_left = page.resume if isinstance(page.resume, KeyRange) else all_operations_range()
        if more:
            tally.left += 1
            tally.due(now_ms)
        by_txn: dict[TxnID, list[StoredOperation]] = {}
        for record in page.records:
            operation = operation_of(record)
            by_txn.setdefault(operation.txn_id, []).append(operation)
        for txn_id, operations in by_txn.items():
            header = await read_header(self._store, txn_id)
            if header is None:
                await forget(self._store, operations)
                tally.done += len(operations)
            elif header.transaction.finalized_ms is not None:
                due_ms = header.transaction.finalized_ms + self._options.settle_delay_ms
                if due_ms > now_ms:
                    tally.due(due_ms)
                    continue
                # All of them, not only this page: that a batch began and what it consumed stand in different ones.
                whole = await scan_operations(self._store, txn_id, self._options.page_records)
                swept = await self._settle_ended(header.transaction, whole)
                tally.done += swept.done
                tally.left += swept.left
