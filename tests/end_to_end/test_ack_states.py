"""Behaviours 18 to 30, case by case: single, listed and cumulative acks, batches, reloads, timeouts and faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from txnframework import AckState, AckStatus, Client, Consumer, Message, MessageID, Transaction
from txnframework.errors import (
    Closed,
    NotFound,
    OutcomeUnknown,
    SubscriptionNotFound,
    TransactionConflict,
    TransactionHasFailedOperations,
    Unavailable,
)
from txnframework.testing.clock import VirtualEnvironment

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]

KINDS = ("exclusive", "failover", "shared", "key_shared")
ORDERED = ("exclusive", "failover")


async def joined(client: Client, kind: str = "exclusive") -> Consumer:
    return await client.consumer("orders", "billing", type=kind, start="earliest")


async def five(client: Client, kind: str = "exclusive") -> tuple[Consumer, list[Message]]:
    """Return a consumer and five messages: two single ones, and a batch of three."""
    await client.create_topic("orders")
    producer = await client.producer("orders")
    await producer.send(b"0")
    await producer.send(b"1")
    await producer.send_many([b"2", b"3", b"4"])
    consumer = await joined(client, kind)
    return consumer, [await consumer.receive(timeout_ms=60_000) for _ in range(5)]


async def begun(client: Client, **options: Any) -> Transaction:
    txn = client.transaction(**options)
    await txn.begin()
    return txn


async def left(stores: Stores, client: Client, kind: str = "exclusive") -> list[bytes]:
    """Return what a new consumer receives before a message that is sent now."""
    await (await client.producer("orders")).send(b"end")
    async with await joined(client, kind) as consumer:
        found: list[bytes] = []
        while b"end" not in found:
            found += await stores.receive(consumer, 1)
    return found[:-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("listed", [False, True])
async def test_single_acks_of_every_type(stores: Stores, kind: str, listed: bool) -> None:
    """Behaviours 18 and 21: one by one or as a list, of single messages and of parts of a batch."""
    async with stores.open() as client:
        consumer, received = await five(client, kind)
        chosen = [received[0], received[3]]
        async with client.transaction() as txn:
            if listed:
                await consumer.ack(*chosen, txn=txn)
            else:
                for message in chosen:
                    await consumer.ack(message, txn=txn)
        await consumer.ack(received[4])
        await consumer.close()
        assert await left(stores, client, kind) == [b"1", b"2"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_whole_received_batch(stores: Stores, kind: str) -> None:
    """Behaviour 21: messages from ``receive_many`` are acknowledged in one call, and an abort redelivers them
    together.
    """
    async with stores.open() as client:
        consumer, received = await five(client, kind)
        async with client.transaction() as txn:
            await consumer.ack(*received, txn=txn)
            await txn.abort()
        again: list[Message] = []
        while len(again) < 5:
            again += await consumer.receive_many(messages_max=5, timeout_ms=60_000)
        assert [message.id for message in again] == [message.id for message in received]
        assert {message.redelivery_count for message in again} == {1}
        async with client.transaction() as txn:
            await consumer.ack(*again, txn=txn)
        await consumer.close()
        assert await left(stores, client, kind) == []


@pytest.mark.parametrize("kind", ORDERED)
async def test_cumulative_acks_into_a_batch(stores: Stores, kind: str) -> None:
    """Behaviours 18 and 19: after the commit, later messages of the batch are delivered.

    The same holds outside transactions.
    """
    async with stores.open() as client:
        consumer, received = await five(client, kind)
        async with client.transaction() as txn:
            await consumer.ack_cumulative(received[2], txn=txn)
        await consumer.close()
        assert await left(stores, client, kind) == [b"3", b"4"]
        consumer = await joined(client, kind)
        await consumer.ack_cumulative(await consumer.receive(timeout_ms=60_000))
        await consumer.close()
        assert (await left(stores, client, kind))[0] == b"4"


async def test_cumulative_acks_only_move_forward(stores: Stores) -> None:
    """Behaviour 19: a lower cumulative ack conflicts.

    An equal one is a retry in its own branch, and a conflict in another.
    """
    async with stores.open() as client:
        consumer, received = await five(client)
        first, second, third = [await begun(client) for _ in range(3)]
        await consumer.ack_cumulative(received[1], txn=first)
        await consumer.ack_cumulative(received[1], txn=first)
        with pytest.raises(TransactionConflict):
            await consumer.ack_cumulative(received[1], txn=second)
        with pytest.raises(TransactionConflict):
            await consumer.ack_cumulative(received[0], txn=first)
        await second.abort()
        with pytest.raises(TransactionHasFailedOperations):
            await first.commit()
        await consumer.ack_cumulative(received[3], txn=third)
        await third.commit()
        await consumer.close()
        assert await left(stores, client) == [b"4"]


@pytest.mark.parametrize("kind", ORDERED)
async def test_an_aborted_cumulative_ack_waits_to_be_asked_for(memory: Stores, kind: str) -> None:
    """Behaviour 20: after an abort, messages are redelivered only when the client asks, in their exact order."""
    clock = memory.environment = VirtualEnvironment()
    async with memory.open() as client:
        consumer, received = await five(client, kind)
        async with client.transaction() as txn:
            await consumer.ack_cumulative(received[3], txn=txn)
            await txn.abort()
        await (await client.producer("orders")).send(b"5")
        assert (await consumer.receive()).value == b"5"
        await clock.advance(600_000)
        await (await client.producer("orders")).send(b"6")
        assert (await consumer.receive()).value == b"6"
        await consumer.redeliver_unacknowledged()
        assert await memory.receive(consumer, 7) == [b"%d" % number for number in range(7)]
        await consumer.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_timed_out_transaction_gives_back_the_same_ids(memory: Stores, kind: str) -> None:
    """Behaviour 24: the coordinator aborts the transaction, and its acknowledged messages return with a higher
    redelivery count.
    """
    clock = memory.environment = VirtualEnvironment()
    async with memory.open() as client:
        consumer, received = await five(client, kind)
        txn = await begun(client, timeout_ms=5_000)
        await consumer.ack(received[0], received[3], txn=txn)
        await clock.advance(7_000)
        again = [await consumer.receive() for _ in range(2)]
        assert [(one.id, one.redelivery_count) for one in again] == [(received[0].id, 1), (received[3].id, 1)]
        await consumer.close()


async def test_after_a_reload(stores: Stores) -> None:
    """Behaviour 25: pending acks still conflict, committed ones remain, aborted ones are free; also by batch index."""
    async with stores.open() as client:
        consumer, received = await five(client)
        pending = await begun(client, outlives_client=True)
        await consumer.ack(received[0], received[2], txn=pending)
        async with client.transaction() as txn:
            await consumer.ack(received[3], txn=txn)
        async with client.transaction() as txn:
            await consumer.ack(received[1], received[4], txn=txn)
            await txn.abort()
    async with stores.open() as client:
        consumer = await joined(client)
        free = [await consumer.receive(timeout_ms=60_000) for _ in range(2)]
        assert [message.value for message in free] == [b"1", b"4"]
        for held in (received[0], received[2], received[3]):
            txn = await begun(client)
            with pytest.raises(TransactionConflict):
                await consumer.ack(held, txn=txn)
            await txn.abort()
        async with client.transaction() as txn:
            await consumer.ack(*free, txn=txn)
        await client.abort(pending.id)
        assert sorted(await stores.receive(consumer, 2)) == [b"0", b"2"]
        await consumer.close()
        assert await left(stores, client) == [b"0", b"2"]


async def test_acknowledging_while_cut_off(memory: Stores) -> None:
    """Behaviours 27 and 29: a clear error and a transaction that cannot commit; the next acknowledgment works."""
    memory.environment = VirtualEnvironment()
    async with memory.open() as client:
        consumer, received = await five(client)
        store: Any = client.host.metadata
        txn, good = await begun(client), await begun(client)
        store.cut()
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await consumer.ack(received[0], txn=txn)
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await consumer.ack(received[1])
        store.restore()
        with pytest.raises(TransactionHasFailedOperations):
            await txn.commit()
        await consumer.ack(received[2], txn=good)
        await consumer.ack(received[1])
        await good.commit()
        await consumer.close()
        for again in (consumer.ack, consumer.ack_cumulative, consumer.nack):
            with pytest.raises(Closed):
                await again(received[3])
        assert await left(memory, client) == [b"0", b"3", b"4"]


@pytest.mark.parametrize("passing", [True, False])
async def test_pending_acks_that_cannot_be_read(memory: Stores, monkeypatch: pytest.MonkeyPatch, passing: bool) -> None:
    """Behaviour 28: temporary read errors are retried until subscribing succeeds.

    Any other error is the cause of the failure.
    """
    async with memory.open(client={"retry_delay_ms": 1, "retries_max": 2}) as client:
        consumer, received = await five(client)
        await consumer.close()
        place = await client.host.subscription(received[0].topic, "billing", received[0].id.segment)
        recover, failures = place.pending_acks.recover, [1, 2]

        async def fail() -> Any:
            if failures:
                failures.pop()
                raise Unavailable("not now") if passing else NotFound("the record is gone")
            return await recover()

        monkeypatch.setattr(place.pending_acks, "recover", fail)
        if not passing:
            with pytest.raises(NotFound, match="the record is gone"):
                await joined(client)
            failures.clear()
        consumer = await joined(client)
        assert not failures
        assert await memory.receive(consumer, 5) == [message.value for message in received]
        await consumer.close()


async def test_the_status_of_a_message(stores: Stores) -> None:
    """Behaviour 30: not pending, pending in which transaction, or deleted; also by batch index and for an entry."""
    async with stores.open() as client, stores.open() as elsewhere:
        consumer, received = await five(client)

        async def states() -> list[AckStatus]:
            return [await elsewhere.ack_status("billing", message.id) for message in received]

        free, done = AckStatus(AckState.PENDING), AckStatus(AckState.DELETED)
        assert await states() == [free] * 5
        txn = await begun(client)
        held = AckStatus(AckState.PENDING_ACK, txn.id)
        await consumer.ack(received[0], received[3], txn=txn)
        await consumer.ack(received[1], received[4])
        assert await states() == [held, done, free, held, done]
        await txn.commit()
        assert await states() == [done, done, free, done, done]
        second = await begun(client)
        await consumer.ack_cumulative(received[2], txn=second)
        assert (await states())[2] == AckStatus(AckState.PENDING_ACK, second.id)
        await second.abort()
        assert (await states())[2] == free
        await consumer.ack(received[2])
        entry = MessageID(received[2].id.segment, received[2].id.position.entry)
        assert await elsewhere.ack_status("billing", entry) == done
        with pytest.raises(SubscriptionNotFound):
            await elsewhere.ack_status("shipping", entry)
        await consumer.close()
