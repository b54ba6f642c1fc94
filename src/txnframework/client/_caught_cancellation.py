"""Cancellations that the block of a transaction catches, so that it ends as if all of its work were done."""

from __future__ import annotations

import asyncio
from typing import Any

from txnframework.model.ids import TxnID


class BlockCancellations:
    """
    The cancellations of the task that runs a block.

    ``asyncio.timeout``, task groups and programs that call ``Task.uncancel`` withdraw what they handle. A cancellation
    that is caught and not withdrawn leaves the block anywhere in its work, also between two sends.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._before = 0

    def enter(self) -> None:
        """Note the task, and how many of its cancellations are older than the block."""
        self._task = asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()

    def caught(self, txn_id: TxnID) -> asyncio.CancelledError | None:
        """Return the cancellation that a block that ended normally has caught, to be raised again; None: none."""
        task, self._task = self._task, None
        # A block without `await` is entered and left by different tasks.
        if task is None or task is not asyncio.current_task() or task.cancelling() <= self._before:
            return None
        return asyncio.CancelledError(
            f"transaction {txn_id} was given up: its block caught a cancellation and then ended, so its work may be"
            " incomplete; if it is complete, call asyncio.current_task().uncancel() where it is caught"
        )
