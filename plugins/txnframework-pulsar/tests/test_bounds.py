"""What a client cannot do to the gateway: keep its memory, or see and end what is another user's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from gateway_world import MESSAGE_BYTES_MAX, NOTHING_MS, Wire, World

from txnframework.client import Consumer
from txnframework_pulsar.consumers import IDS_AT_ONCE
from txnframework_pulsar.limits import Limits
from txnframework_pulsar.wire import messages_pb2 as pb

TOPIC = "persistent://public/default/orders"
TOKENS = ("the token of the first", "the token of the second")


def opened(world: World, **connect: Any) -> Wire:
    wire = world.wire()
    wire.send(pb.Command(connect=pb.Connect(client_version="test", protocol_version=19, **connect)))
    wire.answer("connected")
    return wire


def subscribe(wire: Wire) -> None:
    wire.request("subscribe", "success", topic=TOPIC, subscription="s", consumer_id=1, sub_type=pb.Subscribe.SHARED)


def test_acknowledgments_in_flight_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is reached the connection is not read; then it goes on."""
    gate = threading.Event()

    async def held(*_: object, **__: object) -> None:
        await asyncio.to_thread(gate.wait)

    with World("topic", limits=Limits(MESSAGE_BYTES_MAX, acks_in_flight_max=2)) as world:
        wire = opened(world)
        subscribe(wire)
        monkeypatch.setattr(Consumer, "ack", held)
        try:
            for number in range(3):
                command = pb.Ack(consumer_id=1, ack_type=pb.Ack.INDIVIDUAL, request_id=100 + number)
                command.message_id.add(ledger_id=0, entry_id=number)
                wire.send(pb.Command(ack=command))
            wire.send(pb.Command(ping=pb.Ping()))
            assert wire.is_silent(NOTHING_MS)
        finally:
            gate.set()
        assert wire.answer("pong") is not None


@pytest.mark.parametrize("command", ["ack", "redeliver_unacknowledged_messages"])
def test_a_frame_of_many_ids_is_handled_in_parts(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Others are served between the parts, and the client gets one answer."""
    parts: list[int] = []

    async def counted(self: Consumer, *messages: object, **_: object) -> None:
        parts.append(len(messages))

    monkeypatch.setattr(Consumer, "ack", counted)
    monkeypatch.setattr(Consumer, "nack", counted)
    with World("topic") as world:
        wire = opened(world)
        subscribe(wire)
        ids = [pb.MessageId(ledger_id=0, entry_id=one) for one in range(2 * IDS_AT_ONCE + 1)]
        if command == "ack":
            wire.send(pb.Command(ack=pb.Ack(consumer_id=1, message_id=ids, request_id=7)))
            assert not wire.answer("ack_response").HasField("error")
        else:
            again = pb.RedeliverUnacknowledged(consumer_id=1, message_ids=ids)
            wire.send(pb.Command(redeliver_unacknowledged_messages=again))
            world.run(until(lambda: sum(parts) == len(ids)))
    assert parts == [IDS_AT_ONCE, IDS_AT_ONCE, 1]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)


def test_a_client_that_does_not_read_is_given_up() -> None:
    """It wrote its last command, and does not read what was written to it."""
    with World("topic", limits=Limits(MESSAGE_BYTES_MAX, leaving_s=0.1)) as world:
        sender = world.connect().create_producer(TOPIC)
        wire = opened(world)
        subscribe(wire)
        for _ in range(40):
            sender.send(b"x" * 500_000)
        wire.send(pb.Command(flow=pb.Flow(consumer_id=1, message_permits=1_000)))
        wire.message()

        async def others_end() -> None:
            named = [one for one in asyncio.all_tasks() if "connected" in repr(one.get_coro())]
            assert len(named) == 2
            await asyncio.wait(named, return_when=asyncio.FIRST_COMPLETED)

        wire.shut()
        world.run(others_end())


def test_a_transaction_belongs_to_its_user() -> None:
    with World("topic", tokens=TOKENS) as world:
        first, second, again = (
            opened(world, auth_method_name="token", auth_data=token.encode()) for token in (*TOKENS, TOKENS[0])
        )
        begun = first.request("new_txn", "new_txn_response", timeout_ms=60_000)
        named = {"txnid_most_bits": begun.txnid_most_bits, "txnid_least_bits": begun.txnid_least_bits}
        for request in ("end_txn", "add_partition_to_txn", "add_subscription_to_txn"):
            refused = second.request(request, f"{request}_response", **named)
            assert refused.error == pb.TRANSACTION_NOT_FOUND
        assert not again.request("end_txn", "end_txn_response", **named).HasField("error")


def test_a_failover_consumer_is_told_whether_it_is_active(world: World) -> None:
    """Before there is any message, and when the active one leaves; lower priority numbers come first."""
    wires = [opened(world) for _ in range(3)]
    for number, wire in enumerate(wires):
        wire.request(
            "subscribe",
            "success",
            topic=TOPIC,
            subscription="s",
            consumer_id=1,
            sub_type=pb.Subscribe.FAILOVER,
            priority_level=[1, 2, 0][number],
        )
        assert wire.answer("active_consumer_change").is_active == (number == 0)
    for leaving, next_one in ((0, 2), (2, 1)):
        wires[leaving].request("close_consumer", "success", consumer_id=1)
        assert wires[next_one].answer("active_consumer_change").is_active


def test_clients_that_do_not_connect_keep_no_others_out() -> None:
    """There are more of them than the gateway has connections; one that has connected stays."""
    with World("topic", limits=Limits(MESSAGE_BYTES_MAX, connections_max=3)) as world:
        first = opened(world)
        silent = [world.wire() for _ in range(20)]
        latest = opened(world)
        for one in silent[:-1]:
            assert one.read() is None
        for wire in (first, latest):
            wire.send(pb.Command(ping=pb.Ping()))
            assert wire.answer("pong") is not None


def test_connections_are_refused_if_all_are_in_use() -> None:
    with World("topic", limits=Limits(MESSAGE_BYTES_MAX, connections_max=2)) as world:
        first, second = opened(world), opened(world)
        assert world.wire().read() is None
        for wire in (first, second):
            wire.send(pb.Command(ping=pb.Ping()))
            assert wire.answer("pong") is not None
