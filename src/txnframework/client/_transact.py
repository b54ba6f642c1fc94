"""Transactions whose operations are all known before they begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from txnframework.broker import Host
from txnframework.client._joint.transaction import transact_jointly
from txnframework.client._messages import MessageID
from txnframework.client._planned import PlannedAck, PlannedOperation, PlannedSend, by_producer
from txnframework.client._transaction import Transaction, TransactionPart
from txnframework.errors import InvalidInput
from txnframework.model.names import parse_name
from txnframework.model.transactions import Begin


async def transact_planned(
    host: Host,
    operations: Sequence[PlannedOperation],
    request: Begin,
    transaction: Callable[[tuple[str, str]], AbstractAsyncContextManager[Transaction]],
) -> tuple[MessageID, ...]:
    """
    Perform the operations in one step, or in a transaction of their own; see ``TransactionOperations.transact``.

    If an operation fails, the transaction is aborted after all of them have ended, and the first error is raised.

    :param operations: what ``take_planned`` returned.
    :param transaction: returns the block of a transaction that begins as ``request`` says, for its domain and
        namespace.
    """
    place = await require_place(host, operations)
    done = await transact_jointly(host, place, request, operations)
    if done is not None:
        return done
    async with transaction(place) as txn:
        return await perform(txn, operations)


async def require_place(host: Host, operations: Sequence[PlannedOperation]) -> tuple[str, str]:
    """Return the domain and namespace of a transaction that can cover the operations, or raise InvalidInput."""
    names, place = await find_place(host, operations)
    if place is None:
        raise InvalidInput(f"one transaction cannot cover all of these, which have no common family: {names}")
    return place


async def find_place(
    host: Host, operations: Sequence[PlannedOperation]
) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """
    Return the topics or segments of the operations, and the domain and namespace of a transaction that can cover them.

    None instead of the latter: they have no common family.
    """
    names = tuple(dict.fromkeys(name for one in operations for name in one.names()))
    place = host.transaction_place(*names)
    if place is None:
        # A producer notices that its topic has migrated when it sends, and a consumer some time after it.
        names = tuple(dict.fromkeys([await _current_name(host, name) for name in names]))
        place = host.transaction_place(*names)
    return names, place


async def _current_name(host: Host, name: str) -> str:
    return str(await host.topics.current_name(parse_name(name)))


async def perform(txn: TransactionPart, operations: Sequence[PlannedOperation]) -> tuple[MessageID, ...]:
    """Perform the operations in a transaction, and return the ids of the messages."""
    sends = [one for one in operations if isinstance(one, PlannedSend)]
    acks = [one for one in operations if isinstance(one, PlannedAck)]
    outcomes = await asyncio.gather(
        *(_sent(txn, some) for some in by_producer(sends).values()),
        *(one.perform(txn) for one in acks),
        return_exceptions=True,
    )
    ids: dict[PlannedSend, MessageID] = {}
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        ids.update(outcome or {})
    return tuple([ids[one] for one in sends])


async def _sent(txn: TransactionPart, planned: Sequence[PlannedSend]) -> dict[PlannedSend, MessageID]:
    """Send the messages of one producer, which keep their order and share entries."""
    sent = await planned[0].sends.send_planned([one.message for one in planned], txn)
    return dict(zip(planned, sent, strict=True))
