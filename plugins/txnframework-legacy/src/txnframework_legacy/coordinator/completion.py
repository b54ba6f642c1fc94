"""
Ending a transaction in two phases: one record stores the decision, then all participants settle it.

When all have settled, another record stores the final state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

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
from txnframework.runtime.tasks import first_completed
from txnframework_legacy.coordinator.log import TransactionLog, TransactionLogs
from txnframework_legacy.coordinator.records import Update
from txnframework_legacy.coordinator.state import OUTCOME, LoggedTransaction
from txnframework_legacy.options import CoordinatorOptions


class TransactionCompletion:
    """Decides transactions and settles them at their participants."""

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

    async def decide(self, request: End) -> tuple[TransactionLog, LoggedTransaction]:
        """
        Store the decision in the log, or return the stored one.

        Reading the log up to the record shows whether the record counts. After an unknown outcome another record is
        appended: at most the first stored record takes effect.

        :raises InvalidTransactionState: the other decision is stored.
        :raises TransactionNotFound: the transaction is unknown.
        :raises NotTransactionOwner: the transaction belongs to another principal, and the caller is no operator.
        :raises OutcomeUnknown: the decision may be stored, and reading the log did not resolve it.
        """
        txn_id = request.txn_id
        unknown: OutcomeUnknown | None = None
        for _ in range(self._options.attempts_max):
            try:
                found = await self._logs.find_logged(txn_id)
                if found is None:
                    if unknown is not None:
                        raise OutcomeUnknown(f"transaction {txn_id} may have ended; its outcome is no longer known")
                    raise TransactionNotFound(txn_id)
                log, logged = found
                require_owner(logged.transaction, request)
                if logged.state is State.OPEN:
                    after = (await log.append(_decision(request, self._environment.now_ms()))).get(txn_id.number)
                    if after is None:
                        # This record may have decided, so long ago that another process has forgotten the transaction.
                        raise OutcomeUnknown(f"transaction {txn_id} may have ended; its outcome is no longer known")
                    logged = after
            except OutcomeUnknown as error:
                unknown = error
                continue
            except (Unavailable, Closed) as error:
                if unknown is None:
                    raise
                raise OutcomeUnknown(f"transaction {txn_id} may have ended; it could not be read again") from error
            if logged.state is not State.OPEN:
                require_same_end(logged.as_described(), request)
                return log, logged
        raise OutcomeUnknown(f"transaction {txn_id} may have ended") from unknown

    async def finish(self, log: TransactionLog, logged: LoggedTransaction, timeout_ms: int) -> LoggedTransaction:
        """
        Settle a decided transaction at every participant, with retries, then store its final state in the log.

        Returns the transaction in its final state. The timeout also cancels a call to a participant that does not
        answer; any process can repeat that call.

        :raises EndTransactionTimeout: a participant did not confirm within ``timeout_ms``. The decision is stored, and
            a sweep continues.
        """
        await self._run_within(self._settle_until_done(logged), logged.transaction.txn_id, timeout_ms)
        # All participants are settled. If this record is not written, a sweep settles them again and writes it.
        with suppress(Unavailable, OutcomeUnknown, Closed):
            await self._make_final(log, logged)
        return replace(logged, transaction=msgspec.structs.replace(logged.transaction, state=OUTCOME[logged.state]))

    async def settle_once(self, log: TransactionLog, logged: LoggedTransaction) -> int:
        """Try each participant once; return how many have not settled. If all have, store the final state."""
        if not logged.settling:
            return 0
        left = await self._settle_participants(logged.transaction.participants, logged.as_described())
        if not left:
            await self._make_final(log, logged)
        return len(left)

    async def _make_final(self, log: TransactionLog, logged: LoggedTransaction) -> None:
        update = Update(
            number=logged.transaction.txn_id.number,
            expected=logged.state.value,
            state=OUTCOME[logged.state].value,
            at_ms=self._environment.now_ms(),
        )
        await log.append(update)

    async def _settle_participants(
        self, participants: frozenset[Participant], ended: Transaction
    ) -> frozenset[Participant]:
        """Settle the outcome at these participants, several at a time; return those that failed."""
        slots = asyncio.Semaphore(self._options.participants_together_max)

        async def settle(participant: Participant) -> bool:
            async with slots:
                try:
                    await self._participants.settle(participant, ended)
                except LedgerNotFound:
                    return True  # deleted, with all data that the outcome could affect
                except TxnFrameworkError:
                    return False
            return True

        order = sorted(participants)
        settled = await asyncio.gather(*(settle(one) for one in order))
        return frozenset(one for one, done in zip(order, settled, strict=True) if not done)

    async def _settle_until_done(self, logged: LoggedTransaction) -> None:
        """Settle the outcome at every participant, and retry those that failed until none is left."""
        backoff = Backoff(self._environment, self._options.retry_delay_ms, self._options.retry_delay_ms_max)
        failures = 0
        left = logged.transaction.participants
        while left := await self._settle_participants(left, logged.as_described()):
            failures += 1
            await backoff.pause(failures)

    async def _run_within(self, work: Coroutine[Any, Any, None], txn_id: TxnID, timeout_ms: int) -> None:
        """Run ``work``; cancel it when the timeout passes or the coordinator is closed."""
        deadline_ms = self._environment.now_ms() + timeout_ms
        first = await first_completed(work, self._closed.wait(), self._environment.sleep_until(deadline_ms))
        if first == 1:
            raise OutcomeUnknown(
                f"transaction {txn_id} has ended, but the coordinator was closed before it was settled"
            )
        if first == 2:
            raise EndTransactionTimeout(txn_id, timeout_ms)


def require_owner(transaction: Transaction, request: End) -> None:
    """Raise ``NotTransactionOwner`` if the transaction belongs to another principal and the caller is no operator."""
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
