"""Several processes on one subscription: who waits, who takes over, and what one that lost its lease can still do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client
from txnframework.errors import (
    ConsumerBusy,
    LeaseLost,
    OutcomeUnknown,
    SubscriptionOwnedElsewhere,
    TransactionConflict,
)
from txnframework.model import Expect, Key, Put
from txnframework.testing.clock import VirtualEnvironment, run_ready

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.families

HOUR_MS = 3_600_000


async def prepared(client: Client, messages: int = 3) -> None:
    await client.create_topic("orders")
    producer = await client.producer("orders")
    for number in range(messages):
        await producer.send(b"%d" % number)


async def end_session_of(client: Client) -> None:
    """Let a client's leases end while it goes on, as a long pause of its process does; it is cut off meanwhile."""
    store: Any = client.host.metadata
    store.cut()
    store._server.end_session(store.session)
    await run_ready()


def test_waiting_for_the_one_consumer_here(stores: Stores) -> None:
    """It raises unless it stands by; then it gets what the one before did not acknowledge."""

    async def work() -> None:
        async with stores.open() as client:
            await prepared(client)
            first = await client.consumer("orders", "billing", start="earliest")
            with pytest.raises(ConsumerBusy):
                await client.consumer("orders", "billing")
            second = await client.consumer("orders", "billing", stand_by=True)
            received = [await first.receive(timeout_ms=10_000) for _ in range(2)]
            await first.ack(received[0])
            await first.close()
            assert await stores.receive(second, 2) == [b"1", b"2"]
            await second.close()

    stores.run(work())


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
@pytest.mark.metadata_family("its topics have several segments")
def test_waiting_for_another_process(stores: Stores, kind: str) -> None:
    """Whatever the type: its consumer waits until the other process has left all segments, and takes them over."""

    async def work() -> None:
        async with stores.open() as client, stores.open() as elsewhere:
            await client.create_topic("orders", segments=2)
            producer = await client.producer("orders")
            first = await client.consumer("orders", "billing", type=kind, start="earliest")
            with pytest.raises(SubscriptionOwnedElsewhere):
                await elsewhere.consumer("orders", "billing", type=kind, stand_by=False)
            second = await elsewhere.consumer("orders", "billing", type=kind, stand_by=True)
            for number in range(8):
                await producer.send(b"%d" % number, key=b"key %d" % number)
            received = [await first.receive(timeout_ms=10_000) for _ in range(8)]
            await first.ack(*received[:5])
            await first.close()
            left = sorted(await stores.receive(second, 3))
            assert left == sorted(message.value for message in received[5:])
            await second.close()

    stores.run(work())


def test_failover_stands_by_unless_told_otherwise(memory: Stores) -> None:
    """In another process as in its own."""

    async def work() -> None:
        async with memory.open() as client, memory.open() as elsewhere:
            await prepared(client)
            first = await client.consumer("orders", "billing", type="failover", start="earliest")
            second = await elsewhere.consumer("orders", "billing", type="failover")
            await first.close()
            assert await memory.receive(second, 3) == [b"0", b"1", b"2"]
            await second.close()

    memory.run(work())


def test_taking_over_from_a_process_that_crashed(memory: Stores) -> None:
    """What it acknowledged in a transaction that nobody ends any more comes back at once, without a timeout."""

    async def work() -> None:
        memory.environment = VirtualEnvironment()
        async with memory.open() as client, memory.open() as elsewhere:
            await prepared(client)
            first = await client.consumer("orders", "billing", start="earliest")
            second = await elsewhere.consumer("orders", "billing", stand_by=True)
            received = [await first.receive() for _ in range(3)]
            txn = client.transaction()
            await txn.begin()
            await first.ack(received[0], txn=txn)
            await first.ack(received[1])
            client.host.metadata.crash()  # type: ignore[attr-defined]
            assert sorted([(await second.receive()).value for _ in range(2)]) == [b"0", b"2"]
            await second.close()

    memory.run(work())


@pytest.mark.parametrize("stand_by", [False, True])
def test_a_paused_owner_can_only_fail(memory: Stores, stand_by: bool) -> None:
    """Somebody else took over and acknowledged: it learns that by its lease, and its acknowledgments are refused."""

    async def work() -> None:
        memory.environment = VirtualEnvironment()
        async with memory.open() as client, memory.open() as elsewhere:
            await prepared(client)
            first = await client.consumer("orders", "billing", start="earliest", stand_by=stand_by)
            second = await elsewhere.consumer("orders", "billing", stand_by=True)
            received = [await first.receive() for _ in range(2)]
            await end_session_of(client)
            taken = [await second.receive() for _ in range(3)]
            assert [message.id for message in taken[:2]] == [message.id for message in received]
            await second.ack(taken[0])
            client.host.metadata.restore()  # type: ignore[attr-defined]
            if not stand_by:
                segment = "segment://public/default/orders/0000-ffff-0"
                told = f"the lease 'dispatch billing of {segment}' was lost; open the consumer again, or one that"
                with pytest.raises(LeaseLost, match=told):
                    await first.receive()
                await first.close()
                return
            async with client.transaction() as txn:
                with pytest.raises(TransactionConflict):
                    await first.ack(received[0], txn=txn)
                await txn.abort()
            await first.ack(received[1])  # anybody may: it counts, whoever dispatches
            await memory.environment.advance(1_000)
            await second.redeliver_unacknowledged()
            assert (await second.receive()).id == taken[2].id
            await second.close()
            assert (await first.receive()).id == taken[2].id
            await first.close()

    memory.run(work())


@pytest.mark.parametrize("stand_by", [False, True])
def test_acknowledging_as_the_lease_is_lost(memory: Stores, stand_by: bool) -> None:
    """In the moment in which its lease is lost what a consumer has seen is acknowledged as by any other process."""

    async def work() -> None:
        async with memory.open() as client:
            await prepared(client)
            consumer = await client.consumer("orders", "billing", start="earliest", stand_by=stand_by)
            received = [await consumer.receive() for _ in range(3)]
            (feed,) = consumer._membership.feeds.values()
            assert feed.attached is not None
            feed.attached.dispatch._tell_end(LeaseLost("billing"))
            await consumer.ack(received[0])
            async with client.transaction() as txn:
                await consumer.ack(received[1], txn=txn)
            if not stand_by:
                with pytest.raises(LeaseLost):
                    await consumer.receive()
            await consumer.close()
            again = await client.consumer("orders", "billing")
            assert await memory.receive(again, 1) == [b"2"]
            await again.close()

    memory.run(work())


def test_acknowledging_while_the_lease_is_lost(memory: Stores) -> None:
    """What comes again from the dispatch that follows is not handed out, if its acknowledgment was stored meanwhile."""

    async def work() -> None:
        async with memory.open() as client:
            await prepared(client, 1)
            consumer = await client.consumer("orders", "billing", start="earliest", stand_by=True)
            received = await consumer.receive()
            (feed,) = consumer._membership.feeds.values()
            assert feed.attached is not None
            first: Any = feed.attached.dispatch
            store, going_on = first._acknowledging.single, asyncio.Event()

            async def held_up(*given: Any) -> None:
                await going_on.wait()
                await store(*given)

            first._acknowledging.single = held_up
            async with client.transaction() as txn:
                acknowledging = asyncio.ensure_future(consumer.ack(received, txn=txn))
                await run_ready()
                first._tell_end(LeaseLost("billing"))
                await run_ready()
                (feed,) = consumer._membership.feeds.values()
                assert feed.attached is not None
                assert feed.attached.dispatch is not first
                assert consumer._inbox.positions(feed) == {received.id.position}
                second: Any = feed.attached.dispatch
                second._looking.again = lambda: None  # as if its watch were late
                going_on.set()
                await acknowledging
                assert consumer._inbox.take(10) == ()
            await consumer.close()

    memory.run(work())


def test_acknowledging_while_the_next_dispatch_begins(memory: Stores) -> None:
    """One that has read, and that the consumer is not at yet, looks again before anything of it is handed out."""

    async def work() -> None:
        async with memory.open() as client:
            await prepared(client, 1)
            consumer = await client.consumer("orders", "billing", start="earliest", stand_by=True)
            received = await consumer.receive()
            (feed,) = consumer._membership.feeds.values()
            assert feed.attached is not None
            first: Any = feed.attached.dispatch
            store, going_on, attaching = first._acknowledging.single, asyncio.Event(), asyncio.Event()

            async def held_up(*given: Any) -> None:
                await going_on.wait()
                await store(*given)

            first._acknowledging.single = held_up
            dispatches: Any = client.host.dispatches
            begin = dispatches._begin

            async def begin_late(place: Any) -> Any:
                dispatch = await begin(place)
                dispatch._looking._look = lambda: asyncio.sleep(0)  # as if its watches were late
                await attaching.wait()
                return dispatch

            dispatches._begin = begin_late
            acknowledging = asyncio.ensure_future(consumer.ack(received))
            await run_ready()
            first._tell_end(LeaseLost("billing"))
            await run_ready()
            going_on.set()
            await run_ready()
            assert consumer._membership.feeds[feed.place.segment].attached is None
            attaching.set()
            await acknowledging
            await run_ready()
            assert consumer._inbox.take(10) == ()
            await consumer.close()

    memory.run(work())


def test_what_was_done_before_somebody_joined_does_not_come_to_it(memory: Stores) -> None:
    """Acknowledged by whoever had it under the lease before, of which those who dispatch now have not heard yet."""

    async def work() -> None:
        async with memory.open() as old, memory.open(client={"receive_messages_max": 1}) as new:
            await prepared(old, 2)
            before = await old.consumer("orders", "billing", type="shared", start="earliest")
            done = [await before.receive(timeout_ms=10_000) for _ in range(2)]
            await end_session_of(old)
            first = await new.consumer("orders", "billing", type="shared")
            await run_ready()
            (feed,) = first._membership.feeds.values()
            assert feed.attached is not None
            dispatch: Any = feed.attached.dispatch
            dispatch._looking._look = lambda: asyncio.sleep(0)  # as if its watches were late
            store: Any = old.host.metadata
            store.restore()
            await before.ack(done[1])
            second = await new.consumer("orders", "billing", type="shared")
            await run_ready()
            assert second._inbox.take(9) == ()
            assert [one.value for one in first._inbox.take(9)] == [done[0].value]
            await first.close()
            await second.close()

    memory.run(work())


@pytest.mark.parametrize("stand_by", [False, True])
def test_a_segments_lease_is_lost_while_what_follows_it_is_delivered(memory: Stores, stand_by: bool) -> None:
    """What was delivered behind messages that are taken back is not handed out before those come again."""

    async def work() -> None:
        async with memory.open() as client:
            await prepared(client, 2)
            await client.split("orders", 0)
            await (await client.producer("orders")).send(b"behind")
            consumer = await client.consumer("orders", "billing", start="earliest", stand_by=stand_by)
            for _ in range(20):
                await run_ready()
            assert len(consumer._inbox._waiting) == 3
            parent = next(feed for name, feed in consumer._membership.feeds.items() if name.endswith("-0"))
            assert parent.attached is not None
            dispatch: Any = parent.attached.dispatch
            dispatch._tell_end(LeaseLost("billing"))
            assert consumer._inbox.take(10) == ()
            if stand_by:
                received = []
                while len(received) < 3:
                    received += await consumer.receive_many(messages_max=5, timeout_ms=10_000)
                    await consumer.ack(*received)
                assert [one.value for one in received] == [b"0", b"1", b"behind"]
            else:
                with pytest.raises(LeaseLost):
                    await consumer.receive(timeout_ms=10_000)
            await consumer.close()

    memory.run(work())


def test_standing_by_reads_nothing(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the store's word that the lease has ended: hours of waiting cost not one read."""

    async def work() -> None:
        clock = memory.environment = VirtualEnvironment()
        async with memory.open() as client, memory.open(transactions={"sweep": False}) as elsewhere:
            await prepared(client)
            first = await client.consumer("orders", "billing", start="earliest")
            second = await elsewhere.consumer("orders", "billing", stand_by=True)
            await run_ready()
            reads = []
            for name in ("get", "scan", "scan_index", "acquire_lease"):
                monkeypatch.setattr(elsewhere.host.metadata, name, lambda *_, called=name: reads.append(called))
            await clock.advance(HOUR_MS)
            assert reads == []
            monkeypatch.undo()
            await first.close()
            assert (await second.receive()).value == b"0"
            await second.close()

    memory.run(work())


def test_a_cumulative_acknowledgment_after_the_lease_covers_no_more_of_the_batch(memory: Stores) -> None:
    """It ends at its own message, though the consumer stands by now; the rest of the entry is delivered."""

    async def work() -> None:
        memory.environment = VirtualEnvironment()
        async with memory.open() as client, memory.open() as elsewhere:
            await client.create_topic("orders")
            await (await client.producer("orders")).send_many([b"0", b"1", b"2"])
            first = await client.consumer("orders", "billing", start="earliest", stand_by=True)
            received = await first.receive()
            second = await elsewhere.consumer("orders", "billing", stand_by=True)
            await end_session_of(client)
            assert (await second.receive()).id == received.id
            client.host.metadata.restore()  # type: ignore[attr-defined]
            await memory.environment.advance(1_000)
            await first.ack_cumulative(received)
            await second.close()
            assert await memory.receive(first, 2) == [b"1", b"2"]
            await first.close()

    memory.run(work())


def test_a_lease_that_cannot_be_given_back_at_once_is_given_back_later(memory: Stores) -> None:
    """The store is away while the last consumer closes; whoever stands by elsewhere gets its turn when it is back."""

    async def work() -> None:
        clock = memory.environment = VirtualEnvironment()
        async with memory.open() as client, memory.open() as elsewhere:
            await prepared(client)
            first = await client.consumer("orders", "billing", start="earliest")
            second = await elsewhere.consumer("orders", "billing", stand_by=True)
            store: Any = client.host.metadata
            store.cut()
            with pytest.raises(OutcomeUnknown):
                await store.put(Put(Key("/test"), b"", Expect.ANY))
            await first.close()
            store.restore()
            receiving = asyncio.ensure_future(memory.receive(second, 3))
            await clock.advance(1_000)
            assert await receiving == [b"0", b"1", b"2"]
            # One that is opened again is not closed by what was still to be given back.
            await second.close()
            first = await client.consumer("orders", "billing")
            store.cut()
            with pytest.raises(OutcomeUnknown):
                await store.put(Put(Key("/test"), b"", Expect.ANY))
            await first.close()
            store.restore()
            first = await client.consumer("orders", "billing")
            await clock.advance(1_000)
            assert await memory.receive(first, 3) == [b"0", b"1", b"2"]
            await first.close()

    memory.run(work())
