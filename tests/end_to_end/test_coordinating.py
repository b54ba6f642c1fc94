"""Behaviours 24, 32 to 44: outcomes, timeouts, restarts, and several processes in one transaction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from txnframework import State, TxnID
from txnframework.errors import (
    InvalidInput,
    InvalidTransactionState,
    NotTransactionOwner,
    TransactionHasFailedOperations,
    TransactionNotFound,
)
from txnframework.runtime.tasks import start_task
from txnframework.testing.clock import VirtualEnvironment

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.families

SOON_MS = 60_000


@pytest.mark.metadata_family("it looks at what the family keeps")
async def test_ending_twice(stores: Stores) -> None:
    """The same action succeeds again, the opposite one raises an error with the actual outcome.

    Unknown ids are not found.
    """
    async with stores.open() as client:
        with pytest.raises(TransactionNotFound):
            await client.outcome(TxnID(0, 2**60))
        for end, other, outcome in (("commit", "abort", State.COMMITTED), ("abort", "commit", State.ABORTED)):
            txn = client.transaction()
            await txn.begin()
            assert await client.outcome(txn.id) is State.OPEN
            await getattr(txn, end)()
            await getattr(client, end)(txn.id)
            with pytest.raises(InvalidTransactionState) as refused:
                await getattr(client, other)(txn.id)
            assert refused.value.actual is outcome
            assert await client.outcome(txn.id) is outcome


async def test_which_coordinator_serves_a_family_is_found_out_once(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator of a family is looked up once, because searching the installed plugins is slow."""

    def ask_again(name: str) -> object:
        raise AssertionError(f"the installed plugins were looked through for coordinator {name} again")

    async with stores.open() as client:
        begun = [client.transaction() for _ in range(2)]
        for txn in begun:
            await txn.begin()
        assert await client.outcome(begun[0].id) is State.OPEN
        monkeypatch.setattr(stores.registry, "coordinator", ask_again)
        await client.commit(begun[0].id)
        await client.abort(begun[1].id)
        assert await client.outcome(begun[0].id) is State.COMMITTED


@pytest.mark.parametrize("outlives_client", [False, True])
async def test_a_client_that_did_nothing_sweeps(stores: Stores, outlives_client: bool) -> None:
    """A process that only opened a client aborts the transaction of a dead process, so that a third one receives."""
    clock = stores.environment = VirtualEnvironment() if stores.url.startswith("memory:") else None
    limits = {"timeout_ms": 2_000, "max_clock_skew_ms": 0}
    if clock is None and not stores.url.startswith("notebook:"):  # which takes no options
        stores.options = {"session_ttl_ms": 2_000}
    async with stores.open() as client:
        await client.create_topic("orders")
    async with stores.open(transactions={"sweep": False, **limits}) as waiting:
        async with stores.open(transactions={"sweep": False, **limits}) as dead:
            txn = dead.transaction(outlives_client=outlives_client)
            await txn.begin()
            producer = await dead.producer("orders")
            await producer.send(b"lost", txn=txn)
            await producer.send(b"behind it")
        async with stores.open(transactions=limits):
            consumer = await waiting.consumer("orders", "billing", start="earliest")
            receiving = asyncio.ensure_future(consumer.receive())
            if clock is not None:
                await clock.advance(20_000)
                assert receiving.done()
            async with asyncio.timeout(60):
                assert (await receiving).value == b"behind it"
            await consumer.close()


async def test_two_ends_racing_see_one_outcome(stores: Stores) -> None:
    """Behaviour 35: a commit in one process and an abort in another; every process sees the same outcome."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        expected = []
        for number in range(10):
            txn = client.transaction()
            await txn.begin()
            await producer.send(b"%d" % number, txn=txn)
            results = await asyncio.gather(txn.commit(), elsewhere.abort(txn.id), return_exceptions=True)
            assert sum(isinstance(result, InvalidTransactionState) for result in results) == 1
            outcomes = {await client.outcome(txn.id), await elsewhere.outcome(txn.id)}
            assert len(outcomes) == 1
            if outcomes == {State.COMMITTED}:
                expected.append(b"%d" % number)
        assert await stores.read(client, "orders") == expected
        assert await stores.read(elsewhere, "orders") == expected


async def test_only_its_principal_ends_a_transaction(stores: Stores) -> None:
    """Behaviour 39: another principal is refused and changes nothing."""
    async with stores.open() as client:
        txn = client.transaction(principal="alice")
        await txn.begin()
        with pytest.raises(NotTransactionOwner):
            await client.abort(txn.id, principal="mallory")
        assert await client.outcome(txn.id) is State.OPEN
        await txn.commit()
        assert txn.state is State.COMMITTED


async def test_only_its_principal_adds_to_a_transaction(stores: Stores) -> None:
    """Behaviour 39: sends and acknowledgments of another principal are refused, and change nothing for the owner."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic("orders")
        producer, stranger = await client.producer("orders"), await elsewhere.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await producer.send(b"plain")
        message = await consumer.receive(timeout_ms=SOON_MS)
        async with client.transaction(principal="alice") as txn:
            joined = elsewhere.join(txn.id, principal="mallory")
            with pytest.raises(NotTransactionOwner):
                await stranger.send(b"stolen", txn=joined)
            here = client.join(txn.id)
            for ack in (consumer.ack, consumer.ack_cumulative):
                with pytest.raises(NotTransactionOwner):
                    await ack(message, txn=here)
            owned = elsewhere.join(txn.id, principal="alice")
            async with owned:
                await stranger.send(b"joined", txn=owned)
            await producer.send(b"own", txn=txn)
            await consumer.ack(message, txn=txn)
            await txn.commit([owned.branch])
        assert sorted(await stores.read(client, "orders")) == [b"joined", b"own", b"plain"]
        assert sorted(await stores.receive(consumer, 2)) == [b"joined", b"own"]


async def test_an_operator_ends_whosever_transaction_it_is(stores: Stores) -> None:
    """Behaviour 40: an operator ends any transaction by its id, without naming a principal."""
    async with stores.open() as client:
        txn = client.transaction(principal="alice")
        await txn.begin()
        await client.abort(txn.id, operator=True)
        with pytest.raises(InvalidTransactionState):
            await txn.commit()


async def test_a_timeout_gives_acked_messages_back(memory: Stores) -> None:
    """Behaviour 24: messages return at the deadline with the same ids.

    A late commit raises an error with the outcome.
    """
    clock = VirtualEnvironment()
    memory.environment = clock
    async with memory.open(transactions={"max_clock_skew_ms": 0}) as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await producer.send(b"one")
        message = await consumer.receive(timeout_ms=60_000)
        short, long = client.transaction(timeout_ms=5_000), client.transaction(timeout_ms=3_600_000)
        await short.begin()
        await long.begin()
        await consumer.ack(message, txn=short)
        await producer.send(b"never", txn=short)
        await clock.advance(4_900)
        assert await client.outcome(short.id) is State.OPEN
        await clock.advance(200)
        assert await client.outcome(short.id) is State.ABORTED
        again = await consumer.receive(timeout_ms=60_000)
        assert (again.id, again.redelivery_count) == (message.id, 1)
        with pytest.raises(InvalidTransactionState) as late:
            await short.commit()
        assert late.value.actual is State.ABORTED
        assert await client.outcome(long.id) is State.OPEN
        await long.abort()
        await consumer.close()


@pytest.mark.metadata_family("its topics have several segments")
async def test_what_is_readable_survives_restarts(stores: Stores) -> None:
    """Behaviour 43: plain, committed and aborted messages over several restarts.

    Reads are the same before and after each.
    """
    expected: list[bytes] = []
    async with stores.open() as client:
        await client.create_topic("orders", segments=2)
    for turn in range(4):
        async with stores.open() as client:
            assert sorted(await stores.read(client, "orders")) == sorted(expected)
            producer = await client.producer("orders")
            for number in range(4):
                plain = b"plain %d %d" % (turn, number)
                await producer.send(plain)
                txn = client.transaction()
                await txn.begin()
                value = b"txn %d %d" % (turn, number)
                await producer.send(value, txn=txn)
                await (txn.commit() if number % 2 else txn.abort())
                expected += [plain, value] if number % 2 else [plain]
            assert sorted(await stores.read(client, "orders")) == sorted(expected)


async def test_open_transactions_survive_a_restart(stores: Stores) -> None:
    """Behaviour 44: sends and acks from before the restart follow the decision after it."""
    async with stores.open() as client:
        await client.create_topic("orders")
        await client.create_topic("invoices")
        producer = await client.producer("orders")
        invoices = await client.producer("invoices")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await producer.send_many([b"1", b"2"])
        one, two = [await consumer.receive(timeout_ms=60_000) for _ in range(2)]
        kept, dropped = (client.transaction(outlives_client=True) for _ in range(2))
        for txn, message in ((kept, one), (dropped, two)):
            await txn.begin()
            await consumer.ack(message, txn=txn)
            await invoices.send(b"for " + message.value, txn=txn)
    async with stores.open() as client:
        consumer = await client.consumer("orders", "billing")
        assert await stores.read(client, "invoices") == []
        await client.abort(dropped.id)
        again = await consumer.receive(timeout_ms=60_000)
        assert (again.id, again.value) == (two.id, b"2")
        await client.commit(kept.id)
        assert await stores.read(client, "invoices") == [b"for 1"]
        await consumer.close()
        consumer = await client.consumer("orders", "billing")
        assert await stores.receive(consumer, 1) == [b"2"]
        await consumer.close()


async def test_what_a_lost_client_left_open_is_aborted(stores: Stores) -> None:
    """A transaction is aborted as soon as its client's session has ended, long before the timeout.

    Closing also ends it.
    """
    async with stores.open() as client:
        await client.create_topic("orders")
        async with stores.open() as lost:
            producer = await lost.producer("orders")
            txn = lost.transaction(timeout_ms=3_600_000)
            await txn.begin()
            await producer.send(b"never", txn=txn)
            waiting = await client.reader("orders", follow=True)
            await (await client.producer("orders")).send(b"behind")
            mine = client.transaction()
            await mine.begin()
            await client.host.sweeps.sweep()
            assert await client.outcome(txn.id) is State.OPEN
        async for message in waiting:
            assert message.value == b"behind"
            break
        assert await client.outcome(txn.id) is State.ABORTED
        await mine.commit()
        await waiting.close()


async def test_another_process_takes_part_under_a_branch(stores: Stores) -> None:
    """Branches that the commit lists take effect, others are aborted; a poisoned branch must not be listed."""
    async with stores.open() as client, stores.open(client={"message_bytes_max": 1_000}) as elsewhere:
        await client.create_topic("orders")
        await client.create_topic("invoices")
        producer = await client.producer("orders")
        await producer.send_many([b"1", b"2"])
        consumer = await elsewhere.consumer("orders", "billing", start="earliest")
        one, _ = [await consumer.receive(timeout_ms=60_000) for _ in range(2)]
        far = await elsewhere.producer("invoices")
        async with client.transaction() as txn:
            await producer.send(b"mine", txn=txn)
            async with elsewhere.join(txn.id) as good:
                await far.send(b"good", txn=good)
                await consumer.ack(one, txn=good)
            async with elsewhere.join(txn.id) as unreported:
                await far.send(b"unreported", txn=unreported)
            bad = elsewhere.join(txn.id)
            await far.send(b"bad", txn=bad)
            with pytest.raises(InvalidInput):
                await far.send(b"x" * 2_000, txn=bad)
            with pytest.raises(TransactionHasFailedOperations):
                await bad.finish()
            assert len({0, good.branch, unreported.branch, bad.branch}) == 4
            await txn.commit([good.branch])
        for one_client in (client, elsewhere):
            assert await stores.read(one_client, "invoices") == [b"good"]
            assert await stores.read(one_client, "orders") == [b"1", b"2", b"mine"]
        assert await stores.receive(consumer, 1) == [b"mine"]
        await consumer.close()
        consumer = await client.consumer("orders", "billing")
        assert await stores.receive(consumer, 2) == [b"2", b"mine"]
        await consumer.close()


async def test_a_commit_that_is_cancelled_is_decided_all_the_same(memory: Stores) -> None:
    """A cancelled commit raises CancelledError; its outcome can be queried, and repeating the commit agrees."""
    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        for steps in range(12):
            txn = client.transaction()
            await txn.begin()
            await producer.send(b"%d" % steps, txn=txn)
            committing = start_task(txn.commit())
            for _ in range(steps):
                await asyncio.sleep(0)
            committing.cancel()
            await asyncio.wait({committing})
            assert committing.cancelled() or committing.exception() is None
            outcome = await client.outcome(txn.id)
            assert outcome is (State.COMMITTED if steps else State.OPEN)
            assert (b"%d" % steps in await memory.read(client, "orders")) == bool(steps)
            await txn.commit()
            assert txn.state is State.COMMITTED


async def test_two_clients_see_each_other(stores: Stores) -> None:
    """A commit in one client wakes the other client."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic("orders")
        consumer = await elsewhere.consumer("orders", "billing")
        waiting = asyncio.ensure_future(consumer.receive(timeout_ms=60_000))
        producer = await client.producer("orders")
        async with client.transaction() as txn:
            await producer.send(b"one", txn=txn)
            await producer.send(b"two", txn=txn)
        assert (await waiting).value == b"one"
        assert await stores.receive(consumer, 1) == [b"two"]
        await consumer.close()
