"""
Settling of ended transactions on a subscription.

Transactions that end concurrently are settled as one batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from txnframework.errors import LedgerSealed
from txnframework.interfaces import ICursor
from txnframework.model import Ack, Participant, Transaction, TxnID
from txnframework_legacy.pending_acks.holds import Hold
from txnframework_legacy.pending_acks.log import PendingAckLog
from txnframework_legacy.pending_acks.records import Settled


@dataclass(eq=False, slots=True)
class _SettleRequest:
    """One transaction to settle; ``ended`` is None if the transaction was forgotten."""

    txn_id: TxnID
    ended: Transaction | None
    done: bool = False
    error: Exception | None = None


class AckSettlement:
    """
    Applies the acknowledgments that count to the cursor, then records that the transactions hold no message any more.

    A cursor changes by compare-and-set. The waiting transactions are therefore settled with one change: separate
    changes would conflict with each other. The call that has the lock settles for all waiting calls. If that call is
    cancelled, the next one takes over.
    """

    def __init__(self, participant: Participant, cursor: ICursor, batch_max: int) -> None:
        self._participant = participant
        self._cursor = cursor
        self._batch_max = batch_max
        self._waiting: list[_SettleRequest] = []
        self._lock = asyncio.Lock()

    async def settle(self, log: PendingAckLog, txn_id: TxnID, ended: Transaction | None) -> bool:
        """
        Settle a transaction.

        Return False if another call has settled it on behalf of this one.
        """
        own, led = _SettleRequest(txn_id, ended), False
        self._waiting.append(own)
        async with self._lock:
            if own.error is not None:
                raise own.error
            while not own.done:
                led = True
                await self._settle_some(log)
        return led

    async def _settle_some(self, log: PendingAckLog) -> None:
        batch = self._waiting[: self._batch_max]
        del self._waiting[: self._batch_max]
        try:
            await self._settle(log, batch)
        except Exception as error:
            for one in batch:
                one.error = error
            raise
        except BaseException:
            self._waiting[:0] = batch  # the leading call was cancelled: the others take over
            raise
        for one in batch:
            one.done = True

    async def _settle(self, log: PendingAckLog, batch: Sequence[_SettleRequest]) -> None:
        upto = await log.catch_up()
        holding = [one for one in batch if log.held.of(one.txn_id)]
        counting = [hold for one in holding for hold in self._counting(log.held.of(one.txn_id), one.ended)]
        for incarnation in sorted({hold.incarnation for hold in counting}):
            await self._apply(incarnation, [hold for hold in counting if hold.incarnation == incarnation])
        # After a crash before this, the acknowledgments are applied again, which changes nothing.
        records = [Settled(txn=str(txn_id), upto=str(upto)) for txn_id in dict.fromkeys(one.txn_id for one in holding)]
        for answer in await asyncio.gather(*map(log.append, records), return_exceptions=True):
            # A sealed log takes no record. Then the same acknowledgments are applied each time, which changes nothing.
            if isinstance(answer, BaseException) and not isinstance(answer, LedgerSealed):
                raise answer

    def _counting(self, holds: Sequence[Hold], ended: Transaction | None) -> Iterable[Hold]:
        """
        Return the holds that take effect.

        A transaction names its participants until all of them have settled, and is forgotten later (None). If it no
        longer names this subscription, its holds here were appended after it had settled. Their callers never received
        a confirmation, so these holds have no effect.
        """
        if ended is None or self._participant not in ended.participants:
            return ()
        return [hold for hold in holds if ended.counts(hold.branch.number)]

    async def _apply(self, incarnation: int, holds: Iterable[Hold]) -> None:
        rest: list[Ack] = []
        for hold in holds:
            if hold.processed is not None:
                await self._cursor.apply(incarnation, hold.acks, hold.processed)
            else:
                rest += hold.acks
        if rest:
            await self._cursor.apply(incarnation, tuple(rest), None)
