"""No message takes effect in two committed transactions, for any mix of single and cumulative acknowledgments."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, Consumer, DeadLetter, Message
from txnframework.broker import acks_of
from txnframework.errors import LeaseLost, ReceiveTimeout, TransactionConflict
from txnframework.model import AckRequest, Branch
from txnframework.runtime.tasks import start_task
from txnframework.testing.clock import run_ready

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]

ORDERED = ("exclusive", "failover")
Action = Callable[[], Awaitable[None]]


async def batches(client: Client, *sizes: int) -> None:
    """Send messages, some together."""
    await client.create_topic("orders")
    producer = await client.producer("orders")
    number = 0
    for size in sizes:
        await producer.send_many([b"%d" % one for one in range(number, number + size)])
        number += size


async def joined(client: Client, messages: int, **options: Any) -> tuple[Consumer, list[Message]]:
    """Return a consumer, and what it has received."""
    consumer = await client.consumer("orders", "billing", start="earliest", **options)
    return consumer, [await consumer.receive(timeout_ms=60_000) for _ in range(messages)]


async def committed(client: Client, consumer: Consumer, *messages: Message) -> None:
    """Acknowledge messages in a transaction of their own."""
    async with client.transaction() as txn:
        await consumer.ack(*messages, txn=txn)


async def is_refused(client: Client, consumer: Consumer, message: Any) -> bool:
    """Return whether a cumulative ack up to this message is refused in a transaction, which is then aborted."""
    txn = client.transaction()
    await txn.begin()
    try:
        await consumer.ack_cumulative(message, txn=txn)
    except TransactionConflict:
        return True
    finally:
        await txn.abort()
    return False


async def covered(client: Client, consumer: Consumer, message: Any) -> None:
    """Acknowledge cumulatively up to this message in a transaction of its own."""
    async with client.transaction() as txn:
        await consumer.ack_cumulative(message, txn=txn)


async def finish_elsewhere(client: Client, *messages: Message) -> None:
    """Acknowledge messages in a transaction of another process that received them before or receives them now."""
    async with client.transaction() as txn:
        for message in messages:
            place = await client.host.subscription(message.topic, "billing", message.id.segment)
            acks = acks_of([(message.id.position, message.batch_size)])
            await place.pending_acks.add(AckRequest(Branch(txn.id), acks, message.incarnation))


def dispatch_of(consumer: Consumer, message: Message) -> Any:
    """Return the dispatch that delivers messages to a consumer."""
    attached = consumer._segments.feeds[message.id.segment].attached
    assert attached is not None
    return attached.dispatch


@pytest.mark.parametrize("kind", ORDERED)
async def test_the_last_message_of_a_batch(stores: Stores, kind: str) -> None:
    """If one transaction acks the last message of a batch, no other transaction acks up to it.

    Likewise any message of a batch.
    """
    async with stores.open() as client:
        await batches(client, 4, 1, 2)
        consumer, received = await joined(client, 7, type=kind)
        await committed(client, consumer, received[3], received[1], received[4])
        for number in (1, 3, 4):
            assert await is_refused(client, consumer, received[number])
        await committed(client, consumer, received[6])
        assert await is_refused(client, consumer, received[6])
        await covered(client, consumer, received[5])
        await consumer.close()


async def test_named_after_an_own_cumulative_one(stores: Stores) -> None:
    """A cumulative ack skips finished messages; its transaction still cannot ack such a message by name."""
    async with stores.open() as client:
        await batches(client, 1, 1, 1)
        consumer, received = await joined(client, 3)
        await committed(client, consumer, received[1])
        txn = client.transaction()
        await txn.begin()
        await consumer.ack_cumulative(received[2], txn=txn)
        await consumer.ack(received[0], txn=txn)
        with pytest.raises(TransactionConflict):
            await consumer.ack(received[1], txn=txn)
        await txn.abort()
        await consumer.close()


async def test_what_the_consumer_acknowledged_itself_is_passed_over(stores: Stores) -> None:
    """A cumulative ack skips the consumer's own acks: single, cumulative, plain, or in any committed transaction."""
    async with stores.open() as client, stores.open() as elsewhere:
        await batches(client, 3, 1, 1, 3, 2)
        consumer, received = await joined(client, 10)
        await committed(client, consumer, received[1])
        await covered(client, consumer, received[3])
        await consumer.ack(received[4])
        async with elsewhere.transaction() as txn:
            part = client.join(txn.id)
            await consumer.ack(received[5], txn=part)
            await txn.commit([await part.finish()])
        async with client.transaction() as txn:
            await consumer.ack(received[6], txn=txn)
            await consumer.ack_cumulative(received[7], txn=txn)
            await consumer.ack_cumulative(received[8], txn=txn)
        await consumer.close()
        again, left = await joined(client, 1)
        assert [one.value for one in left] == [b"9"]
        await again.close()


@pytest.mark.parametrize("aware", [False, True])
async def test_what_somebody_else_finished_is_not_passed_over(stores: Stores, aware: bool) -> None:
    """A cumulative ack conflicts if another process finished a received message, whether or not this process knows.

    Messages that are received again after ``redeliver_unacknowledged`` count as received; so do single acks.
    """
    async with stores.open() as client, stores.open() as elsewhere:
        await batches(client, 3, 1, 1, 1)
        consumer, received = await joined(client, 6)
        dispatch = dispatch_of(consumer, received[0])
        dispatch._trigger._refresh = lambda: run_ready()  # as if its watches were late
        await finish_elsewhere(elsewhere, received[1])
        if aware:
            await dispatch.refresh()
        for message in received[1:]:
            assert await is_refused(client, consumer, message)
        await covered(client, consumer, received[0])
        await committed(client, consumer, received[2])
        assert await is_refused(client, consumer, received[5])
        await consumer.redeliver_unacknowledged()
        again = [await consumer.receive(timeout_ms=60_000) for _ in range(3)]
        assert [one.value for one in again] == [b"3", b"4", b"5"]
        await covered(client, consumer, again[1])
        await consumer.close()


@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("counts", [False, True])
async def test_its_own_that_came_to_nothing(stores: Stores, aware: bool, counts: bool) -> None:
    """Own acks in an aborted transaction or an ignored branch have no effect, so another process could finish
    the message.
    """
    async with stores.open() as client, stores.open() as elsewhere:
        await batches(client, 1, 1, 1)
        consumer, received = await joined(client, 3)
        dispatch = dispatch_of(consumer, received[0])
        dispatch._trigger._refresh = lambda: run_ready()
        if counts:
            async with elsewhere.transaction() as txn:
                await consumer.ack(received[0], txn=client.join(txn.id))
        else:
            async with client.transaction() as own:
                await consumer.ack(received[0], txn=own)
                await own.abort()
        await finish_elsewhere(elsewhere, received[0])
        if aware:
            await dispatch.refresh()
        assert await is_refused(client, consumer, received[2])
        await committed(client, consumer, *received[1:])
        await consumer.close()


@pytest.mark.parametrize("aware", [False, True])
async def test_what_somebody_else_acknowledged_outside_transactions(stores: Stores, aware: bool) -> None:
    """A message that another process acked outside transactions blocks the ack until this consumer acks it
    outside, too.
    """
    async with stores.open() as client, stores.open() as elsewhere:
        await batches(client, 1, 3, 1)
        consumer, received = await joined(client, 5)
        dispatch = dispatch_of(consumer, received[0])
        dispatch._trigger._refresh = lambda: run_ready()
        place = await elsewhere.host.subscription(received[2].topic, "billing", received[2].id.segment)
        await place.cursor.apply(1, acks_of([(received[2].id.position, received[2].batch_size)]), None)
        if aware:
            await dispatch.refresh()
        assert await is_refused(client, consumer, received[4])
        await covered(client, consumer, received[1])
        await consumer.ack_cumulative(received[2])
        await covered(client, consumer, received[4])
        await consumer.close()


async def test_what_was_done_before_anybody_saw_it_is_passed_over(stores: Stores) -> None:
    """A message that was finished by others before the consumer received it is skipped."""
    async with stores.open() as client, stores.open() as elsewhere:
        await batches(client, 1, 1, 1)
        consumer, _ = await joined(client, 1)
        while consumer._inbox.count_free() < 2:
            await run_ready()
        second = next(consumer._inbox._all()).message
        await finish_elsewhere(elsewhere, second)
        await dispatch_of(consumer, second).refresh()
        third = await consumer.receive(timeout_ms=60_000)
        assert third.value == b"2"
        await covered(client, consumer, third)
        await consumer.close()


async def test_what_was_done_before_it_came_is_passed_over(stores: Stores) -> None:
    """A gap that others left before this consumer received anything does not block a cumulative ack."""
    async with stores.open() as client:
        await batches(client, 3, 1, 1)
        before, received = await joined(client, 5)
        await committed(client, before, received[1], received[3])
        await before.close()
        consumer, left = await joined(client, 3)
        assert [one.value for one in left] == [b"0", b"2", b"4"]
        await covered(client, consumer, left[2])
        await consumer.close()


@pytest.mark.parametrize("stand_by", [False, True])
async def test_a_lease_that_was_lost(stores: Stores, stand_by: bool) -> None:
    """Messages received before are not acknowledged cumulatively in a transaction, by message or by id.

    Single acks and acks outside transactions succeed, as from any process. Messages that are received again can be
    acknowledged.
    """
    async with stores.open() as client:
        await batches(client, 3, 1, 1)
        consumer, received = await joined(client, 5, stand_by=stand_by)
        dispatch_of(consumer, received[0])._end_with(LeaseLost("billing"))
        assert await is_refused(client, consumer, received[4])
        assert await is_refused(client, consumer, received[4].id)
        await committed(client, consumer, received[1])
        if not stand_by:
            with pytest.raises(LeaseLost):
                await consumer.receive()
            await consumer.close()
            consumer = await client.consumer("orders", "billing")
        assert await is_refused(client, consumer, received[4])
        again = [await consumer.receive(timeout_ms=60_000) for _ in range(4)]
        assert [one.value for one in again] == [b"0", b"2", b"3", b"4"]
        assert await is_refused(client, consumer, received[4])
        async with client.transaction() as txn:
            await consumer.ack_cumulative(again[1], txn=txn)
        await consumer.ack_cumulative(received[3])
        await covered(client, consumer, again[3].id)
        await consumer.close()


@pytest.mark.parametrize("own", [False, True])
async def test_a_lease_that_was_lost_and_won_again(stores: Stores, own: bool) -> None:
    """Messages received under the first lease that others finished meanwhile are not skipped.

    The consumer stands by, so its program is not notified. The consumer's own acks are skipped.
    """
    async with stores.open() as client, stores.open() as elsewhere:
        await batches(client, 3, 1)
        consumer, received = await joined(client, 4, stand_by=True)
        dispatch = dispatch_of(consumer, received[0])
        dispatch._trigger._refresh = lambda: run_ready()  # as if its watches were late
        if not own:
            await finish_elsewhere(elsewhere, received[1])
        dispatch._end_with(LeaseLost("billing"))
        if own:
            await committed(client, consumer, received[1])
            await consumer.ack(received[2])
        again = [await consumer.receive(timeout_ms=60_000) for _ in range(2 if own else 3)]
        assert [one.value for one in again] == ([b"0", b"3"] if own else [b"0", b"2", b"3"])
        if not own:
            await covered(client, consumer, again[0])
            for message in again[1:]:
                assert await is_refused(client, consumer, message)
            await consumer.redeliver_unacknowledged()
            again = [await consumer.receive(timeout_ms=60_000) for _ in range(2)]
        await covered(client, consumer, again[-1])
        await consumer.close()


def held_up(dispatch: Any) -> asyncio.Event:
    """Block giving back a lease until an event is set, and return the lease."""
    release, going_on = dispatch._lease.release, asyncio.Event()

    async def released() -> None:
        await going_on.wait()
        await release()

    dispatch._lease.release = released
    return going_on


async def test_acknowledged_after_the_lease_and_before_it_is_given_back(memory: Stores) -> None:
    """While one of two lost leases is given back slowly, acks of the other segment are still recognised."""
    async with memory.open() as client:
        await client.create_topic("orders", segments=2)
        producer = await client.producer("orders")
        for number in range(20):
            await producer.send(b"%d" % number, key=b"%d" % number)
        consumer, received = await joined(client, 20, stand_by=True)
        feeds = list(consumer._segments.feeds.values())
        dispatches: list[Any] = [feed.attached.dispatch for feed in feeds if feed.attached is not None]
        going_on = held_up(dispatches[0])
        for dispatch in dispatches:
            dispatch._end_with(LeaseLost("billing"))
        await run_ready()
        mine = [one for one in received if one.id.segment == dispatches[1].segment]
        assert len(mine) > 2
        await consumer.ack(mine[0])
        going_on.set()
        again = [await consumer.receive(timeout_ms=60_000) for _ in range(19)]
        await covered(client, consumer, [one for one in again if one.id.segment == dispatches[1].segment][-1])
        await consumer.close()


@pytest.mark.parametrize("sought", [False, True])
async def test_sought_while_the_lease_was_lost(stores: Stores, sought: bool) -> None:
    """Messages received before a seek are void; a seek under an earlier lease makes no later message void."""
    async with stores.open() as client, stores.open() as elsewhere:
        await batches(client, 3)
        consumer, received = await joined(client, 3, stand_by=True)
        if not sought:
            await consumer.seek("earliest")
            received = [await consumer.receive(timeout_ms=60_000) for _ in range(3)]
        dispatch = dispatch_of(consumer, received[0])
        dispatch._trigger._refresh = lambda: run_ready()  # as if its watches were late
        if not sought:
            await finish_elsewhere(elsewhere, received[1])
        going_on = held_up(dispatch)
        dispatch._end_with(LeaseLost("billing"))
        if sought:
            await elsewhere.seek("orders", "billing", "latest")
            producer = await elsewhere.producer("orders")
            await producer.send(b"new")
        going_on.set()
        again = await consumer.receive(timeout_ms=60_000)
        if sought:
            assert again.value == b"new"
            await covered(client, consumer, again)
        else:
            again = await consumer.receive(timeout_ms=60_000)
            assert again.value == b"2"
            assert await is_refused(client, consumer, again)
        await consumer.close()


@pytest.mark.metadata_family("its topics have several segments")
@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("aware", [False, True])
async def test_segments_that_came_before(stores: Stores, finished: bool, aware: bool) -> None:
    """A cumulative ack in a child covers the received messages of its parents, also when the parents are finished."""
    async with stores.open() as client, stores.open() as elsewhere:
        await batches(client, 1, 1, 1)
        consumer, received = await joined(client, 3)
        await client.split("orders", 0)
        await (await client.producer("orders")).send(b"child", key=b"k")
        received.append(await consumer.receive(timeout_ms=60_000))
        assert received[3].id.segment != received[2].id.segment
        dispatch = dispatch_of(consumer, received[0])
        await finish_elsewhere(elsewhere, received[0])
        if finished:
            await committed(client, consumer, *received[1:3])
        if aware or finished:
            await dispatch.refresh()
            for _ in range(20):
                await run_ready()
        assert await is_refused(client, consumer, received[3])
        await consumer.redeliver_unacknowledged()
        again = [await consumer.receive(timeout_ms=60_000) for _ in range(1 if finished else 3)]
        await covered(client, consumer, again[-1])
        await consumer.close()


async def test_dead_letters_are_its_own(stores: Stores) -> None:
    """A cumulative ack skips messages that were moved to a dead-letter topic."""
    async with stores.open() as client:
        await batches(client, 1, 1, 1)
        consumer, received = await joined(client, 3, dead_letter=DeadLetter(redeliveries_max=0))
        await consumer.nack(received[1])
        while (await client.ack_status("billing", received[1].id)).state.name != "DELETED":
            with pytest.raises(Exception, match="no message"):
                await consumer.receive(timeout_ms=20)
        await covered(client, consumer, received[2])
        await consumer.close()


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_what_another_consumer_of_this_process_acknowledged(stores: Stores, in_transaction: bool) -> None:
    """A consumer without the lease may ack single messages that the next consumer received.

    The next consumer's ack is refused.
    """
    async with stores.open() as client:
        await batches(client, 1, 1, 1)
        late, received = await joined(client, 3, type="failover", name="late")
        await late.redeliver_unacknowledged()
        for lost in range(2):
            received = [await late.receive(timeout_ms=60_000) for _ in range(3)]
            if lost:  # the second time in a row it waits before it asks for the lease again
                active = await client.consumer("orders", "billing", type="failover", name="active")
            dispatch_of(late, received[0])._end_with(LeaseLost("billing"))
        given = [await active.receive(timeout_ms=60_000) for _ in range(3)]
        while not any(feed.attached for feed in late._segments.feeds.values()):
            with pytest.raises(ReceiveTimeout):
                await late.receive(timeout_ms=20)
        if in_transaction:
            await committed(client, late, received[1])
        else:
            await late.ack(received[1])
        assert await is_refused(client, active, given[2])
        await late.close()
        await active.close()


async def test_an_old_copy_of_what_is_to_come_again(stores: Stores) -> None:
    """After a redelivery request, a message counts as received only when it has been delivered again."""
    async with stores.open() as client, stores.open() as elsewhere:
        await batches(client, 1, 1, 1)
        consumer, received = await joined(client, 3)
        await finish_elsewhere(elsewhere, received[1])
        assert await is_refused(client, consumer, received[2])
        await consumer.redeliver_unacknowledged()
        assert await is_refused(client, consumer, received[2])
        again = [await consumer.receive(timeout_ms=60_000) for _ in range(2)]
        await covered(client, consumer, again[1])
        await consumer.close()


@pytest.mark.metadata_family("its topics have several segments")
@pytest.mark.parametrize("steps", range(1, 5))
async def test_asking_for_redelivery_is_given_up(memory: Stores, steps: int) -> None:
    """A cumulative acknowledgment still covers what was received of the segments before."""
    async with memory.open() as client:
        await batches(client, 1, 1)
        consumer, _ = await joined(client, 2)
        await client.split("orders", 0)
        producer = await client.producer("orders")
        await producer.send(b"child", key=b"k")
        child = await consumer.receive(timeout_ms=60_000)
        asking = start_task(consumer.redeliver_unacknowledged())
        for _ in range(steps):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        await covered(client, consumer, child)
        await client.maintain()
        assert (await client.lag("orders", "billing")).messages == 0
        await consumer.close()
