"""Frames and batches as bytes, damaged and whole, alone and at the gateway."""

from __future__ import annotations

import random
import struct
import tracemalloc

import google_crc32c
import pulsar
import pytest
from gateway_world import MESSAGE_BYTES_MAX, World

from txnframework.client import MessageID
from txnframework.errors import InvalidInput
from txnframework.model.ids import TxnID
from txnframework.model.positions import Position
from txnframework_pulsar.ids import place_of, pulsar_id, txn_bits, txn_of
from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.batches import BATCH_MESSAGES_MAX, MESSAGE_BYTES, BadMessage, held_bytes, unpack
from txnframework_pulsar.wire.frames import (
    BadChecksum,
    BadFrame,
    command_frame,
    message_frame,
    parse_frame,
    payload_of,
    size_of,
)

PING = pb.Command(ping=pb.Ping())
SEGMENT = "segment://public/default/orders/0000-7fff-3"


def batch_of(*messages: tuple[dict[str, object], bytes]) -> bytes:
    found = b""
    for fields, payload in messages:
        described = pb.SingleMessageMetadata(payload_size=len(payload), **fields).SerializeToString()
        found += struct.pack(">I", len(described)) + described + payload
    return found


def test_a_frame_is_read_as_it_was_written() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=3, publish_time=9)
    written = message_frame(pb.Command(send=pb.Send(producer_id=1, sequence_id=3)), metadata, b"abc")
    assert size_of(written[:4], 1_000) == len(written) - 4
    frame = parse_frame(written[4:])
    assert (frame.command.type, frame.command.send.sequence_id) == (6, 3)
    assert payload_of(frame.rest) == (metadata, b"abc")


def test_the_checksum_is_that_of_the_protocol() -> None:
    """CRC32C of what follows it, behind a magic number; a message without a checksum is accepted too."""
    rest = struct.pack(">I", 0) + b"abc"
    checked = struct.pack(">HI", 0x0E01, google_crc32c.value(rest)) + rest
    assert payload_of(memoryview(checked))[1] == payload_of(memoryview(rest))[1] == b"abc"
    with pytest.raises(BadChecksum):
        payload_of(memoryview(checked[:-1] + b"d"))


@pytest.mark.parametrize("size", [0, 3, 1_001, 2**32 - 1])
def test_sizes_have_bounds(size: int) -> None:
    with pytest.raises(BadFrame):
        size_of(struct.pack(">I", size), 1_000)


@pytest.mark.parametrize("body", [b"\0\0\0\xff", b"\0\0\0\1\xff", struct.pack(">I", 2**32 - 1) + b"a"])
def test_bodies_that_are_no_commands(body: bytes) -> None:
    with pytest.raises(BadFrame):
        parse_frame(body)


def test_a_batch_is_divided() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=7, num_messages_in_batch=3, schema_version=b"v")
    payload = batch_of(
        ({"partition_key": "k", "event_time": 5}, b"a"),
        ({"partition_key": "/w==", "partition_key_b64_encoded": True, "sequence_id": 20}, b""),
        ({"null_value": True}, b""),
    )
    first, second, third = unpack(metadata, payload, 1_000)
    assert (first.value, first.key, first.sequence_id) == (b"a", b"k", 7)
    assert (second.value, second.key, second.sequence_id) == (b"", b"\xff", 20)
    assert (third.value, third.key, third.sequence_id) == (None, None, 9)


@pytest.mark.parametrize(
    ("fields", "payload"),
    [
        ({"num_messages_in_batch": 0}, b""),
        ({"num_messages_in_batch": -1}, b""),
        ({"num_messages_in_batch": 2}, batch_of(({}, b"a"))),
        ({"num_messages_in_batch": 1}, struct.pack(">I", 2**32 - 1)),
        ({"num_messages_in_batch": 1}, batch_of(({}, b"abc"))[:-1]),
        ({"num_messages_in_batch": 1, "compression": pb.LZ4, "uncompressed_size": 2**32 - 1}, b"a"),
        ({"num_messages_in_batch": 1, "compression": pb.LZ4, "uncompressed_size": 100}, b"abc"),
        ({"num_messages_in_batch": 1, "compression": pb.ZLIB, "uncompressed_size": 100}, b"abc"),
        ({"num_messages_in_batch": 1, "compression": pb.ZSTD, "uncompressed_size": 100}, b"abc"),
        ({"num_messages_in_batch": 1, "compression": pb.SNAPPY, "uncompressed_size": 100}, b"abc"),
        ({"num_chunks_from_msg": 2}, b"a"),
        ({"partition_key": "?", "partition_key_b64_encoded": True}, b"a"),
        ({"properties": [pb.KeyValue(key="txnframework-pulsar-metadata", value="")]}, b"a"),
    ],
)
def test_messages_that_are_refused(fields: dict[str, object], payload: bytes) -> None:
    with pytest.raises(BadMessage):
        unpack(pb.MessageMetadata(**fields), payload, 1_000)


def test_a_batch_has_a_bounded_number_of_messages() -> None:
    """A message of a batch may have 6 bytes, and takes far more when it is divided."""
    one = batch_of(({}, b""))
    most = pb.MessageMetadata(num_messages_in_batch=BATCH_MESSAGES_MAX)
    assert len(unpack(most, one * BATCH_MESSAGES_MAX, 1_000)) == BATCH_MESSAGES_MAX
    more = pb.MessageMetadata(num_messages_in_batch=BATCH_MESSAGES_MAX + 1)
    with pytest.raises(BadMessage, match="a batch has 1 to 10000"):
        unpack(more, one * (BATCH_MESSAGES_MAX + 1), 1_000)


@pytest.mark.parametrize(
    ("fields", "messages", "more_bytes"),
    [
        ({}, 1, 0),
        ({"compression": pb.ZSTD, "uncompressed_size": 900}, 1, 0),
        ({"num_messages_in_batch": 5}, 5, 0),
        ({"num_messages_in_batch": 5, "compression": pb.ZSTD, "uncompressed_size": 900}, 5, 900),
        ({"num_messages_in_batch": 5, "compression": pb.ZSTD, "uncompressed_size": 2**32 - 1}, 5, 0),
        ({"num_messages_in_batch": 2**31 - 1}, BATCH_MESSAGES_MAX, 0),
        ({"num_messages_in_batch": -1}, 1, 0),
    ],
)
def test_what_a_payload_takes_in_memory(fields: dict[str, object], messages: int, more_bytes: int) -> None:
    """A batch is decompressed and divided, a single message is not; numbers that are refused do not count."""
    held = held_bytes(pb.MessageMetadata(**fields), b"abc", 1_000)
    assert held == 3 + more_bytes + messages * MESSAGE_BYTES


@pytest.mark.parametrize("position", [Position(0, 0, 0), Position(2**40 - 1, 2**43 - 1, 2**20 - 1), Position(5, 7, 9)])
def test_an_id_says_everything(position: Position) -> None:
    given = pulsar_id(MessageID(SEGMENT, position))
    assert given is not None
    assert max(given.ledger_id, given.entry_id) < 2**63
    place = place_of(given)
    assert not isinstance(place, str)
    assert (place.segment_id, place.position) == (3, position)


def test_ids_that_do_not_fit() -> None:
    for position in (Position(2**40, 0, 0), Position(0, 2**43, 0), Position(0, 0, 2**20)):
        assert pulsar_id(MessageID(SEGMENT, position)) is None
    with pytest.raises(InvalidInput):
        txn_bits(TxnID(1, 2**47))


def test_the_ends_have_ids() -> None:
    assert place_of(pb.MessageId(ledger_id=2**64 - 1, entry_id=2**64 - 1)) == "earliest"
    assert place_of(pb.MessageId(ledger_id=2**63 - 1, entry_id=2**63 - 1)) == "latest"


@pytest.mark.parametrize("txn_id", [TxnID(0, 0), TxnID(0xFFFF, 2**47 - 1), TxnID(0x8001, 5)])
def test_a_transaction_id_says_everything(txn_id: TxnID) -> None:
    most, least = txn_bits(txn_id)
    assert txn_of(most, least) == txn_id
    assert least < 2**63, "not negative in Java"


# -- at the gateway ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (struct.pack(">I", 2**32 - 1), "a frame has 4 to"),
        (struct.pack(">I", 65_537), "a frame has 4 to 65536 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame has 4 to"),
        (b"\0\0\0\5\0\0\0\1\xff", "not a protobuf message"),
        (command_frame(PING), "the first command is not CONNECT"),
        (command_frame(pb.Command(connect=pb.Connect(proxy_to_broker_url="a:1"))), "does not act as a proxy"),
    ],
)
def test_a_stranger_is_told_what_was_wrong(scalable: World, written: bytes, reason: str) -> None:
    wire = scalable.wire()
    wire.write(written)
    frame = wire.read()
    assert frame is not None
    assert reason in frame.command.error.message
    assert wire.read() is None, "the connection is closed"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (struct.pack(">I", MESSAGE_BYTES_MAX + 20_000), "a frame has 4 to"),
        (b"\0\0\0\5\0\0\0\2\xff", "does not fit"),
        (b"\0\0\0\6\0\0\0\2\x08\x7f", "command 127"),
        (command_frame(pb.Command(connected=pb.Connected())), "command 3"),
    ],
)
def test_a_client_that_loses_its_way_is_told(scalable: World, written: bytes, reason: str) -> None:
    wire = scalable.wire()
    wire.greet()
    wire.write(written)
    frame = wire.read()
    assert frame is not None
    assert reason in frame.command.error.message
    assert wire.read() is None, "the connection is closed"


def test_a_damaged_message_is_refused_alone(scalable: World) -> None:
    """The client opens the producer again, and sends everything from there; the connection goes on."""
    wire = scalable.wire()
    wire.greet()
    opening = {"topic": "persistent://public/default/a", "producer_id": 1}
    name = wire.request("producer", "producer_success", **opening).producer_name
    send = pb.Send(producer_id=1, sequence_id=0)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    frame = message_frame(pb.Command(send=send), metadata, b"abc")
    wire.write(frame[:-1] + b"d")
    assert wire.answer("send_error").error == pb.CHECKSUM_ERROR
    assert wire.answer("close_producer").producer_id == 1
    wire.request(
        "producer", "producer_success", **opening, producer_name=name, epoch=1, user_provided_producer_name=False
    )
    wire.write(frame)
    assert wire.answer("send_receipt").sequence_id == 0


def test_random_bytes_end_nothing_else(scalable: World) -> None:
    """Whatever follows a valid beginning, the connection is closed at some time, and others go on."""
    chance = random.Random(1)
    client = scalable.connect()
    producer = client.create_producer("persistent://public/default/a")
    whole = command_frame(pb.Command(subscribe=pb.Subscribe(topic="persistent://public/default/a", subscription="s")))
    for _ in range(100):
        wire = scalable.wire()
        if chance.random() < 0.8:
            wire.greet()
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        wire.write(bytes(damaged) + chance.randbytes(chance.randrange(50)))
        wire.shut()
        while wire.read() is not None:
            pass
    producer.send(b"a")


def test_strangers_take_little_memory(scalable: World) -> None:
    """A stranger that announces a large frame, and never sends it, holds no room for it."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(100):
            scalable.wire().write(struct.pack(">I", 65_536) + b"a")
        scalable.wire().greet()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100 * 100_000


def test_a_message_that_is_too_large_is_refused(scalable: World) -> None:
    """The client knows the limit from the gateway."""
    producer = scalable.connect().create_producer("persistent://public/default/a")
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"a" * (MESSAGE_BYTES_MAX + 1))
    producer.send(b"a" * (MESSAGE_BYTES_MAX - 1_000))
