"""Handlers that write rows of the application: these commit with what the handlers return and the acknowledgments."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, cast

import pytest
from intercepted_stores import STEP, Connection, Intercepted
from own_tables import MemoryTables, Shop
from zope.interface import implementer

import txnframework
from txnframework import Message, PlannedSend
from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput, VersionMismatch
from txnframework.interfaces import IObservation, IObserver
from txnframework.model import Key
from txnframework.model.observations import ObservedOperation, Outcome
from txnframework.plugin import ObserverContext, PluginRegistry, Provider, hookimpl, load_plugins
from txnframework_memory import MemoryConnection, MemorySpace

if TYPE_CHECKING:
    from conftest import Stores


PLUGINS = ("txnframework_memory", "txnframework_metadata", "txnframework_dispatchers")


class Failing(Exception):
    """A handler that fails."""


@pytest.fixture
def tables(memory: Stores) -> MemoryTables:
    """The tables of an application beside stores in memory."""
    return MemoryTables(memory)


@pytest.fixture
def calls(tables: MemoryTables) -> Connection:
    """The connection of all clients to the stores."""
    connection = Connection()
    tables.stores.registry = cast(PluginRegistry, Intercepted(tables.stores.registry, connection))
    return connection


@implementer(IObserver)
class Noting:
    """An observer that notes how each send, acknowledgment, begin and end has ended."""

    instruments = None

    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []

    def begins(self, operation: ObservedOperation) -> IObservation:
        """Note its end later."""
        observation: IObservation = _Noted(self.ended, operation.kind.value)
        return observation


@implementer(IObservation)
class _Noted:
    headers: tuple[tuple[str, bytes], ...] = ()

    def __init__(self, ended: list[tuple[str, str]], kind: str) -> None:
        self._ended = ended
        self._kind = kind

    def ends(self, outcome: Outcome) -> None:
        how = "superseded" if outcome.is_superseded else "failed" if outcome.error else "done"
        self._ended.append((self._kind, how))


class _Observing:
    """A plugin with one observer."""

    def __init__(self, observer: Noting) -> None:
        self._observer = observer

    @hookimpl
    def txnframework_observers(self) -> list[Provider[ObserverContext, IObserver]]:
        """Return it."""

        async def opened(_: ObserverContext) -> Noting:
            return self._observer

        return [Provider("noting", opened, Noting)]


class Billing:
    """A handler that inserts a row and returns an invoice for each message; it stops the run after the last one."""

    def __init__(self, shop: Shop, consumer: txnframework.Consumer, last: bytes = b"c") -> None:
        self.shop = shop
        self.consumer = consumer
        self.last = last
        self.calls_min = 0
        self.calls: list[tuple[bytes, int]] = []
        self.connections: list[MemoryConnection] = []
        self.before: Callable[[Message, MemoryConnection], Awaitable[object]] | None = None

    async def __call__(self, order: Message, connection: MemoryConnection) -> PlannedSend:
        """Bill an order."""
        self.calls.append((order.value, order.redelivery_count))
        self.connections.append(connection)
        assert connection.open is not None, "a transaction is open"
        await self.shop.tables.insert(connection, order)
        if self.before is not None:
            await self.before(order, connection)
        if order.value == self.last and len(self.calls) >= self.calls_min:
            self.consumer.stop()
        return self.shop.invoices.outgoing(order.value)

    async def run(self, **options: Any) -> None:
        """Run until the handler has stopped it."""

        async def bill(order: Message, connection: MemoryConnection) -> PlannedSend:
            return await self(order, connection)

        await self.consumer.run(bill, commit_with=self.shop.tables.connection, **options)


def story(
    tables: MemoryTables, test: Callable[[Shop, Billing], Awaitable[None]], *orders: bytes, kind: str = "exclusive"
) -> None:
    """Run a story of a handler with these orders, of which "c" is the last one."""

    async def work() -> None:
        async with Shop.open(tables, *(orders or (b"a", b"b", b"c"))) as shop, await shop.consumer(kind) as consumer:
            await test(shop, Billing(shop, consumer))

    tables.stores.run(work())


def test_each_message_with_its_row(tables: MemoryTables, calls: Connection) -> None:
    """Each message is one step, with a row, what was returned and the acknowledgment."""

    async def test(shop: Shop, billing: Billing) -> None:
        await billing.run()
        assert calls.names.count(STEP) == 3
        assert billing.calls == [(b"a", 0), (b"b", 0), (b"c", 0)]
        assert await tables.committed() == {"a", "b", "c"}
        assert await shop.sent() == [b"a", b"b", b"c"]
        assert await shop.left() == []
        assert all(one.open is None for one in billing.connections)

    story(tables, test)


def test_a_batch_with_its_rows(tables: MemoryTables) -> None:
    """The messages of a batch are one step with the rows of all."""

    async def test(shop: Shop, billing: Billing) -> None:
        async def bill(orders: tuple[Message, ...], connection: MemoryConnection) -> list[PlannedSend]:
            billing.consumer.stop()
            for order in orders:
                await tables.insert(connection, order)
            return [shop.invoices.outgoing(order.value) for order in orders]

        await billing.consumer.run_batches(bill, commit_with=tables.connection)
        assert await shop.counts() == (3, 3, 0)

    story(tables, test)


def test_a_handler_that_fails(tables: MemoryTables) -> None:
    """Its rows are rolled back, the delivery counts, and the message is handled again."""

    async def test(shop: Shop, billing: Billing) -> None:
        async def fail_once(order: Message, _: MemoryConnection) -> None:
            if not order.redelivery_count:
                raise Failing

        billing.before = fail_once
        await billing.run()
        assert billing.calls == [(b"c", 0), (b"c", 1)]
        assert await shop.counts() == (1, 1, 0)

    story(tables, test, b"c")


def test_a_commit_that_the_database_refuses(tables: MemoryTables) -> None:
    """The error of the driver counts as a failure of the handler; nothing takes effect until it succeeds."""

    async def test(shop: Shop, billing: Billing) -> None:
        async def refuse_once(order: Message, connection: MemoryConnection) -> None:
            if not order.redelivery_count:
                await tables.of(connection).refuse_commit()

        billing.before, billing.calls_min = refuse_once, 2
        await billing.run()
        assert billing.calls == [(b"c", 0), (b"c", 1)]
        assert await shop.counts() == (1, 1, 0)

    story(tables, test, b"c")


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "dropped"])
def test_a_lost_commit(tables: MemoryTables, applied: bool) -> None:
    """The handler is called again only if nothing took effect, and no delivery counts."""

    async def test(shop: Shop, billing: Billing) -> None:
        async def lose_once(_: Message, connection: MemoryConnection) -> None:
            if len(billing.calls) == 1:
                await tables.of(connection).lose_commit(applied)

        billing.before = lose_once
        await billing.run()
        first = [(b"a", 0)] * (1 if applied else 2)
        assert billing.calls == [*first, (b"b", 0), (b"c", 0)]
        assert await shop.counts() == (3, 3, 0)

    story(tables, test)


async def _split(shop: Shop, elsewhere: txnframework.Client) -> None:
    await elsewhere.split("invoices", 0)


async def _merge(shop: Shop, elsewhere: txnframework.Client) -> None:
    await elsewhere.split("invoices", 0)
    await elsewhere.merge("invoices", 1, 2)


async def _split_input(shop: Shop, elsewhere: txnframework.Client) -> None:
    await elsewhere.split("orders", 0)


@pytest.mark.parametrize("meanwhile", [_split, _merge, _split_input])
def test_a_step_that_is_refused(
    tables: MemoryTables, calls: Connection, meanwhile: Callable[[Shop, txnframework.Client], Awaitable[None]]
) -> None:
    """Its rows are rolled back; the handler is called again, no delivery counts, and everything ends well."""

    async def test(shop: Shop, billing: Billing) -> None:
        async with tables.stores.open() as elsewhere:
            calls.once_before_the_step(lambda: meanwhile(shop, elsewhere))
            await billing.run()
            calls.restore()
        assert {count for _, count in billing.calls} == {0}
        assert await shop.counts() == (3, 3, 0)
        assert sorted(await shop.sent()) == [b"a", b"b", b"c"]

    story(tables, test)


async def test_reports_of_a_refused_step(tables: MemoryTables, calls: Connection) -> None:
    """A refused step is reported as superseded; what follows is reported once, and nothing has failed."""
    observer = Noting()
    plugins = [importlib.import_module(f"{name}.plugin") for name in PLUGINS]
    tables.stores.registry = cast(PluginRegistry, Intercepted(load_plugins([*plugins, _Observing(observer)]), calls))

    async with (
        Shop.open(tables, b"c", observers={"noting": {}}) as shop,
        MemoryTables(tables.stores).stores.open() as elsewhere,
        await shop.consumer() as consumer,
    ):
        billing = Billing(shop, consumer)
        billing.calls_min = 2
        del observer.ended[:]
        calls.once_before_the_step(lambda: elsewhere.split("invoices", 0))
        await billing.run()
        calls.restore()
        assert await shop.counts() == (1, 1, 0)
    for kind in ("send", "ack", "begin", "end"):
        assert sorted(how for one, how in observer.ended if one == kind) == ["done", "superseded"], kind


def test_a_seek_meanwhile(tables: MemoryTables, calls: Connection) -> None:
    """After a seek the acknowledgment is out of date, so the rows do not count, and the message comes again."""

    async def test(shop: Shop, billing: Billing) -> None:
        async with tables.stores.open() as elsewhere:
            billing.calls_min = 2
            calls.once_before_the_step(lambda: elsewhere.seek("orders", "billing", "earliest"))
            await billing.run()
            calls.restore()
        assert [value for value, _ in billing.calls if value == b"c"] == [b"c", b"c"]
        assert await shop.counts() == (1, 1, 0)

    story(tables, test, b"c")


def test_the_handler_ends_its_transaction(tables: MemoryTables) -> None:
    """The run ends, what the handler committed itself counts, and nothing is sent or acknowledged after it."""

    async def test(shop: Shop, billing: Billing) -> None:
        async def commit(_: Message, connection: MemoryConnection) -> None:
            await connection.commit()

        billing.before = commit
        with pytest.raises(InvalidInput, match="cannot be committed: the application has ended the transaction"):
            await billing.consumer.run(billing, commit_with=shop.tables.connection)
        assert await shop.counts() == (1, 0, 1)

    story(tables, test, b"c")


def test_a_run_that_is_cancelled(tables: MemoryTables) -> None:
    """The rows of the message at work are rolled back, and the connection is free when the run has ended."""

    async def test(shop: Shop, billing: Billing) -> None:
        reached = asyncio.Event()

        async def hang(order: Message, _: MemoryConnection) -> None:
            if order.value == b"b":
                reached.set()
                await asyncio.Event().wait()

        billing.before = hang
        running = asyncio.ensure_future(billing.run())
        await reached.wait()
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        assert all(one.open is None for one in billing.connections)
        assert await shop.counts() == (1, 1, 2)

    story(tables, test)


async def test_two_processes(tables: MemoryTables) -> None:
    """Several processes share the messages; each has one row and one invoice."""
    orders = [b"%d" % number for number in range(20)]

    async with Shop.open(tables, *orders) as shop, tables.stores.open() as elsewhere:
        async with (
            await shop.consumer("shared") as first,
            await elsewhere.consumer("orders", "billing", type="shared") as second,
            await elsewhere.producer("invoices") as invoices,
        ):
            handled = 0

            def handler(producer: txnframework.Producer) -> Callable[..., Awaitable[PlannedSend]]:
                async def bill(order: Message, connection: MemoryConnection) -> PlannedSend:
                    nonlocal handled
                    await tables.insert(connection, order)
                    handled += 1
                    if handled >= len(orders):
                        first.stop()
                        second.stop()
                    return producer.outgoing(order.value)

                return bill

            await asyncio.gather(
                first.run(handler(shop.invoices), commit_with=tables.connection),
                second.run(handler(invoices), commit_with=tables.connection),
            )
        left = await shop.left()
        assert {*left} | {one.encode() for one in await tables.committed()} == {*orders}
        assert sorted(await shop.sent()) == sorted(one.encode() for one in await tables.committed())


async def _no_second(order: Message) -> None:
    """Take no connection."""


async def _bill(order: Message, connection: Any) -> None:
    """Take a connection."""


def test_misuse(tables: MemoryTables) -> None:
    """Each wrong call is refused by one sentence, before a message is handled."""
    cases: tuple[tuple[Any, dict[str, Any], str], ...] = (
        (_no_second, {}, "_no_second has no second argument, which would get the connection of commit_with"),
        (_bill, {"transaction": lambda: None}, "commit_with and transaction exclude each other; leave one of them out"),
        (_bill, {"transactional": False}, "transactional=False and a transaction exclude each other"),
    )

    async def test(shop: Shop, billing: Billing) -> None:
        for handler, options, sentence in cases:
            with pytest.raises(InvalidInput, match=sentence):
                await billing.consumer.run(handler, commit_with=tables.connection, **options)
        assert await shop.counts() == (0, 0, 1)

    story(tables, test, b"c")


def test_a_connection_to_another_database(tables: MemoryTables) -> None:
    """It ends the run with a sentence that says so, and no delivery is lost to it."""

    class Elsewhere:
        async def __aenter__(self) -> MemoryConnection:
            return MemorySpace(SystemEnvironment()).database.connect()

        async def __aexit__(self, *_: object) -> None:
            pass

    async def test(shop: Shop, billing: Billing) -> None:
        given: Callable[[], AbstractAsyncContextManager[Any]] = Elsewhere
        with pytest.raises(InvalidInput, match=r"cannot begin: .*another space"):
            await billing.consumer.run(_bill, commit_with=given)
        assert await shop.counts() == (0, 0, 1)

    story(tables, test, b"c")


def test_no_connection_for_a_while(tables: MemoryTables) -> None:
    """A pool that fails is asked again, and no delivery counts."""
    asked = 0

    def acquire() -> AbstractAsyncContextManager[Any]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise OSError("the database is away")
        return tables.connection()

    async def test(shop: Shop, billing: Billing) -> None:
        async def bill(order: Message, connection: MemoryConnection) -> PlannedSend:
            return await billing(order, connection)

        await billing.consumer.run(bill, commit_with=acquire)
        assert billing.calls == [(b"c", 0)]
        assert await shop.counts() == (1, 1, 0)

    story(tables, test, b"c")


@pytest.mark.parametrize("is_refused", [False, True])
def test_handlers_that_return_together(tables: MemoryTables, calls: Connection, is_refused: bool) -> None:
    """Without rows they share a transaction; if its step is refused, each has one of its own, and none fails."""

    async def test(shop: Shop, billing: Billing) -> None:
        begun = 0
        all_began = asyncio.Event()

        async def bill(order: Message) -> PlannedSend:
            nonlocal begun
            begun += 1
            if begun == 3:
                billing.consumer.stop()
                all_began.set()
            await all_began.wait()
            return shop.invoices.outgoing(order.value)

        refused = 0

        async def refuse() -> None:
            nonlocal refused
            refused += 1
            raise VersionMismatch(Key("/cursor"), None)

        if is_refused:
            calls.once_before_the_step(refuse)
        await billing.consumer.run(bill, concurrency=3)
        assert (begun, refused) == (3, int(is_refused))
        async with shop.client.reader("invoices") as reader:
            transactions = {one.txn_id async for one in reader}
        assert len(transactions) == (3 if is_refused else 1)
        assert sorted(await shop.sent()) == [b"a", b"b", b"c"]
        assert await shop.left() == []

    story(tables, test, kind="shared")
