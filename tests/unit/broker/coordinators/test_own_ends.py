"""Transactions that report their ends to the process that began them."""

from __future__ import annotations

from typing import cast

import pytest

from txnframework.broker.coordinators.own_transactions import OwnTransactions
from txnframework.config import TransactionsSection
from txnframework.errors import Unavailable
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model import TxnID
from txnframework.model.transactions import State, Transaction
from txnframework.testing.clock import START_MS, VirtualEnvironment

ONE, OTHER, ABORTED = TxnID(0, 1), TxnID(0, 2), TxnID(0, 3)


@pytest.mark.parametrize("fails", [False, True])
async def test_each_listener_is_called_once(fails: bool) -> None:
    """A listener is called at the end or the deadline.

    A transaction that is not known as open here gets no listener.
    """
    clock = VirtualEnvironment()
    ended: list[TxnID] = []

    async def abort(_: TxnID) -> None:
        if fails:
            raise Unavailable("the store is away")

    own = OwnTransactions(clock, TransactionsSection(), lambda _: (), abort)
    own.deadlines.start()
    assert not own.on_end(ONE, ended.append)
    for txn_id in (ONE, OTHER):
        own.abort_in_time(Transaction(txn_id, State.OPEN, deadline_ms=START_MS + 1_000, created_ms=START_MS))
        for listener in (ended.append, ended.append, lambda txn_id: ended.append(txn_id)):
            assert own.on_end(txn_id, listener)
    own.settle_soon(ONE)
    assert ended == [ONE, ONE]
    own.settle_soon(ONE)
    await clock.advance(1_000 + TransactionsSection().max_clock_skew_ms)
    assert ended == [ONE, ONE, OTHER, OTHER]
    own.settle_soon(OTHER)
    assert not own.on_end(OTHER, ended.append)
    assert ended == [ONE, ONE, OTHER, OTHER]
    await own.deadlines.stop()
    await own.finish(0)


async def test_the_end_of_a_committed_transaction_is_reported_once_it_is_settled() -> None:
    """The report comes even if settling failed; an abort is reported at once, because its messages are redelivered."""
    clock = VirtualEnvironment()
    ended: list[TxnID] = []
    settled: list[TxnID] = []

    class Settles:
        async def settle(self, txn_id: TxnID) -> None:
            assert txn_id not in ended or txn_id == ABORTED
            settled.append(txn_id)
            if txn_id == OTHER:
                raise Unavailable("the store is away")

    async def abort(_: TxnID) -> None: ...

    coordinators = (cast(ITransactionCoordinator, Settles()),)
    own = OwnTransactions(clock, TransactionsSection(), lambda _: coordinators, abort)
    for txn_id in (ONE, OTHER, ABORTED):
        own.abort_in_time(Transaction(txn_id, State.OPEN, deadline_ms=START_MS + 1_000, created_ms=START_MS))
        assert own.on_end(txn_id, ended.append)
    own.settle_soon(ABORTED)
    own.settle_committed(ONE)
    own.settle_committed(OTHER)
    assert ended == [ABORTED]
    await clock.advance(TransactionsSection().settling_delay_ms)
    assert settled == [ABORTED, ONE, OTHER]
    assert ended == [ABORTED, ONE, OTHER]
    await own.finish(0)


async def test_one_that_cannot_be_settled_now_is_reported_at_once() -> None:
    """The listeners then read the state themselves."""

    async def abort(_: TxnID) -> None: ...

    own = OwnTransactions(VirtualEnvironment(), TransactionsSection(), lambda _: (), abort)
    ended: list[TxnID] = []
    own.abort_in_time(Transaction(ONE, State.OPEN, deadline_ms=START_MS + 1_000, created_ms=START_MS))
    assert own.on_end(ONE, ended.append)
    await own.finish(0)
    own.settle_committed(ONE)
    assert ended == [ONE]


async def test_a_listener_is_called_after_the_abort_that_works() -> None:
    """While a failed abort is retried, the transaction is open, and reports no end."""
    clock = VirtualEnvironment()
    ended: list[TxnID] = []
    attempts = 0

    async def abort(_: TxnID) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise Unavailable("the store is away")

    own = OwnTransactions(clock, TransactionsSection(), lambda _: (), abort)
    own.deadlines.start()
    own.abort_in_time(Transaction(ONE, State.OPEN, deadline_ms=START_MS + 60_000, created_ms=START_MS))
    assert own.on_end(ONE, ended.append)
    own.abort_soon(ONE)
    while attempts < 3:
        assert not ended
        await clock.advance(10)
    assert ended == [ONE]
    await clock.advance(100_000)
    assert (attempts, ended) == (3, [ONE])
    await own.deadlines.stop()
    await own.finish(0)
