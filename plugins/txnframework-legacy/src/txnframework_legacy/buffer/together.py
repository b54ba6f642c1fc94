"""Appends that many make at the same moment, as one call of the ledger."""

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

_OF_THE_LEDGER = (LedgerClosed, LedgerSealed, LedgerNotFound, Unavailable, OutcomeUnknown, Closed)
"""What a ledger says of a whole call, whatever the entries in it are."""


@dataclass(eq=False, slots=True)
class _Call:
    """One append that waits for its turn."""

    entries: tuple[Append, ...]
    ledger_id: int | None
    answer: asyncio.Future[tuple[Appended, ...]]

    @property
    def bytes(self) -> int:
        """How large its entries are together."""
        return sum(len(entry.data) for entry in self.entries)


class AppendsTogether:
    """
    Appends to one ledger, one call at a time, in the order of the calls.

    An append that finds nothing under way goes at once, and alone. Those that come while it is under way wait for it,
    and go together as one call then: nobody waits for company, and a ledger whose every append is a commit of its own
    makes one for many. Bounded are the entries and the bytes of such a call, unless a single append is larger.

    Each caller is told what the ledger says of its own entries. What the ledger says of the whole call, all are told.
    Whatever else it raises is about some entry, and nothing was appended: then each is appended alone.
    """

    def __init__(self, ledger: IManagedLedger, entries_max: int, bytes_max: int) -> None:
        self._ledger = ledger
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._waiting: deque[_Call] = deque()
        self._is_busy = False
        self._appender: asyncio.Task[None] | None = None

    async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """Append as ``IManagedLedger.append`` does. Cancelled, the entries may come to stand there all the same."""
        if self._is_busy:
            call = _Call(entries, ledger_id, asyncio.get_running_loop().create_future())
            self._waiting.append(call)
            return await call.answer
        self._is_busy = True
        try:
            # In the caller's own task, so that a call that is given up leaves nothing behind that goes on.
            return await self._ledger.append(entries, ledger_id)
        finally:
            if self._waiting:
                self._appender = asyncio.ensure_future(self._append_waiting())
            else:
                self._is_busy = False

    async def _append_waiting(self) -> None:
        """Append what waits, until nothing does."""
        try:
            while calls := self._next():
                await self._append_calls(calls)
        finally:
            self._is_busy = False
            self._appender = None

    def _next(self) -> list[_Call]:
        """Take the calls that go together; those that were given up are left out."""
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
