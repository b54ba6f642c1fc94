"""Closing producers and consumers whose opening has not ended: their clients have given them up."""

from __future__ import annotations

import pytest
from gateway_world import Wire, World

from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.frames import command_frame

TOPIC = "persistent://public/default/orders"


def opened(world: World) -> Wire:
    wire = world.wire()
    wire.greet()
    return wire


def answered(wire: Wire, request: int) -> str:
    """Return the kind of the answer to a request."""
    while True:
        frame = wire.read()
        assert frame is not None
        for field, value in frame.command.ListFields():
            if field.name != "type" and getattr(value, "request_id", None) == request:
                return field.name


def test_a_producer_is_closed_while_it_is_opened(world: World) -> None:
    """Its name is free at once, on this connection and on others."""
    wire = opened(world)
    named = {"topic": TOPIC, "producer_name": "shop", "producer_id": 1, "user_provided_producer_name": True}
    opening = pb.Command(producer=pb.Producer(request_id=101, **named))
    closing = pb.Command(close_producer=pb.CloseProducer(request_id=102, producer_id=1))
    wire.write(command_frame(opening) + command_frame(closing))
    assert answered(wire, 102) == "success"
    for number, one in ((103, wire), (104, opened(world))):
        one.send(pb.Command(producer=pb.Producer(request_id=number, **named)))
        assert answered(one, number) == "producer_success"
        one.send(pb.Command(close_producer=pb.CloseProducer(request_id=number + 10, producer_id=1)))
        assert answered(one, number + 10) == "success"


@pytest.mark.parametrize("durable", [True, False])
def test_a_consumer_is_closed_while_it_is_opened(world: World, durable: bool) -> None:
    """Another one can have the subscription at once."""
    wire = opened(world)
    named = {"topic": TOPIC, "subscription": "s", "consumer_id": 1, "sub_type": pb.Subscribe.EXCLUSIVE}
    opening = pb.Command(subscribe=pb.Subscribe(request_id=101, durable=durable, **named))
    closing = pb.Command(close_consumer=pb.CloseConsumer(request_id=102, consumer_id=1))
    wire.write(command_frame(opening) + command_frame(closing))
    assert answered(wire, 102) == "success"
    for number, one in ((103, wire), (104, opened(world))):
        one.send(pb.Command(subscribe=pb.Subscribe(request_id=number, durable=durable, **named)))
        assert answered(one, number) == "success"
        one.send(pb.Command(close_consumer=pb.CloseConsumer(request_id=number + 10, consumer_id=1)))
        assert answered(one, number + 10) == "success"
