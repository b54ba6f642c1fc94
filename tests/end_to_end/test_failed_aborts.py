"""Transactions that could not be ended because the stores were away: their process ends them soon after the outage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from txnframework import Client, Message, State, Transaction
from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model import TxnID
from txnframework.plugin import PluginRegistry
from txnframework.runtime.proxy import ForwardingProxy
from txnframework.testing.clock import VirtualEnvironment
from txnframework.testing.connection import StoreConnection, intercept_calls

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.usefixtures("in_memory")]

HASTY = {"retries_max": 1, "retry_delay_ms": 1, "retry_delay_ms_max": 1}
TIMEOUT_MS = 60_000
OUTAGE_MS = 10_000
SOON_MS = 3_000
"""Longer than the longest delay between two retries, and much shorter than the timeout that is left."""


class Connected(ForwardingProxy):
    """Plugins whose stores are behind a connection that the test cuts."""

    def __init__(self, behind: PluginRegistry, connection: StoreConnection) -> None:
        super().__init__(behind)
        self._connection = connection

    async def open(self, provider: Any, context: Any) -> Any:
        """Open an object; if it is a store, return it behind the connection."""
        opened = await self._behind.open(provider, context)
        is_store = IMetadataStore.providedBy(opened) or ILedgerStore.providedBy(opened)
        return intercept_calls(opened, self._connection) if is_store else opened


class Outage:
    """A client whose stores a test makes unavailable; time is virtual."""

    def __init__(self, stores: Stores) -> None:
        self.clock = VirtualEnvironment()
        self.connection = StoreConnection()
        self.stores = stores
        stores.environment = self.clock

    def open(self) -> Any:
        """Open the client whose connection is cut."""
        registry = self.stores.registry
        self.stores.registry = cast(PluginRegistry, Connected(registry, self.connection))
        try:
            return self.stores.open(client=HASTY, transactions={"timeout_ms": TIMEOUT_MS})
        finally:
            self.stores.registry = registry

    @contextmanager
    def away(self) -> Iterator[None]:
        self.connection.is_cut = True
        yield
        self.connection.restore()

    def cut_at_first_commit(self, monkeypatch: pytest.MonkeyPatch) -> list[TxnID]:
        """Make the stores unavailable as the first commit begins; return the transactions whose commits began."""
        began: list[TxnID] = []
        commit = Transaction.commit

        async def commit_cut(txn: Transaction, branches: Iterable[int] = ()) -> None:
            if not began:
                self.connection.is_cut = True
            began.append(txn.id)
            await commit(txn, branches)

        monkeypatch.setattr(Transaction, "commit", commit_cut)
        return began

    async def passed(self, work: Any) -> Any:
        """Return the result of work that waits for retries."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await self.clock.advance(1)
        return await task


async def prepared(client: Client) -> None:
    for topic in ("orders", "invoices"):
        await client.create_topic(topic)
    await (await client.producer("orders")).send(b"order")


async def billed(client: Client) -> tuple[Transaction, Message, Any]:
    """Return an open transaction that sent an invoice and acknowledged its order."""
    consumer = await client.consumer("orders", "billing", start="earliest")
    order = await consumer.receive()
    txn = client.transaction()
    await txn.begin()
    await (await client.producer("invoices")).send(b"invoice", txn=txn)
    await consumer.ack(order, txn=txn)
    return txn, order, consumer


def test_an_abort_is_retried_after_an_outage(stores: Stores) -> None:
    """Long before the timeout, the abort is retried: topics are readable to the end, and acknowledged messages
    return.
    """
    outage = Outage(stores)

    async def work() -> None:
        async with outage.open() as client, stores.open() as other:
            await prepared(other)
            txn, order, consumer = await billed(client)
            with outage.away():
                with pytest.raises(ZeroDivisionError) as raised:
                    await outage.passed(failing(txn))
                assert "could not be aborted yet" in raised.value.__notes__[0]
                await outage.clock.advance(OUTAGE_MS)
            await (await other.producer("invoices")).send(b"behind it")
            assert await stores.read(other, "invoices") == []
            await outage.clock.advance(SOON_MS)
            assert await other.outcome(txn.id) is State.ABORTED
            assert await stores.read(other, "invoices") == [b"behind it"]
            again = await consumer.receive(timeout_ms=0)
            assert (again.id, again.redelivery_count) == (order.id, 1)
            await consumer.close()

    async def failing(txn: Transaction) -> None:
        # The block was entered before; this is its end.
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            await txn.__aexit__(type(error), error, None)
            raise

    stores.run(work())


async def test_a_cancelled_begin_is_undone_after_an_outage(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled begin created a transaction without an owner, and aborting it failed at first."""
    outage = Outage(stores)
    begin = Transaction._begin_in_store

    async def begin_and_cut(txn: Transaction) -> object:
        begun = await begin(txn)
        outage.connection.is_cut = True
        return begun

    async with outage.open() as client, stores.open() as other:
        await prepared(other)
        await (await billed(client))[0].abort()  # whatever beginning needs is open now
        while await other.find_hanging(0):  # settling in the background also calls the store
            await outage.clock.advance(1)
        monkeypatch.setattr(Transaction, "_begin_in_store", begin_and_cut)
        held = outage.connection.hold(1)
        beginning = asyncio.ensure_future(client.transaction().begin())
        await held.reached.wait()
        beginning.cancel()
        outage.connection.go_on()
        await outage.passed(asyncio.gather(beginning, return_exceptions=True))
        await outage.clock.advance(OUTAGE_MS)
        assert outage.connection.is_cut
        assert len(await other.find_hanging(0)) == 1
        outage.connection.restore()
        await outage.clock.advance(SOON_MS)
        assert not await other.find_hanging(0)


async def test_a_handler_loop_aborts_what_it_could_not_commit(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is handled again soon after the outage, in another transaction, and its result is there once."""
    outage = Outage(stores)
    commits = outage.cut_at_first_commit(monkeypatch)

    async with outage.open() as client, stores.open() as other:
        await prepared(other)
        invoices = await client.producer("invoices")

        async def bill(order: Message, txn: Transaction) -> None:
            await invoices.send(b"invoice for " + order.value, txn=txn)

        async with await client.consumer("orders", "billing", start="earliest") as consumer:
            running = asyncio.ensure_future(consumer.run(bill))
            await outage.clock.advance(OUTAGE_MS)
            assert len(commits) == 1
            outage.connection.restore()
            await outage.clock.advance(2 * SOON_MS)
            assert await stores.read(other, "invoices") == [b"invoice for order"]
            assert await other.outcome(commits[0]) is State.ABORTED
            consumer.stop()
            await running


async def test_transact_aborts_what_it_could_not_commit(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller has no transaction, and could not repeat the commit."""
    outage = Outage(stores)
    commits = outage.cut_at_first_commit(monkeypatch)

    async def not_in_one_step(*_: object) -> None: ...

    monkeypatch.setattr("txnframework.client._transact.transact_jointly", not_in_one_step)

    async with outage.open() as client, stores.open() as other:
        await prepared(other)
        invoices = await client.producer("invoices")
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await outage.passed(client.transact(invoices.outgoing(b"invoice")))
        outage.connection.restore()
        await outage.clock.advance(SOON_MS)
        assert await other.outcome(commits[0]) is State.ABORTED


async def test_a_commit_that_failed_can_be_repeated(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that has the transaction decides, so nothing aborts it before its timeout."""
    outage = Outage(stores)
    commits = outage.cut_at_first_commit(monkeypatch)

    async with outage.open() as client, stores.open() as other:
        await prepared(other)
        txn, _, consumer = await billed(client)
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await outage.passed(txn.commit())
        outage.connection.restore()
        await outage.clock.advance(OUTAGE_MS)
        assert await other.outcome(commits[0]) is State.OPEN
        await txn.commit()
        assert await stores.read(other, "invoices") == [b"invoice"]
        await consumer.close()


async def test_closing_ends_the_retries(stores: Stores) -> None:
    """A client that closes during the outage calls them no more, and others abort the transaction of its session."""
    outage = Outage(stores)

    async with stores.open() as other, AsyncExitStack() as opened:
        await prepared(other)
        client = await opened.enter_async_context(outage.open())
        txn, _, _ = await billed(client)
        outage.connection.is_cut = True
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await outage.passed(txn.abort())
        await outage.clock.advance(OUTAGE_MS)
        await outage.passed(opened.aclose())
        calls = outage.connection.asked
        outage.connection.restore()
        await outage.clock.advance(SOON_MS)
        assert await other.outcome(txn.id) is State.ABORTED
        assert outage.connection.asked == calls
