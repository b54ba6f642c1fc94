"""Appends to one managed ledger: calls that wait at the same time are stored as one record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from txnframework.errors import Closed, OutcomeUnknown, Unavailable
from txnframework.model import Append, Appended
from txnframework.runtime.call_groups import GroupRules, ResultGroups
from txnframework.runtime.tasks import start_task
from txnframework_nats.ledgers._decisions import Decision, Limits, Wanted, decide_appends
from txnframework_nats.ledgers._log import Change, LedgerLog
from txnframework_nats.ledgers._numbers import TransactionNumbers
from txnframework_nats.ledgers._state import LedgerState

_REFUSALS_MAX = 10


class Appender:
    """
    Stores the waiting calls of append, one record after another.

    A caller that is cancelled before its call is taken has appended nothing. After that all of it is stored, or none.
    """

    def __init__(
        self,
        log: LedgerLog,
        numbers: TransactionNumbers,
        limits: Limits,
        group_bytes_max: int,
        now_ms: Callable[[], int],
        new_token: Callable[[], bytes],
    ) -> None:
        self._log = log
        self._numbers = numbers
        self._limits = limits
        self._now_ms = now_ms
        self._new_token = new_token
        rules: GroupRules[Wanted] = GroupRules(
            joins=lambda *_: True,
            size=lambda wanted: sum(len(entry.data) for entry in wanted.entries),
            size_max=group_bytes_max,
            what=f"an append to {log.name}",
            is_cancelled=False,
        )
        self._groups = ResultGroups(self._append, rules)
        self._is_closed = False

    async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """Append entries; see IManagedLedger."""
        if self._is_closed:
            raise Closed(f"the ledger store of {self._log.name} was closed")
        return await self._groups.add(Wanted(entries, ledger_id))

    async def close(self) -> None:
        """Stop; calls in flight raise OutcomeUnknown, and waiting ones Closed."""
        self._is_closed = True
        await self._groups.close()

    async def _append(self, calls: list[Wanted]) -> Sequence[tuple[Appended, ...] | Exception]:
        return (await self._store(calls)).answers

    async def _store(self, calls: list[Wanted]) -> Decision:
        def decide(state: LedgerState) -> Change[Decision]:
            decision = decide_appends(state, calls, self._now_ms(), self._new_token(), self._limits)
            return Change(decision, decision.added, decision.data)

        branches = [entry.branch for call in calls for entry in call.entries if entry.branch is not None]
        beyond = self._numbers.beyond(branches)
        if not beyond:
            return await self._log.change(decide, _REFUSALS_MAX)
        noting = start_task(self._numbers.note(beyond))
        try:
            decision = await self._log.change(decide, _REFUSALS_MAX)
            try:
                await noting
            except Unavailable as error:
                raise OutcomeUnknown(f"entries of {self._log.name} may be stored, but {error}") from error
        finally:
            noting.cancel()
            await asyncio.wait((noting,))
        return decision
