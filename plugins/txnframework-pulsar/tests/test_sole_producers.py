"""Producers with exclusive access: who is refused, who waits, who takes over, and who was replaced."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
from gateway_world import Wire, World

from txnframework_pulsar.wire import messages_pb2 as pb

TOPIC = "persistent://public/default/orders"


def opened(world: World) -> Wire:
    wire = world.wire()
    wire.greet()
    return wire


def produce(wire: Wire, mode: int, answer: str = "producer_success", **fields: Any) -> Any:
    return wire.request("producer", answer, topic=TOPIC, producer_id=1, producer_access_mode=mode, **fields)


def close(wire: Wire) -> None:
    wire.request("close_producer", "success", producer_id=1)


def test_exclusive_access(world: World) -> None:
    """An exclusive producer keeps others out, and is refused while the topic has another producer."""
    first, second = opened(world), opened(world)
    epoch = produce(first, pb.Producer.EXCLUSIVE).topic_epoch
    assert produce(second, pb.Producer.SHARED, "error").error == pb.PRODUCER_BUSY
    assert produce(second, pb.Producer.EXCLUSIVE, "error").error == pb.PRODUCER_FENCED
    close(first)
    assert not produce(second, pb.Producer.SHARED).HasField("topic_epoch")
    assert produce(first, pb.Producer.EXCLUSIVE, "error").error == pb.PRODUCER_FENCED
    close(second)
    assert produce(second, pb.Producer.EXCLUSIVE).topic_epoch > epoch


def test_waiting_for_exclusive_access(world: World) -> None:
    """In the order in which they asked; one that gives up is passed over."""
    wires = [opened(world) for _ in range(4)]
    produce(wires[0], pb.Producer.SHARED)
    for one in wires[1:]:
        waiting = produce(one, pb.Producer.WAIT_FOR_EXCLUSIVE)
        assert not waiting.producer_ready
        assert waiting.producer_name
    assert produce(opened(world), pb.Producer.SHARED, "error").error == pb.PRODUCER_BUSY
    close(wires[1])
    close(wires[0])
    ready = wires[2].answer("producer_success")
    assert ready.producer_ready
    close(wires[2])
    assert wires[3].answer("producer_success").topic_epoch > ready.topic_epoch


def test_taking_exclusive_access(world: World) -> None:
    """The producers that are there end, and the sole one among them cannot come back; also at another gateway."""
    first, second = opened(world), opened(world)
    epoch = produce(first, pb.Producer.EXCLUSIVE, producer_name="first").topic_epoch
    taken = produce(second, pb.Producer.EXCLUSIVE_WITH_FENCING, producer_name="second").topic_epoch
    assert first.answer("close_producer").producer_id == 1
    assert taken > epoch
    replaced = {"producer_name": "first", "topic_epoch": epoch, "epoch": 1}
    for mode in (pb.Producer.EXCLUSIVE, pb.Producer.WAIT_FOR_EXCLUSIVE, pb.Producer.EXCLUSIVE_WITH_FENCING):
        assert produce(first, mode, "error", **replaced).error == pb.PRODUCER_FENCED
    world.restart()
    third = opened(world)
    assert produce(third, pb.Producer.EXCLUSIVE, "error", **replaced).error == pb.PRODUCER_FENCED
    again = produce(third, pb.Producer.EXCLUSIVE, producer_name="second", topic_epoch=taken, epoch=1)
    assert again.topic_epoch == taken, "nobody else had access since"


@pytest.mark.parametrize("world", ["persistent"], indirect=True)
def test_a_topic_that_migrates_keeps_its_epoch(world: World) -> None:
    """A producer that was replaced before cannot come back after."""
    first, second = opened(world), opened(world)
    epoch = produce(first, pb.Producer.EXCLUSIVE, producer_name="first").topic_epoch
    taken = produce(second, pb.Producer.EXCLUSIVE_WITH_FENCING, producer_name="second").topic_epoch
    close(second)
    world.migrate("orders")
    replaced = {"producer_name": "first", "topic_epoch": epoch, "epoch": 1}
    assert produce(opened(world), pb.Producer.EXCLUSIVE, "error", **replaced).error == pb.PRODUCER_FENCED
    again = produce(second, pb.Producer.EXCLUSIVE, producer_name="second", topic_epoch=taken, epoch=1)
    assert again.topic_epoch == taken


def test_another_life_of_the_topic(world: World) -> None:
    wire = opened(world)
    epoch = produce(wire, pb.Producer.EXCLUSIVE).topic_epoch
    close(wire)
    world.run(world.client.delete_topic(world.topic("orders")))
    assert produce(wire, pb.Producer.EXCLUSIVE).topic_epoch == epoch


def test_one_that_waits_when_its_connection_ends(world: World) -> None:
    first, second, third = (opened(world) for _ in range(3))
    produce(first, pb.Producer.EXCLUSIVE)
    for one in (second, third):
        assert not produce(one, pb.Producer.WAIT_FOR_EXCLUSIVE).producer_ready
    second.shut()
    assert second.read() is None
    close(first)
    assert third.answer("producer_success").producer_ready


def test_the_client_for_python(world: World) -> None:
    client, other = world.connect(), world.connect()
    exclusive = {"access_mode": pulsar.ProducerAccessMode.Exclusive}
    first = client.create_producer(TOPIC, **exclusive)
    first.send(b"a")
    with pytest.raises(pulsar.ProducerFenced):
        other.create_producer(TOPIC, **exclusive)
    fencing = other.create_producer(TOPIC, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)
    fencing.send(b"b")
    with pytest.raises(pulsar.PulsarException):
        first.send(b"never")
    reader = other.create_reader(TOPIC, pulsar.MessageId.earliest)
    assert [reader.read_next(60_000).data() for _ in range(2)] == [b"a", b"b"]
    assert not reader.has_message_available()
