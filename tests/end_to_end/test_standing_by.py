"""Several processes on one subscription: who waits, who takes over, and what one that lost its lease can still do."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, Consumer, DeadLetter
from txnframework.broker.dispatch.segment_dispatch import SegmentDispatch
from txnframework.errors import (
    Closed,
    ConsumerBusy,
    LeaseLost,
    OutcomeUnknown,
    SubscriptionOwnedElsewhere,
    TransactionConflict,
    Unavailable,
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
    store.end_session()
    await run_ready()


async def test_waiting_for_the_one_consumer_here(stores: Stores) -> None:
    """It raises unless it stands by; then it gets what the one before did not acknowledge."""
    async with stores.open() as client:
        await prepared(client)
        first = await client.consumer("orders", "billing", start="earliest")
        with pytest.raises(ConsumerBusy):
            await client.consumer("orders", "billing")
        second = await client.consumer("orders", "billing", stand_by=True)
        received = [await first.receive(timeout_ms=60_000) for _ in range(2)]
        await first.ack(received[0])
        await first.close()
        assert await stores.receive(second, 2) == [b"1", b"2"]
        await second.close()


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
@pytest.mark.metadata_family("its topics have several segments")
async def test_waiting_for_another_process(stores: Stores, kind: str) -> None:
    """Whatever the type, if it does not balance: its consumer waits until the other process has left."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic("orders", segments=2)
        producer = await client.producer("orders")
        first = await client.consumer("orders", "billing", type=kind, start="earliest", balance=False)
        with pytest.raises(SubscriptionOwnedElsewhere):
            await elsewhere.consumer("orders", "billing", type=kind, stand_by=False)
        second = await elsewhere.consumer("orders", "billing", type=kind, stand_by=True, balance=False)
        for number in range(8):
            await producer.send(b"%d" % number, key=b"key %d" % number)
        received = [await first.receive(timeout_ms=60_000) for _ in range(8)]
        await first.ack(*received[:5])
        await first.close()
        left = sorted(await stores.receive(second, 3))
        assert left == sorted(message.value for message in received[5:])
        await second.close()


async def test_failover_stands_by_unless_told_otherwise(memory: Stores) -> None:
    """In another process as in its own."""
    async with memory.open() as client, memory.open() as elsewhere:
        await prepared(client)
        first = await client.consumer("orders", "billing", type="failover", start="earliest")
        second = await elsewhere.consumer("orders", "billing", type="failover")
        await first.close()
        assert await memory.receive(second, 3) == [b"0", b"1", b"2"]
        await second.close()


@pytest.mark.parametrize("elsewhere_too", [False, True])
async def test_a_consumer_knows_whether_it_is_active(memory: Stores, elsewhere_too: bool) -> None:
    """Also without any message; the next one learns it when the active one leaves."""
    async with memory.open() as client, memory.open() as elsewhere:
        await prepared(client, messages=0)
        first = await client.consumer("orders", "billing", type="failover")
        second = await (elsewhere if elsewhere_too else client).consumer("orders", "billing", type="failover")
        assert (first.is_active, second.is_active) == (True, False)
        waiting = asyncio.ensure_future(second.wait_until(active=True))
        leaving = asyncio.ensure_future(first.wait_until(active=False))
        await run_ready()
        assert not waiting.done()
        assert not leaving.done()
        await first.close()
        await asyncio.gather(waiting, leaving)
        assert (first.is_active, second.is_active) == (False, True)
        third = await client.consumer("orders", "billing", type="failover", priority=-1)
        assert (second.is_active, third.is_active) == (True, False)
        await second.close()
        await third.wait_until(active=True)
        await third.close()
        with pytest.raises(Closed):
            await third.wait_until(active=True)


async def test_consumers_that_share_are_active_together(memory: Stores) -> None:
    async with memory.open() as client:
        await prepared(client, messages=0)
        both = [await client.consumer("orders", "billing", type="shared") for _ in range(2)]
        assert [one.is_active for one in both] == [True, True]
        both[0].pause()
        assert both[0].is_active
        for one in both:
            await one.close()


async def test_a_consumer_whose_lease_is_lost_is_not_active(memory: Stores) -> None:
    memory.environment = VirtualEnvironment()
    async with memory.open() as client, memory.open() as elsewhere:
        await prepared(client, messages=0)
        first = await client.consumer("orders", "billing", type="failover")
        second = await elsewhere.consumer("orders", "billing", type="failover")
        await end_session_of(client)
        await first.wait_until(active=False)
        await second.wait_until(active=True)
        await second.close()


async def test_taking_over_from_a_process_that_crashed(memory: Stores) -> None:
    """Acks in the dead process's open transaction are released at once, without waiting for the timeout."""
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


@pytest.mark.parametrize("stand_by", [False, True, None])
async def test_a_paused_owner_can_only_fail(memory: Stores, stand_by: bool | None) -> None:
    """Another process took over and acknowledged: the paused owner notices the lost lease, and its acks are refused."""
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
        if stand_by is False:
            segment = "segment://public/default/orders/0000-ffff-0"
            told = f"the lease 'dispatch billing of {segment}' was lost; open the consumer again, or leave stand_by"
            with pytest.raises(LeaseLost, match=told):
                await first.receive()
            await first.close()
            return
        async with client.transaction() as txn:
            with pytest.raises(TransactionConflict):
                await first.ack(received[0], txn=txn)
            await txn.abort()
        await first.ack(received[1])  # any process may: it takes effect, whichever process dispatches
        await memory.environment.advance(1_000)
        await second.redeliver_unacknowledged()
        assert (await second.receive()).id == taken[2].id
        await second.close()
        assert (await first.receive()).id == taken[2].id
        await first.close()


@pytest.mark.parametrize("stand_by", [False, True, None])
async def test_acknowledging_as_the_lease_is_lost(memory: Stores, stand_by: bool | None) -> None:
    """While the lease is being lost, acks of received messages are accepted as from any other process."""
    async with memory.open() as client:
        await prepared(client)
        consumer = await client.consumer("orders", "billing", start="earliest", stand_by=stand_by)
        received = [await consumer.receive() for _ in range(3)]
        (feed,) = consumer._segments.feeds.values()
        assert feed.attached is not None
        feed.attached.dispatch._end_with(LeaseLost("billing"))
        await consumer.ack(received[0])
        async with client.transaction() as txn:
            await consumer.ack(received[1], txn=txn)
        if stand_by is False:
            with pytest.raises(LeaseLost):
                await consumer.receive()
        await consumer.close()
        again = await client.consumer("orders", "billing")
        assert await memory.receive(again, 1) == [b"2"]
        await again.close()


async def test_acknowledging_while_the_lease_is_lost(memory: Stores) -> None:
    """Redeliveries of the next dispatch are not returned if their acknowledgment was stored meanwhile."""
    async with memory.open() as client:
        await prepared(client, 1)
        consumer = await client.consumer("orders", "billing", start="earliest", stand_by=True)
        received = await consumer.receive()
        (feed,) = consumer._segments.feeds.values()
        assert feed.attached is not None
        first: Any = feed.attached.dispatch
        store, going_on = first.acks.single, asyncio.Event()

        async def held_up(*given: Any) -> None:
            await going_on.wait()
            await store(*given)

        first.acks.single = held_up
        async with client.transaction() as txn:
            acknowledging = asyncio.ensure_future(consumer.ack(received, txn=txn))
            await run_ready()
            first._end_with(LeaseLost("billing"))
            await run_ready()
            (feed,) = consumer._segments.feeds.values()
            assert feed.attached is not None
            assert feed.attached.dispatch is not first
            assert consumer._inbox.positions(feed) == {received.id.position}
            second: Any = feed.attached.dispatch
            second._trigger.request = lambda: None  # as if its watch were late
            going_on.set()
            await acknowledging
            assert consumer._inbox.take(10) == ()
        await consumer.close()


async def test_acknowledging_while_the_next_dispatch_begins(memory: Stores) -> None:
    """A new dispatch that has read, but is not yet used, reads again before it returns messages."""
    async with memory.open() as client:
        await prepared(client, 1)
        consumer = await client.consumer("orders", "billing", start="earliest", stand_by=True)
        received = await consumer.receive()
        (feed,) = consumer._segments.feeds.values()
        assert feed.attached is not None
        first: Any = feed.attached.dispatch
        store, going_on, attaching = first.acks.single, asyncio.Event(), asyncio.Event()

        async def held_up(*given: Any) -> None:
            await going_on.wait()
            await store(*given)

        first.acks.single = held_up
        dispatches: Any = client.host.dispatches
        begin = dispatches._begin

        async def begin_late(place: Any) -> Any:
            dispatch = await begin(place)
            dispatch._trigger._refresh = lambda: asyncio.sleep(0)  # as if its watches were late
            await attaching.wait()
            return dispatch

        dispatches._begin = begin_late
        acknowledging = asyncio.ensure_future(consumer.ack(received))
        await run_ready()
        first._end_with(LeaseLost("billing"))
        await run_ready()
        going_on.set()
        await run_ready()
        assert consumer._segments.feeds[feed.place.segment].attached is None
        attaching.set()
        await acknowledging
        await run_ready()
        assert consumer._inbox.take(10) == ()
        await consumer.close()


async def test_what_was_done_before_somebody_joined_does_not_come_to_it(memory: Stores) -> None:
    """Acks under the former lease, which the current dispatch has not yet read, are respected for a new consumer."""
    async with memory.open() as old, memory.open(client={"receive_messages_max": 1}) as new:
        await prepared(old, 2)
        before = await old.consumer("orders", "billing", type="shared", start="earliest")
        done = [await before.receive(timeout_ms=60_000) for _ in range(2)]
        await end_session_of(old)
        first = await new.consumer("orders", "billing", type="shared")
        await run_ready()
        (feed,) = first._segments.feeds.values()
        assert feed.attached is not None
        dispatch: Any = feed.attached.dispatch
        dispatch._trigger._refresh = lambda: asyncio.sleep(0)  # as if its watches were late
        store: Any = old.host.metadata
        store.restore()
        await before.ack(done[1])
        second = await new.consumer("orders", "billing", type="shared")
        await run_ready()
        assert second._inbox.take(9) == ()
        assert [one.value for one in first._inbox.take(9)] == [done[0].value]
        await first.close()
        await second.close()


@pytest.mark.parametrize("stand_by", [False, True, None])
async def test_a_segments_lease_is_lost_while_what_follows_it_is_delivered(
    memory: Stores, stand_by: bool | None
) -> None:
    """Messages delivered after ones that are taken back are not returned before those are redelivered."""
    async with memory.open() as client:
        await prepared(client, 2)
        await client.split("orders", 0)
        await (await client.producer("orders")).send(b"behind")
        consumer = await client.consumer("orders", "billing", start="earliest", stand_by=stand_by)
        for _ in range(20):
            await run_ready()
        assert consumer._inbox.count_free() == 3
        parent = next(feed for name, feed in consumer._segments.feeds.items() if name.endswith("-0"))
        assert parent.attached is not None
        dispatch: Any = parent.attached.dispatch
        dispatch._end_with(LeaseLost("billing"))
        assert consumer._inbox.take(10) == ()
        if stand_by is not False:
            received = []
            while len(received) < 3:
                received += await consumer.receive_many(messages_max=5, timeout_ms=60_000)
                await consumer.ack(*received)
            assert [one.value for one in received] == [b"0", b"1", b"behind"]
        else:
            with pytest.raises(LeaseLost):
                await consumer.receive(timeout_ms=60_000)
        await consumer.close()


@pytest.mark.parametrize("stand_by", [None, False])
async def test_a_lease_that_is_lost_while_a_consumer_joins(
    memory: Stores, monkeypatch: pytest.MonkeyPatch, stand_by: bool | None
) -> None:
    """A consumer that stands by takes the lease again, as after a later loss.

    Without standing by, the caller gets an error.
    """
    count_durably, lost = SegmentDispatch.count_durably, 0

    async def lose(dispatch: SegmentDispatch) -> None:
        nonlocal lost
        await count_durably(dispatch)
        if lost < 2:
            lost += 1
            dispatch._end_with(LeaseLost("dispatch"))  # as after ``lost`` of the lease

    monkeypatch.setattr(SegmentDispatch, "count_durably", lose)

    async with memory.open() as client:
        await prepared(client)
        joining = client.consumer(
            "orders", "billing", type="shared", start="earliest", stand_by=stand_by, dead_letter=DeadLetter(3)
        )
        if stand_by is False:
            with pytest.raises(LeaseLost, match="open the consumer again"):
                await joining
            return
        async with await joining as consumer:
            assert await memory.receive(consumer, 3) == [b"0", b"1", b"2"]
        assert lost == 2


async def test_a_lease_that_is_lost_again_and_again(memory: Stores) -> None:
    """It is taken again at once, then less and less often, and at once again after it was held for a while."""
    clock = memory.environment = VirtualEnvironment()
    async with memory.open() as client:
        await prepared(client, 1)
        consumer = await client.consumer("orders", "billing", start="earliest")

        async def waits_ms() -> int:
            await run_ready()
            (feed,) = consumer._segments.feeds.values()
            assert feed.attached is not None
            feed.attached.dispatch._end_with(LeaseLost("billing"))
            await run_ready()
            began_ms = clock.now_ms()
            while next(iter(consumer._segments.feeds.values())).attached is None:
                await clock.advance(10)
            return clock.now_ms() - began_ms

        waited = [await waits_ms() for _ in range(9)]
        assert waited[0] == 0
        assert all(50 << number <= later + 10 <= (100 << number) + 20 for number, later in enumerate(waited[1:6]))
        assert max(waited) <= 5_010
        await clock.advance(10_000)
        assert await waits_ms() == 0
        assert await memory.receive(consumer, 1) == [b"0"]
        await consumer.close()


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
async def test_a_restart_under_the_same_name_takes_over_at_once(memory: Stores, kind: str) -> None:
    """Its predecessor's process was killed, and its session has not ended yet; another name has to wait for that."""
    clock = memory.environment = VirtualEnvironment()
    async with memory.open() as dead:
        await prepared(dead)
        before = await dead.consumer("orders", "billing", type=kind, start="earliest", name="worker-1")
        await before.ack(await before.receive())
        store: Any = dead.host.metadata
        store.cut()  # nothing of it is heard any more, and its leases stay
        async with memory.open() as client:
            for other in ("worker-2", None):
                with pytest.raises(SubscriptionOwnedElsewhere, match="worker-1"):
                    await client.consumer("orders", "billing", type=kind, name=other, stand_by=False)
            began_ms = clock.now_ms()
            async with await client.consumer("orders", "billing", type=kind, name="worker-1") as after:
                assert sorted([(await after.receive()).value for _ in range(2)]) == [b"1", b"2"]
            assert clock.now_ms() == began_ms
        store.restore()


async def test_two_that_live_under_one_name(memory: Stores) -> None:
    """The later process dispatches, and the earlier one waits for its turn: the lease does not move back and forth."""
    clock = memory.environment = VirtualEnvironment()
    async with memory.open() as client, memory.open() as elsewhere:
        await prepared(client)
        first = await client.consumer("orders", "billing", start="earliest", name="worker")
        received = await first.receive()
        second = await elsewhere.consumer("orders", "billing", name="worker")
        taking, taken = elsewhere.host.metadata.acquire_lease, []

        async def counted(name: str, holder: str) -> Any:
            taken.append(name)
            return await taking(name, holder)

        elsewhere.host.metadata.acquire_lease = counted  # type: ignore[method-assign]
        await clock.advance(HOUR_MS)
        assert [name for name in taken if name.startswith("dispatch")] == []
        assert (await second.receive()).id == received.id
        async with client.transaction() as txn:
            await second.ack(received)
            with pytest.raises(TransactionConflict):
                await first.ack(received, txn=txn)
            await txn.abort()
        await second.close()
        await clock.advance(1_000)
        assert await memory.receive(first, 2) == [b"1", b"2"]
        await first.close()


async def test_several_that_live_under_one_name(memory: Stores) -> None:
    """The latest one dispatches at once, even if one that was replaced before and waits takes the lease in between."""
    clock = memory.environment = VirtualEnvironment()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(memory.open()) for _ in range(4)]
        await prepared(clients[0])
        consumers: list[Consumer] = []
        for client in clients:
            breaking = client.host.metadata.break_lease

            async def slowly(name: str, version: int, breaking: Any = breaking) -> None:
                await breaking(name, version)
                await run_ready()

            client.host.metadata.break_lease = slowly  # type: ignore[method-assign]
            consumers.append(await client.consumer("orders", "billing", start="earliest", name="worker"))
            for _ in range(2):
                assert [one.is_active for one in consumers] == [False] * (len(consumers) - 1) + [True]
                await clock.advance(HOUR_MS)


async def test_standing_by_reads_nothing(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting consumer relies on the store's notification of the lease's end, and reads nothing, even for hours."""
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


async def test_a_cumulative_acknowledgment_after_the_lease_covers_no_more_of_the_batch(memory: Stores) -> None:
    """It ends at its own message, though the consumer stands by now; the rest of the entry is delivered."""
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


async def test_a_lease_that_cannot_be_given_back_at_once_is_given_back_later(memory: Stores) -> None:
    """The store is unavailable while the last consumer closes.

    A waiting process gets its turn when the store is back.
    """
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


@pytest.mark.parametrize("lost", ["taking", "releasing"])
@pytest.mark.parametrize(("name", "next_name"), [("worker-1", "worker-2"), ("worker-1", None), (None, "worker-1")])
def test_a_lease_left_over_is_no_obstacle_here(
    memory: Stores, monkeypatch: pytest.MonkeyPatch, lost: str, name: str | None, next_name: str | None
) -> None:
    """A process that still holds a lease for another consumer name reuses it, and gives it back later."""

    async def work() -> None:
        clock = memory.environment = VirtualEnvironment()
        async with memory.open(client={"retries_max": 0}) as client, memory.open() as elsewhere:
            await prepared(client)
            await client.subscribe("orders", "billing", start="earliest")
            await leave_over(client, lost, name)
            async with await client.consumer("orders", "billing", name=next_name) as following:
                assert (await following.receive()).value == b"0"
                await clock.advance(1_000)  # what was to be given back leaves the one that goes on alone
                assert (await following.receive()).value == b"1"
            await leave_over(client, lost, name)
            # One of another name that does not come to its lease changes nothing of what is given back.
            with monkeypatch.context() as patched:
                patched.setattr(client.host.metadata, "acquire_lease", unavailable)
                with pytest.raises(Unavailable):
                    await client.consumer("orders", "billing", name=next_name)
            await clock.advance(1_000)
            async with await elsewhere.consumer("orders", "billing") as other:
                assert await memory.receive(other, 3) == [b"0", b"1", b"2"]

    async def leave_over(client: Client, lost: str, name: str | None) -> None:
        """Let a lease be held whose consumer has gone; it is given back in a moment."""
        store: Any = client.host.metadata
        if lost == "releasing":
            consumer = await client.consumer("orders", "billing", name=name)
            store.cut()
            with pytest.raises(OutcomeUnknown):
                await store.put(Put(Key("/test"), b"", Expect.ANY))
            await consumer.close()
        else:
            taking = store.acquire_lease

            async def unheard(lease: str, holder: str) -> Any:
                patched.setattr(store, "acquire_lease", unavailable)
                await taking(lease, holder)
                raise OutcomeUnknown("the reply was lost")

            with monkeypatch.context() as patched:
                patched.setattr(store, "acquire_lease", unheard)
                with pytest.raises(OutcomeUnknown):
                    await client.consumer("orders", "billing", name=name)
                await run_ready()  # the first attempt to give it back fails
        await run_ready()
        store.restore()

    async def unavailable(*_: object) -> Any:
        raise Unavailable("the store is away")

    memory.run(work())


def test_leaving_one_segment_in_vain_leaves_the_others(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """If reading one cursor fails during the close, the other segment's lease is given back, and this one later."""

    async def work() -> None:
        memory.environment = VirtualEnvironment()
        async with memory.open() as client, memory.open() as elsewhere:
            await client.create_topic("orders", segments=2)
            producer = await client.producer("orders")
            first = await client.consumer("orders", "billing", type="shared", start="earliest", name="worker-1")
            second = await client.consumer("orders", "billing", type="shared", name="worker-2")
            with monkeypatch.context() as patched:
                patched.setattr(client.host.metadata, "get", unavailable)
                with pytest.raises(Unavailable):
                    await first.close()
            await second.close()
            for number in range(8):
                await producer.send(b"%d" % number, key=b"key %d" % number)
            async with await elsewhere.consumer("orders", "billing", type="shared", stand_by=False) as third:
                assert sorted(await memory.receive(third, 8)) == [b"%d" % number for number in range(8)]

    async def unavailable(*_: object) -> Any:
        raise Unavailable("the store is away")

    memory.run(work())


async def test_waiting_until_takes_no_news_from_a_receiver(memory: Stores) -> None:
    """A wait that begins as a message arrives does not hide that message from ``receive``."""
    memory.environment = VirtualEnvironment()
    async with memory.open() as client:
        await prepared(client, 0)
        async with await client.consumer("orders", "billing") as consumer:
            inbox: Any = consumer._inbox
            looked: list[int] = []

            def take(messages_max: int) -> tuple[Any, ...]:
                looked.append(messages_max)
                return ()

            inbox.take = take
            receiving = asyncio.ensure_future(consumer.receive(timeout_ms=HOUR_MS))
            asyncio.get_running_loop().call_soon(consumer.notice)
            waiting = asyncio.ensure_future(consumer.wait_until(active=False))
            await run_ready()
            assert len(looked) == 2
            for one in (receiving, waiting):
                one.cancel()
            await asyncio.wait({receiving, waiting})
