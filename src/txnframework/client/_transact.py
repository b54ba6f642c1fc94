"""Transactions whose operations are all known before they begin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from txnframework.client._messages import MessageID
from txnframework.client._planned import PlannedOperation
from txnframework.client._transaction import Transaction, TransactionPart


async def transact_in_steps(txn: Transaction, operations: Sequence[PlannedOperation]) -> tuple[MessageID, ...]:
    """
    Begin the transaction, perform the operations, and commit.

    If an operation fails, the transaction is aborted after all of them have ended, and the first error is raised.
    """
    async with txn:
        return await _performed(txn, operations)


async def _performed(txn: TransactionPart, operations: Sequence[PlannedOperation]) -> tuple[MessageID, ...]:
    # Tasks begin in this order, so the messages of each producer keep it, and share entries.
    outcomes = await asyncio.gather(*(one.perform(txn) for one in operations), return_exceptions=True)
    failed = next((one for one in outcomes if isinstance(one, BaseException)), None)
    if failed is not None:
        raise failed
    return tuple(one for one in outcomes if isinstance(one, MessageID))
