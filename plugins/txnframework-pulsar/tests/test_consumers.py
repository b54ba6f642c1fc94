"""What consumers get and acknowledge, in commands that Pulsar's client for Python does not write."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, cast

import pytest
from gateway_world import Wire, World

from txnframework.model.names import TopicName
from txnframework_pulsar.consumers import ConsumerHandle
from txnframework_pulsar.peer import Peer
from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.batches import METADATA_HEADER
from txnframework_pulsar.wire.frames import payload_of

TOPIC = "persistent://public/default/orders"
SUBSCRIPTION = {
    "topic": TOPIC,
    "subscription": "s",
    "consumer_id": 1,
    "sub_type": pb.Subscribe.EXCLUSIVE,
    "initial_position": pb.Subscribe.EARLIEST,
}


def opened(world: World) -> Wire:
    wire = world.wire()
    wire.greet()
    return wire


def subscribe(wire: Wire, **options: object) -> None:
    wire.request("subscribe", "success", **{**SUBSCRIPTION, **options})
    wire.send(pb.Command(flow=pb.Flow(consumer_id=1, message_permits=100)))


def contents(wire: Wire, count: int) -> list[tuple[bytes, pb.MessageId]]:
    frames = [wire.message() for _ in range(count)]
    return [(payload_of(one.rest)[1], one.command.message.message_id) for one in frames]


def send_encrypted_batches(wire: Wire, count: int) -> None:
    """Send batches of two messages that the gateway cannot divide."""
    wire.request("producer", "producer_success", topic=TOPIC, producer_id=1)
    for number in range(count):
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=2 * number, publish_time=1, num_messages_in_batch=2
        )
        metadata.encryption_keys.add(key="k", value=b"v")
        send = pb.Send(producer_id=1, sequence_id=2 * number, highest_sequence_id=2 * number + 1, num_messages=2)
        wire.send_message(send, metadata, b"%d" % number)
        wire.answer("send_receipt")


def acknowledge_part(wire: Wire, message: pb.MessageId, **txn: int) -> pb.AckResponse:
    """Acknowledge cumulatively up to the first message of a batch of two."""
    command = pb.Ack(consumer_id=1, ack_type=pb.Ack.CUMULATIVE, request_id=1_000, **txn)
    part = command.message_id.add()
    part.CopyFrom(message)
    part.ack_set.append(0b10)
    wire.send(pb.Command(ack=command))
    answer: pb.AckResponse = wire.answer("ack_response")
    return answer


def test_a_part_of_an_encrypted_batch_is_not_the_whole(world: World) -> None:
    """A cumulative acknowledgment covers what came before the batch, and the batch comes again."""
    wire = opened(world)
    send_encrypted_batches(wire, 3)
    subscribe(wire)
    given = contents(wire, 3)
    assert not acknowledge_part(wire, given[1][1]).HasField("error")
    wire.request("close_consumer", "success", consumer_id=1)
    subscribe(wire)
    again = contents(wire, 2)
    assert again == given[1:]
    assert not acknowledge_part(wire, again[0][1]).HasField("error"), "there is nothing before it"


def test_a_transaction_acknowledges_an_encrypted_batch_as_a_whole(world: World) -> None:
    wire = opened(world)
    send_encrypted_batches(wire, 1)
    subscribe(wire)
    ((_, message),) = contents(wire, 1)
    begun = wire.request("new_txn", "new_txn_response", timeout_ms=60_000, tc_id=0)
    txn = {"txnid_most_bits": begun.txnid_most_bits, "txnid_least_bits": begun.txnid_least_bits}
    assert acknowledge_part(wire, message, **txn).error == pb.NOT_ALLOWED_ERROR


def test_messages_have_the_epoch_of_their_consumer(world: World) -> None:
    """Also 0: a client drops messages that were on their way to it when it asked for all of them again."""
    wire = opened(world)
    send_encrypted_batches(wire, 1)

    def epoch() -> int | None:
        command = wire.message().command.message
        return command.consumer_epoch if command.HasField("consumer_epoch") else None

    subscribe(wire, consumer_epoch=0)
    assert epoch() == 0
    again = pb.RedeliverUnacknowledged(consumer_id=1, consumer_epoch=1)
    wire.send(pb.Command(redeliver_unacknowledged_messages=again))
    assert epoch() == 1
    wire.request("close_consumer", "success", consumer_id=1)
    subscribe(wire)
    assert epoch() is None


@pytest.mark.parametrize("durable", [True, False])
def test_a_consumer_that_fails_is_closed(world: World, durable: bool) -> None:
    """The client gets the error and does not hang. Here, another program has written a header of the gateway."""

    async def send() -> None:
        await world.client.create_topic(world.topic("orders"), exist_ok=True)
        async with await world.client.producer(world.topic("orders")) as producer:
            await producer.send(b"a", headers={METADATA_HEADER: b"\xff"})

    world.run(send())
    wire = opened(world)
    subscribe(wire, durable=durable)
    assert wire.answer("close_consumer").consumer_id == 1


class Broken:
    """The broker side of a consumer: receiving raises an unexpected error, and writes are recorded."""

    subscription = "s"

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.ended = asyncio.Event()

    def resolve(self, given: pb.MessageId) -> None:
        raise ValueError(given.entry_id)

    def write(self, command: pb.Command) -> None:
        self.answers.append(command.ack_response.error)

    def end_consumer(self, consumer_id: int) -> None:
        self.ended.set()


@pytest.mark.parametrize("request_id", [None, 5])
async def test_an_acknowledgment_that_fails_ends_the_consumer(request_id: int | None) -> None:
    """Each acknowledgment that waits for an answer gets one."""
    broken: Any = Broken()
    handle = ConsumerHandle(
        cast(Peer, broken), broken, broken, cast(TopicName, None), pb.Subscribe(consumer_id=1), broken
    )
    done: list[int] = []
    for number in range(2):
        command = pb.Ack(consumer_id=1, ack_type=pb.Ack.INDIVIDUAL, request_id=request_id)
        command.message_id.add(ledger_id=1, entry_id=1)
        handle.acknowledge(command, None, functools.partial(done.append, number))
    async with asyncio.timeout(60):
        await broken.ended.wait()
    assert broken.answers == ([] if request_id is None else [pb.UNKNOWN_ERROR] * 2)
    assert done == [0, 1]
