"""Transactions that somebody has to look at: open for long, or ended and not settled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from txnframework.broker._coordinating.sessions import Sessions
from txnframework.environment import Environment
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model.ids import TxnID
from txnframework.model.positions import Limit
from txnframework.model.transactions import OpenQuery, State, Transaction


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """
    A transaction that has been open, or has ended without taking effect everywhere, for ``age_ms``.

    ``owner_lives``: whether the process that began an open one is alive; None: it named none, or has ended.
    ``operations_left``: how many operations of an ended one wait, at the participants that ``transaction`` names.
    """

    transaction: Transaction
    age_ms: int
    owner_lives: bool | None = None
    operations_left: int = 0


class Hanging:
    """Finds them, by reading alone. ``coordinators`` returns one of each family, always in the same order."""

    def __init__(
        self,
        coordinators: Callable[[], Awaitable[Iterable[ITransactionCoordinator]]],
        sessions: Sessions,
        environment: Environment,
    ) -> None:
        self._coordinators = coordinators
        self._sessions = sessions
        self._environment = environment

    async def find(
        self, age_ms_min: int, after: HangingTransaction | None, transactions_max: int
    ) -> tuple[HangingTransaction, ...]:
        """
        Return those that hang for at least so long, a page: of each family the open ones, then the ended ones.

        What has operations and is not known is left out: it never counted, and no time is known of it.

        :raises TransactionNotFound: ``after``, the last one of the page before, has been forgotten since.
        """
        last = None if after is None else after.transaction
        found: list[HangingTransaction] = []
        for coordinator in await self._coordinators():
            if last is not None and coordinator.family != last.txn_id.family:
                continue  # looked at for the pages before
            after_id = None if last is None else last.txn_id
            if last is None or last.state is State.OPEN:
                query = OpenQuery(age_ms_min, after_id, Limit(transactions_max - len(found)))
                found += [await self._opened(one) for one in await coordinator.list_open(query)]
                after_id = None
            room = transactions_max - len(found)
            if room:
                found += await self._ended(coordinator, age_ms_min, after_id, room)
            if len(found) >= transactions_max:
                break
            last = None
        return tuple(found)

    async def _opened(self, one: Transaction) -> HangingTransaction:
        # Looked for after the transaction was found: whose session lives took its lease before it began one.
        lives = None if one.session is None else await self._sessions.lives(one.session)
        return HangingTransaction(one, self._environment.now_ms() - one.created_ms, lives)

    async def _ended(
        self, coordinator: ITransactionCoordinator, age_ms_min: int, after: TxnID | None, room: int
    ) -> list[HangingTransaction]:
        found: list[HangingTransaction] = []
        while len(found) < room and (page := await coordinator.outstanding(after, Limit(room))):
            now_ms = self._environment.now_ms()
            for one in page:
                if one.ended is None:
                    continue
                # Of one that is decided and still being carried out no end is known yet.
                since_ms = one.ended.created_ms if one.ended.finalized_ms is None else one.ended.finalized_ms
                age_ms = now_ms - since_ms
                if age_ms >= age_ms_min:
                    found.append(HangingTransaction(one.ended, age_ms, operations_left=one.operations))
            after = page[-1].txn_id
        return found[:room]
