"""Combining concurrent appends into one call of the ledger."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from txnframework.errors import (
    Closed,
    LedgerClosed,
    LedgerNotFound,
    LedgerSealed,
    OutcomeUnknown,
    Unavailable,
)
from txnframework.interfaces import IManagedLedger
from txnframework.model import Append, Appended
from txnframework.runtime.tasks import start_task

_OF_THE_LEDGER = (LedgerClosed, LedgerSealed, LedgerNotFound, Unavailable, OutcomeUnknown, Closed)
"""Errors that concern a whole call, whatever its entries are."""


@dataclass(eq=False, slots=True)
class _Call:
    """One append that waits for its turn."""

    entries: tuple[Append, ...]
    ledger_id: int | None
    answer: asyncio.Future[tuple[Appended, ...]]

    @property
    def bytes(self) -> int:
        """The size of its entries together, in bytes."""
        return sum(len(entry.data) for entry in self.entries)


class GroupAppender:
    """
    Appends to one ledger, one call at a time, in the order of the calls.

    If no append is in progress, an append is sent immediately and alone. Appends that arrive during another one wait
    for it, and are then sent as one call. So no append waits for company, and a ledger that commits each append commits
    once for many. The entries and the bytes of such a call are bounded, unless a single append is larger.

    Each caller gets the results for its own entries. An error of the ledger that concerns the whole call is raised to
    all callers. Any other error concerns one of the entries, and no entry was appended: then each append is repeated
    alone.
    """

    def __init__(self, ledger: IManagedLedger, entries_max: int, bytes_max: int) -> None:
        self._ledger = ledger
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._waiting: deque[_Call] = deque()
        self._is_busy = False
        self._appender: asyncio.Task[None] | None = None

    async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """Append as ``IManagedLedger.append`` does. If the call is cancelled, the entries may still be stored."""
        if self._is_busy:
            call = _Call(entries, ledger_id, asyncio.get_running_loop().create_future())
            self._waiting.append(call)
            return await call.answer
        self._is_busy = True
        try:
            # In the caller's own task, so that cancelling the call leaves no background work.
            return await self._ledger.append(entries, ledger_id)
        finally:
            if self._waiting:
                self._appender = start_task(self._append_waiting())
            else:
                self._is_busy = False

    async def _append_waiting(self) -> None:
        """Append the waiting calls until none is left."""
        try:
            while calls := self._next():
                await self._append_calls(calls)
        finally:
            self._is_busy = False
            self._appender = None

    def _next(self) -> list[_Call]:
        """Take the next calls that are sent together; cancelled calls are left out."""
        calls: list[_Call] = []
        entries = size = 0
        while self._waiting:
            call = self._waiting[0]
            entries, size = entries + len(call.entries), size + call.bytes
            is_full = entries > self._entries_max or size > self._bytes_max
            if calls and (is_full or call.ledger_id != calls[0].ledger_id):
                break
            self._waiting.popleft()
            if not call.answer.done():
                calls.append(call)
        return calls

    async def _append_calls(self, calls: list[_Call]) -> None:
        try:
            entries = tuple(entry for call in calls for entry in call.entries)
            appended = iter(await self._ledger.append(entries, calls[0].ledger_id))
        except Exception as error:
            if len(calls) > 1 and not isinstance(error, _OF_THE_LEDGER):
                for call in calls:
                    await self._append_calls([call])
                return
            for call in calls:
                if not call.answer.done():
                    call.answer.set_exception(error)
            return
        for call in calls:
            own = tuple(next(appended) for _ in call.entries)
            if not call.answer.done():
                call.answer.set_result(own)
