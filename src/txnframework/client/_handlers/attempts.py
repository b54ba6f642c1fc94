"""One attempt to handle messages: the call of the handler, and what makes it count."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from txnframework.broker import Host
from txnframework.client._base import RetryPolicy
from txnframework.client._handlers.handler_functions import HandlerFunction, HandlerMisuse
from txnframework.client._handlers.plan import Hindrance
from txnframework.client._handlers.shared_commits import Acknowledging, SharedCommits
from txnframework.client._handlers.transactions import HandlerTransactions
from txnframework.client._messages import Message
from txnframework.client._own_rows import JoinedRows, RowsRefused, usual_block
from txnframework.client._planned import PlannedOperation, take_planned
from txnframework.client._transact import find_place
from txnframework.client._transaction import TransactionPart, part_of
from txnframework.errors import (
    Closed,
    InvalidInput,
    OutcomeUnknown,
    TransactionDomainMismatch,
    TxnFrameworkError,
    Unavailable,
)
from txnframework.model.names import topic_of

Connect = Callable[[], AbstractAsyncContextManager[Any]]
"""Returns a block that yields a connection of the application's own, as ``pool.acquire`` does."""
Returned = Callable[[], None]
"""Says that a handler has returned, and that what is left is to store its results; the next handler may run."""
Attempt = Callable[[tuple[Message[Any], ...], Returned], Awaitable[None]]
"""Handles and acknowledges messages, or raises."""


class HandlerAttempts:
    """Calls a handler for messages of a consumer, and acknowledges them, in one of three ways."""

    def __init__(self, host: Host, consumer: Acknowledging, handler: HandlerFunction) -> None:
        self._host = host
        self._consumer = consumer
        self._handler = handler
        self._retry = RetryPolicy(host.environment, host.config.client)
        self._has_committed_rows = False

    async def planned(self, commits: SharedCommits, messages: tuple[Message[Any], ...], returned: Returned) -> None:
        """Call the handler, then send what it returned and acknowledge, as ``Client.transact`` does."""
        sends = self._handler.sends_of(await self._handler.call(messages))
        if sends:
            take_planned(self._host, sends)
        returned()
        try:
            await commits.commit(sends, messages)
        except Unavailable as error:
            raise Hindrance from error
        except InvalidInput as error:
            if await self._are_migrating((*sends, self._consumer.acknowledging(*messages))):
                raise Hindrance from error
            raise

    async def with_rows(
        self, connect: Connect, transactions: HandlerTransactions, messages: tuple[Message[Any], ...], _: Returned
    ) -> None:
        """
        Call the handler with a connection, then commit its rows with what it returned and the acknowledgments.

        The connection is in use until the commit, so no other handler runs before.
        """
        began = handled = False
        request = transactions.request
        usual = partial(usual_block, self._host, self._retry, request)
        try:
            async with connect() as connection:
                rows = await JoinedRows.join(self._host, (transactions.domain(), ""), connection)
                began = True
                try:
                    sends = self._handler.sends_of(await self._handler.call(messages, connection))
                    operations = take_planned(self._host, (*sends, self._consumer.acknowledging(*messages)))
                except BaseException:
                    await rows.rollback()
                    raise
                handled = True
                await rows.transact(operations, request, usual)
                self._has_committed_rows = True
        except BaseException as error:
            if handled and isinstance(error, Unavailable | RowsRefused):
                raise Hindrance from error
            if handled and isinstance(error, InvalidInput):
                if await self._are_migrating(operations):
                    raise Hindrance from error
                if not self._has_committed_rows:
                    # No connection of this kind can be used, and no message is at fault.
                    raise HandlerMisuse(f"what {self._handler} did cannot be committed: {error}") from error
            if not began and isinstance(error, InvalidInput):
                raise HandlerMisuse(f"a transaction for {self._handler} cannot begin: {error}") from error
            if not began and not _ends_the_loop(error):
                raise Hindrance from error
            raise

    async def _are_migrating(self, operations: Sequence[PlannedOperation]) -> bool:
        """Return whether no transaction covers the operations because some of their topics have migrated."""
        names, place = await find_place(self._host, operations)
        return place is None and await self._any_has_migrated(names)

    async def in_transaction(
        self, begin: Callable[[], AbstractAsyncContextManager[Any]], messages: tuple[Message[Any], ...], _: Returned
    ) -> None:
        """Call the handler in a transaction, whose block may be the application's, and acknowledge in it."""
        began = handled = acknowledged = False
        try:
            async with begin() as given:
                txn = part_of(given if isinstance(given, TransactionPart) else getattr(given, "txn", given), self._host)
                began = True
                self._handler.refuse_sends(await self._handler.call(messages, given))
                handled = True
                await self._consumer.ack(*messages, txn=txn)
                acknowledged = True
        except BaseException as error:
            if handled and isinstance(error, Unavailable):
                raise Hindrance from error
            if isinstance(error, TransactionDomainMismatch):
                names = dict.fromkeys((error.topic, *(one.id.segment for one in messages)))
                if await self._any_has_migrated(names):
                    raise Hindrance from error
            if not began and isinstance(error, InvalidInput):
                raise HandlerMisuse(f"a transaction for {self._handler} cannot begin: {error}") from error
            if not began and not _ends_the_loop(error):
                raise Hindrance from error
            raise
        if not acknowledged:
            raise InvalidInput("the context manager of the transaction suppressed the handler's error")

    async def _any_has_migrated(self, names: Iterable[str]) -> bool:
        """
        Return whether one of these topics or segments is of a topic that has migrated.

        Then the other topics of the transaction may still have to migrate. The messages wait for that: none of them is
        at fault, and none must become a dead letter.
        """
        for name in names:
            try:
                layout = await self._host.topics.finish_changes(topic_of(name))
            except (OutcomeUnknown, Unavailable):
                return True  # this is not known, and the next attempt asks again
            except TxnFrameworkError:
                continue
            if layout.origin is not None:
                return True
        return False

    async def without_transaction(self, messages: tuple[Message[Any], ...], returned: Returned) -> None:
        """Call the handler, then acknowledge. After a crash between the two, the messages are handled again."""
        arguments = (None,) if self._handler.takes_transaction else ()
        self._handler.refuse_sends(await self._handler.call(messages, *arguments))
        returned()
        await self._retry.run(lambda: self._consumer.ack(*messages))


def _ends_the_loop(error: BaseException) -> bool:
    """Return whether a transaction did not begin because the task is cancelled, the client closed, or so."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, Closed) or not isinstance(error, Exception)
