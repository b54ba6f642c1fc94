"""Coordinators that break a rule of IJointCoordinator on purpose."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from txnframework.errors import InvalidTransactionState, OutcomeUnknown, TransactionConflict
from txnframework.interfaces import IDatabaseTransaction
from txnframework.model import Action, Begin, End, State, Transaction
from txnframework_metadata.coordinator.coordinator import MetadataCoordinator
from txnframework_metadata.records.headers import final_put, read_header, transaction_of


class CommitsBesideTheRows(MetadataCoordinator):
    """Puts the header by the store's own connection, and then commits the rows."""

    async def end_with(self, request: End, transaction: IDatabaseTransaction) -> Transaction:
        ended = await _ended_beside(self, request)
        await transaction.commit()
        return ended


class CommitsWithoutTheRows(MetadataCoordinator):
    """Commits for any caller what only the database transaction may commit."""

    async def end(self, request: End) -> Transaction:
        try:
            return await super().end(request)
        except TransactionConflict:
            return await _ended_beside(self, request)


class TakesLostRepliesForRollbacks(MetadataCoordinator):
    """Reports a transaction as aborted when the reply to its COMMIT is lost."""

    async def end_with(self, request: End, transaction: IDatabaseTransaction) -> Transaction:
        return await super().end_with(request, _Answering(transaction, request))


class KnowsTheUnknown(MetadataCoordinator):
    """Reports a transaction with an unknown outcome as aborted."""

    async def end_with(self, request: End, transaction: IDatabaseTransaction) -> Transaction:
        try:
            return await super().end_with(request, transaction)
        except OutcomeUnknown:
            raise InvalidTransactionState(request.txn_id, State.ABORTED, "no reply came") from None


class HidesTheDriver(MetadataCoordinator):
    """Raises an error of its own instead of the driver's."""

    async def end_with(self, request: End, transaction: IDatabaseTransaction) -> Transaction:
        try:
            return await super().end_with(request, transaction)
        except Exception as error:
            raise OutcomeUnknown(str(error)) from error


class CommitsRowsForAnybody(MetadataCoordinator):
    """Does not check the principal before it commits with rows."""

    async def end_with(self, request: End, transaction: IDatabaseTransaction) -> Transaction:
        return await super().end_with(msgspec.structs.replace(request, operator=True), transaction)


class ForgetsTheRows(MetadataCoordinator):
    """Ignores that a transaction is to commit with rows."""

    async def begin(self, request: Begin) -> Transaction:
        return await super().begin(msgspec.structs.replace(request, co_commit=False))


class JoinsAnything(MetadataCoordinator):
    """Joins any object that it is given."""

    async def join(self, connection: object) -> IDatabaseTransaction:
        return cast(IDatabaseTransaction, connection)


class _Answering:
    """A joined transaction that replaces a lost reply."""

    def __init__(self, joined: IDatabaseTransaction, request: End) -> None:
        self._joined = joined
        self._request = request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._joined, name)

    async def commit(self) -> None:
        try:
            await self._joined.commit()
        except OutcomeUnknown:
            raise InvalidTransactionState(self._request.txn_id, State.ABORTED, "no reply came") from None


async def _ended_beside(coordinator: MetadataCoordinator, request: End) -> Transaction:
    assert request.action is Action.COMMIT
    header = await read_header(coordinator._store, request.txn_id)
    assert header is not None
    document, put = final_put(header, request, coordinator._environment.now_ms())
    await coordinator._store.put(put)
    return transaction_of(request.txn_id, document)


CO_COMMIT_CASES: list[tuple[type[MetadataCoordinator], str]] = [
    (CommitsBesideTheRows, "test_commit_with_rows"),
    (CommitsWithoutTheRows, "test_no_other_commit"),
    (TakesLostRepliesForRollbacks, "test_lost_reply_to_the_commit_of_rows"),
    (KnowsTheUnknown, "test_lost_reply_and_no_store"),
    (HidesTheDriver, "test_refused_commit_of_rows"),
    (CommitsRowsForAnybody, "test_who_may_not_commit_with_rows"),
    (ForgetsTheRows, "test_coordinators_that_cannot_commit_with_rows"),
    (JoinsAnything, "test_coordinators_that_cannot_commit_with_rows"),
]
