"""Commits of handlers that have returned: those that wait at the same time share a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from txnframework.broker import Host
from txnframework.client._handlers.transactions import HandlerTransactions
from txnframework.client._joint.transaction import transact_jointly
from txnframework.client._messages import Message
from txnframework.client._planned import PlannedAck, PlannedOperation, PlannedSend
from txnframework.client._transact import find_place, transact_planned
from txnframework.client._transaction import TransactionPart
from txnframework.errors import OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.runtime.call_groups import Answers, CallGroups, GroupRules

_GROUP_BYTES_MAX = 1 << 20
_MESSAGE_BYTES = 10_000
"""What a message counts in a group besides its value: a step has room for about a hundred messages of handlers."""


class Acknowledging(Protocol):
    """The consumer of the messages."""

    async def ack(self, *messages: Any, txn: TransactionPart | None = None) -> None:
        """Acknowledge messages."""

    def acknowledging(self, *messages: Any) -> PlannedAck:
        """Return acknowledgments for ``Client.transact``."""


@dataclass(eq=False, slots=True)
class _Handled:
    """What a handler returned, and the messages that it handled."""

    sends: tuple[PlannedSend, ...]
    messages: tuple[Message[Any], ...]

    @property
    def bytes(self) -> int:
        sizes = (len(value) for one in self.sends for value in one.message.values if value is not None)
        return _MESSAGE_BYTES * max(len(self.sends), len(self.messages)) + sum(sizes)


class SharedCommits:
    """
    Sends and acknowledges in transactions: all handlers that wait while one is under way share the next one.

    A shared transaction is one step of the store. If it cannot be, or if one part of it is refused, each handler has a
    transaction of its own, so none fails because of another one.
    """

    def __init__(self, host: Host, consumer: Acknowledging, transactions: HandlerTransactions) -> None:
        self._host = host
        self._consumer = consumer
        self._transactions = transactions
        self._groups: CallGroups[_Handled] = CallGroups(
            self._perform,
            GroupRules(
                joins=lambda *_: True,
                size=lambda one: one.bytes,
                size_max=_GROUP_BYTES_MAX,
                what="a transaction of several handlers",
            ),
        )

    async def commit(self, sends: tuple[PlannedSend, ...], messages: tuple[Message[Any], ...]) -> None:
        """Send and acknowledge, all or nothing; errors are those of ``Client.transact``."""
        await self._groups.add(_Handled(sends, messages))

    async def _perform(self, group: Sequence[_Handled]) -> Answers:
        if len(group) > 1:
            try:
                if await self._commit_together(group):
                    return [None] * len(group)
            except (OutcomeUnknown, Unavailable) as error:
                return [error] * len(group)
            except TxnFrameworkError:
                pass  # of one handler: the transaction of its own shows which
        return await asyncio.gather(*map(self._outcome, group))

    async def _commit_together(self, group: Sequence[_Handled]) -> bool:
        """Return whether one step was everything; otherwise nothing was written."""
        operations: list[PlannedOperation] = [one for handled in group for one in handled.sends]
        operations.append(self._consumer.acknowledging(*(one for handled in group for one in handled.messages)))
        _, place = await find_place(self._host, operations)
        if place is None:
            return False
        return await transact_jointly(self._host, place, self._transactions.request, operations) is not None

    async def _outcome(self, handled: _Handled) -> Exception | None:
        try:
            await self._commit(handled)
        except Exception as error:
            return error
        return None

    async def _commit(self, handled: _Handled) -> None:
        operations = (*handled.sends, self._consumer.acknowledging(*handled.messages))
        await transact_planned(self._host, operations, self._transactions.request, lambda _: self._transactions.open())
