"""Answers to sends: their order, and what clients make of their codes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pulsar
import pytest
from gateway_world import PATIENCE_MS, World

from txnframework.client import MessageID, Producer
from txnframework.errors import (
    Closed,
    InvalidInput,
    InvalidTransactionState,
    TransactionConflict,
    TransactionNotFound,
    TxnFrameworkError,
    Unavailable,
)
from txnframework.model.ids import TxnID
from txnframework.model.positions import Position
from txnframework.model.transactions import State
from txnframework_pulsar.faults import Refused
from txnframework_pulsar.limits import Limits
from txnframework_pulsar.peer import Peer
from txnframework_pulsar.producers import ProducerHandle, refusal
from txnframework_pulsar.topic_producers import OpenedProducer, TopicProducers
from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.batches import BadMessage, Outgoing, runs
from txnframework_pulsar.wire.frames import message_frame

STORED = MessageID("segment://public/default/orders/0000-7fff-3", Position(0, 0, 0))


class Written(Peer):
    """A client that keeps what is written to it."""

    def __init__(self) -> None:
        self.commands: list[pb.Command] = []
        self.leave_producer = None

    def write(self, command: pb.Command) -> None:
        self.commands.append(command)


class Held:
    """A producer whose sends end when the test says so: the segments of a topic are not equally fast."""

    topic = "orders"

    def __init__(self) -> None:
        self.sends: list[asyncio.Future[MessageID]] = []

    async def send_many(self, *_: object, **__: object) -> tuple[MessageID, ...]:
        found: asyncio.Future[MessageID] = asyncio.get_running_loop().create_future()
        self.sends.append(found)
        return (await found,)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def described(answer: pb.Command) -> tuple[str, int]:
    kind = "send_receipt" if answer.HasField("send_receipt") else "send_error"
    return kind, getattr(answer, kind).sequence_id


async def test_answers_keep_the_order_of_the_sends() -> None:
    """Also those of refused messages; room is made when the answer is written, and not earlier."""
    held, peer, done = Held(), Written(), list[int]()
    written = peer.commands
    handle = ProducerHandle(cast("Producer[Any]", held), 1, Limits(1_000), peer)
    metadata = pb.MessageMetadata(producer_name="p", publish_time=1)
    for number in range(3):
        command = pb.Send(producer_id=1, sequence_id=number)
        handle.send(command, metadata, b"a", None, lambda number=number: done.append(number))
    handle.refuse(pb.Send(producer_id=1, sequence_id=3, highest_sequence_id=7), BadMessage("x"), lambda: done.append(3))
    await settled()
    held.sends[2].set_result(STORED)
    held.sends[1].set_exception(InvalidInput("x"))
    await settled()
    assert (written, done) == ([], [])
    held.sends[0].set_result(STORED)
    await settled()
    assert [described(one) for one in written] == [
        ("send_receipt", 0),
        ("send_error", 1),
        ("send_receipt", 2),
        ("send_error", 7),
    ]
    assert done == [0, 1, 2, 3]


async def test_a_failure_that_passes_ends_the_producer() -> None:
    """Earlier messages are confirmed; the client sends the failed one again, and so it does with all later ones."""
    held, peer, done, left = Held(), Written(), list[int](), list[int]()
    peer.leave_producer = left.append
    handle = ProducerHandle(cast("Producer[Any]", held), 1, Limits(1_000), peer)
    metadata = pb.MessageMetadata(producer_name="p", publish_time=1)
    for number in range(3):
        command = pb.Send(producer_id=1, sequence_id=number)
        handle.send(command, metadata, b"a", None, lambda number=number: done.append(number))
    await settled()
    held.sends[0].set_result(STORED)
    held.sends[1].set_exception(Unavailable("x"))
    held.sends[2].set_exception(Closed("x"))
    await settled()
    receipt, close = peer.commands
    assert described(receipt) == ("send_receipt", 0)
    assert close.close_producer.producer_id == 1
    assert (left, done) == ([1], [0, 1, 2])
    with pytest.raises(Refused):
        handle.send(pb.Send(producer_id=1, sequence_id=3), metadata, b"a", None, list)
    handle.refuse(pb.Send(producer_id=1, sequence_id=3), Unavailable("x"), lambda: done.append(3))
    assert (len(peer.commands), done) == (2, [0, 1, 2, 3])


def test_messages_of_a_batch_are_stored_together() -> None:
    """Unless something else than their contents differs, or a sequence id is left out."""

    def message(sequence_id: int, key: bytes | None = None, delay: int | None = None, **headers: bytes) -> Outgoing:
        return Outgoing(b"%d" % sequence_id, key, headers, sequence_id, delay)

    groups = [
        [message(1), message(2), message(3)],
        [message(5)],
        [message(6, b"k"), message(7, b"k")],
        [message(8, b"l")],
        [message(9, b"l", 1)],
        [message(10, b"l", 1, h=b"1"), message(11, b"l", 1, h=b"1")],
        [message(12, b"l", 1, h=b"2")],
    ]
    assert list(runs(one for group in groups for one in group)) == groups
    assert list(runs([])) == []


def test_batch_over_several_segments(scalable: World) -> None:
    """Messages of some keys, and of none, are each delivered once, in the order of their key."""
    topic = scalable.topic("orders")
    scalable.run(scalable.client.create_topic(topic, segments=4))
    pulsar_topic = "persistent://public/default/orders"
    client = scalable.connect()
    producer = client.create_producer(
        pulsar_topic, batching_enabled=True, batching_type=pulsar.BatchingType.Default, batching_max_publish_delay_ms=50
    )
    sent: dict[str | None, list[bytes]] = {}
    for number in range(200):
        key = (None, "a", "b", "c")[number // 10 % 4]
        content = b"%d" % number
        sent.setdefault(key, []).append(content)
        producer.send_async(content, None, **({} if key is None else {"partition_key": key}))
    producer.flush()
    reader = client.create_reader(pulsar_topic, pulsar.MessageId.earliest)
    found: dict[str | None, list[bytes]] = {}
    for _ in range(200):
        message = reader.read_next(PATIENCE_MS)
        found.setdefault(message.partition_key() or None, []).append(message.data())
    assert sorted(found.pop(None)) == sorted(sent.pop(None))
    assert found == sent


def test_messages_keep_their_order_after_a_failure(world: World) -> None:
    """The client sends several messages at once, and the store refuses the first one for a while."""
    topic = "persistent://public/default/orders"
    producer = world.connect().create_producer(topic, batching_enabled=False)
    producer.send(b"0")
    (gateway,) = world.gateways

    async def fail_once() -> None:
        layout = await gateway.layout(world.topic("orders"))
        opened: Any = await gateway.host.segment(str(layout.name_of(0)))
        real, failed = opened.buffer, list[Any]()

        class Failing:
            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

            async def append(self, entries: Any) -> Any:
                if len(failed) <= gateway.host.config.client.retries_max:
                    failed.append(entries)
                    raise Unavailable("the store is away")
                return await real.append(entries)

        object.__setattr__(opened, "buffer", Failing())

    world.run(fail_once())
    for number in range(1, 20):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    reader = world.connect().create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(PATIENCE_MS).data() for _ in range(20)] == [b"%d" % one for one in range(20)]
    assert not reader.has_message_available()


def test_a_refusal_waits_for_earlier_messages(scalable: World) -> None:
    wire = scalable.wire()
    wire.greet()
    wire.request("producer", "producer_success", topic="persistent://public/default/a", producer_id=1)
    frames = b""
    for number in range(5):
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        frames += message_frame(pb.Command(send=pb.Send(producer_id=1, sequence_id=number)), metadata, b"abc")
    wire.write(frames[:-1] + b"d")
    answers = []
    while len(answers) < 5:
        frame = wire.read()
        assert frame is not None
        answers.append(described(frame.command))
    assert wire.answer("close_producer").producer_id == 1, "the client sends all that follows again"
    assert answers == [*(("send_receipt", number) for number in range(4)), ("send_error", 4)]


@pytest.mark.parametrize(
    "error",
    [
        TransactionNotFound(TxnID(0, 1)),
        TransactionConflict(TxnID(0, 1), "x"),
        InvalidTransactionState(TxnID(0, 1), State.ABORTED, "x"),
    ],
)
def test_final_errors_of_a_transaction(error: TxnFrameworkError) -> None:
    """Outside of a transaction a conflict passes, when the transaction that holds the other copy ends."""
    inside = refusal(pb.Send(producer_id=1, sequence_id=0, txnid_least_bits=1), error)
    outside = refusal(pb.Send(producer_id=1, sequence_id=0), error)
    assert inside.send_error.error == pb.NOT_ALLOWED_ERROR
    assert outside.send_error.error != pb.NOT_ALLOWED_ERROR


def test_an_error_that_passes_is_sent_again() -> None:
    refused = refusal(pb.Send(producer_id=1, sequence_id=0, txnid_least_bits=1), Unavailable("x"))
    assert refused.send_error.error == pb.SERVICE_NOT_READY


@pytest.mark.parametrize("domain", ["topic", "persistent"])
def test_a_refused_quota_is_the_error_of_a_send(domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reports it, and its producer is opened again when there is room, and not in a loop before."""
    opened = list[str]()
    real = TopicProducers.open

    async def counted(self: TopicProducers, command: pb.Producer, *others: Any) -> OpenedProducer:
        found = await real(self, command, *others)
        opened.append(command.topic)
        return found

    monkeypatch.setattr(TopicProducers, "open", counted)
    with World(domain, backlog_quota={"messages": 2, "interval_ms": 1}) as world:
        name, topic = "persistent://public/default/orders", world.topic("orders")
        client = world.connect()
        producer = client.create_producer(name, batching_enabled=False, send_timeout_millis=PATIENCE_MS)
        world.run(world.client.subscribe(topic, "billing", start="earliest"))
        sent = list[bytes]()

        def send_all() -> None:
            while True:  # a measurement is relied on for a millisecond, so a third message may be stored
                producer.send(b"%d" % len(sent))
                sent.append(b"%d" % len(sent))

        with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
            send_all()
        assert len(sent) >= 2
        with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
            client.create_producer(name)
        assert len(opened) == 1
        world.run(world.client.seek(topic, "billing", "latest"))
        while True:
            try:
                producer.send(b"last")
                break
            except pulsar.ProducerBlockedQuotaExceededException:
                pass  # the answer to an attempt that began before there was room
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        expected = [*sent, b"last"]
        assert [reader.read_next(PATIENCE_MS).data() for _ in expected] == expected
        assert len(opened) == 2
