"""Closing producers and consumers whose opening has not ended: their clients have given them up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gateway_world import MESSAGE_BYTES_MAX, Wire, World

from txnframework_pulsar.connection import Connection
from txnframework_pulsar.limits import Limits
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


async def test_end_of_a_connection_is_not_interrupted() -> None:
    """A gateway that stops waits for what a client that has left had open: its producers and consumers are closed."""
    ending, closed = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(lambda *streams: accepted.set_result(streams), "127.0.0.1", 0)
    accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    _, client = await asyncio.open_connection(*server.sockets[0].getsockname())
    connection = Connection(cast(Any, SimpleNamespace(limits=Limits(MESSAGE_BYTES_MAX))), *await accepted, lambda: None)

    async def close() -> None:
        ending.set()
        await asyncio.sleep(0)
        closed.set()

    connection._handles.close = close  # type: ignore[method-assign]
    serving = asyncio.ensure_future(connection.serve())
    client.close()
    await ending.wait()
    connection.stop()
    await serving
    assert closed.is_set()
    server.close()
