"""Ending in two phases: the decision is one record in the log, then every participant is told, then it is final."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from txnframework.environment import Environment
from txnframework.errors import (
    Closed,
    EndTransactionTimeout,
    LedgerNotFound,
    NotTransactionOwner,
    OutcomeUnknown,
    TransactionNotFound,
    TxnFrameworkError,
    Unavailable,
)
from txnframework.interfaces import IParticipants
from txnframework.model import Action, End, Participant, State, Transaction, TxnID
from txnframework.model.transactions import require_same_end
from txnframework.runtime.backoff import Backoff
from txnframework_legacy.coordinator.log import TransactionLog
from txnframework_legacy.coordinator.logs import TransactionLogs
from txnframework_legacy.coordinator.records import Update
from txnframework_legacy.coordinator.states import OUTCOME, Logged
from txnframework_legacy.options import CoordinatorOptions


class Ending:
    """Decides transactions and tells their participants."""

    def __init__(
        self,
        logs: TransactionLogs,
        participants: IParticipants,
        environment: Environment,
        options: CoordinatorOptions,
        closed: asyncio.Event,
    ) -> None:
        self._logs = logs
        self._participants = participants
        self._environment = environment
        self._options = options
        self._closed = closed

    async def decide(self, request: End) -> tuple[TransactionLog, Logged]:
        """
        Put the decision into the log, or find it there.

        Whether the record counts is seen after reading up to it. After an unknown outcome another one is appended: at
        most one of all that stand there takes effect, the first.

        :raises InvalidTransactionState: it was decided otherwise.
        :raises TransactionNotFound: it is not known.
        :raises NotTransactionOwner: it belongs to another principal, and no operator asks.
        :raises OutcomeUnknown: not even reading could tell.
        """
        txn_id = request.txn_id
        unknown: OutcomeUnknown | None = None
        for _ in range(self._options.attempts_max):
            try:
                found = await self._logs.find_logged(txn_id)
                if found is None:
                    if unknown is not None:
                        raise OutcomeUnknown(f"transaction {txn_id} may have ended; it was forgotten since")
                    raise TransactionNotFound(txn_id)
                log, logged = found
                require_owner(logged.transaction, request)
                if logged.state is State.OPEN:
                    after = (await log.append(_decision(request, self._environment.now_ms()))).get(txn_id.number)
                    if after is None:
                        # This very record may have decided, so long ago that somebody has forgotten the transaction.
                        raise OutcomeUnknown(f"transaction {txn_id} may have ended; it was forgotten since")
                    logged = after
            except OutcomeUnknown as error:
                unknown = error
                continue
            except (Unavailable, Closed) as error:
                if unknown is None:
                    raise
                raise OutcomeUnknown(f"transaction {txn_id} may have ended; it could not be read again") from error
            if logged.state is not State.OPEN:
                require_same_end(logged.as_told(), request)
                return log, logged
        raise OutcomeUnknown(f"transaction {txn_id} may have ended") from unknown

    async def finish(self, log: TransactionLog, logged: Logged, timeout_ms: int) -> Logged:
        """
        Tell every participant of a decided transaction until each has taken it, then put its final state into the log.

        Returns it in its final state. Time is up when it is, also for a participant that does not answer: what it was
        doing is given up, and can be repeated by anybody.

        :raises EndTransactionTimeout: not all were told after ``timeout_ms``; the decision stands, and a sweep goes on.
        """
        await self._in_time(self._tell_until_taken(logged), logged.transaction.txn_id, timeout_ms)
        # Everything has taken effect: where this is not written, a sweep tells everybody once more, and writes it.
        with suppress(Unavailable, OutcomeUnknown, Closed):
            await self._make_final(log, logged)
        return replace(logged, transaction=replace(logged.transaction, state=OUTCOME[logged.state]))

    async def settle_once(self, log: TransactionLog, logged: Logged) -> int:
        """Tell every participant once; return how many have not taken it. With none left its final state is written."""
        if not logged.settling:
            return 0
        left = await self._tell(logged.transaction.participants, logged.as_told())
        if not left:
            await self._make_final(log, logged)
        return len(left)

    async def _make_final(self, log: TransactionLog, logged: Logged) -> None:
        update = Update(
            number=logged.transaction.txn_id.number,
            expected=logged.state.value,
            state=OUTCOME[logged.state].value,
            at_ms=self._environment.now_ms(),
        )
        await log.append(update)

    async def _tell(self, participants: frozenset[Participant], ended: Transaction) -> frozenset[Participant]:
        """Tell these at a time; return those that have not taken it."""
        together = asyncio.Semaphore(self._options.participants_together_max)

        async def tell(participant: Participant) -> bool:
            async with together:
                try:
                    await self._participants.settle(participant, ended)
                except LedgerNotFound:
                    return True  # deleted for ever, with everything that the outcome could take effect on
                except TxnFrameworkError:
                    return False
            return True

        order = sorted(participants)
        taken = await asyncio.gather(*(tell(one) for one in order))
        return frozenset(one for one, done in zip(order, taken, strict=True) if not done)

    async def _tell_until_taken(self, logged: Logged) -> None:
        """Tell every participant, and those that have not taken it again and again."""
        backoff = Backoff(self._environment, self._options.retry_delay_ms, self._options.retry_delay_ms_max)
        failures = 0
        left = logged.transaction.participants
        while left := await self._tell(left, logged.as_told()):
            failures += 1
            await backoff.pause(failures)

    async def _in_time(self, work: Coroutine[Any, Any, None], txn_id: TxnID, timeout_ms: int) -> None:
        """Do this, unless time is up or the coordinator is closed before."""
        give_up_ms = self._environment.now_ms() + timeout_ms
        working = asyncio.ensure_future(work)
        timing = asyncio.ensure_future(self._environment.sleep_until(give_up_ms))
        closing = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({working, timing, closing}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return
            if self._closed.is_set():
                reason = f"transaction {txn_id} has ended, but the coordinator was closed before all were told"
                raise OutcomeUnknown(reason)
            raise EndTransactionTimeout(txn_id, timeout_ms)
        finally:
            for one in (working, timing, closing):
                one.cancel()
            await asyncio.gather(working, timing, closing, return_exceptions=True)


def require_owner(transaction: Transaction, request: End) -> None:
    """Raise NotTransactionOwner if it belongs to somebody else, and no operator asks."""
    owner = transaction.principal
    if owner and owner != request.principal and not request.operator:
        raise NotTransactionOwner(transaction.txn_id, request.principal)


def _decision(request: End, now_ms: int) -> Update:
    committing = request.action is Action.COMMIT
    return Update(
        number=request.txn_id.number,
        expected=State.OPEN.value,
        state=(State.COMMITTING if committing else State.ABORTING).value,
        at_ms=now_ms,
        branches=sorted(request.branches) if committing else None,
    )
