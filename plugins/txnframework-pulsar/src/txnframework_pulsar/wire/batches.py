"""Payloads: the messages that a client sends, in the form in which they are stored, and back."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import cramjam
from google.protobuf.message import DecodeError

from txnframework.client import Message
from txnframework.model.delays import DELIVER_AT_HEADER
from txnframework_pulsar.wire import messages_pb2 as pb

METADATA_HEADER = "txnframework-pulsar-metadata"
"""
The header with the fields of a message's metadata for which a stored message has no place.

Its format is that of Pulsar's protocol, whose fields never change their numbers. Another format gets another name.
"""
HIDDEN_HEADERS = frozenset({METADATA_HEADER, DELIVER_AT_HEADER})
"""Headers that are not properties for a Pulsar client."""

BATCH_MESSAGES_MAX = 10_000
"""The most messages of a batch; clients divide what they send into batches of 1,000 by default."""
MESSAGE_BYTES = 1_024
"""What a message takes in memory until it is stored, besides its content."""

_SIZE = struct.Struct(">I")


class BadMessage(Exception):
    """The message is refused, and the connection can go on."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to store; ``count`` is the number of messages in it, if it is a batch that cannot be opened."""

    value: bytes | None
    key: bytes | None
    headers: dict[str, bytes]
    sequence_id: int
    deliver_at_ms: int | None = None
    count: int = 1


def runs(messages: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """Yield messages in groups that can be stored by one call: all is equal but contents, and sequence ids count on."""
    group: list[Outgoing] = []
    for one in messages:
        if group and not _continues(group[-1], one):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _continues(last: Outgoing, following: Outgoing) -> bool:
    common = (last.key, last.headers, last.deliver_at_ms) == (following.key, following.headers, following.deliver_at_ms)
    return common and following.sequence_id == last.sequence_id + 1


def unpack(metadata: pb.MessageMetadata, payload: bytes, bytes_max: int) -> list[Outgoing]:
    """
    Return the messages of a payload in their order.

    A batch is divided, so that each of its messages has a place, a key and acknowledgments of its own. An encrypted
    batch cannot be divided, and is one message. The payload of a single message is kept as it is, also if compressed.

    :param bytes_max: the most bytes that a compressed batch may have when it is decompressed.
    :raises BadMessage: the payload does not have the form that the metadata says.
    """
    if metadata.num_chunks_from_msg > 1:
        raise BadMessage("messages in chunks are not supported: switch chunking off")
    if not metadata.HasField("num_messages_in_batch"):
        return [_single(metadata, payload, metadata.sequence_id)]
    count = metadata.num_messages_in_batch
    if not 1 <= count <= BATCH_MESSAGES_MAX:
        raise BadMessage(f"a batch of {count} messages; a batch has 1 to {BATCH_MESSAGES_MAX}")
    if metadata.encryption_keys:
        sequence_id = max(metadata.sequence_id, metadata.highest_sequence_id)
        return [_single(metadata, payload, sequence_id, count)]
    return _divided(metadata, memoryview(_decompressed(metadata, payload, bytes_max)), count)


def held_bytes(metadata: pb.MessageMetadata, payload: bytes, bytes_max: int) -> int:
    """Return about how many bytes of memory a payload takes until its messages are stored; arguments as ``unpack``."""
    size = len(payload)
    if not metadata.HasField("num_messages_in_batch") or metadata.encryption_keys:
        return size + MESSAGE_BYTES
    # Numbers that are out of range are refused by ``unpack``, before they take memory.
    if metadata.compression != pb.NONE and metadata.uncompressed_size <= bytes_max:
        size += metadata.uncompressed_size
    return size + min(max(metadata.num_messages_in_batch, 1), BATCH_MESSAGES_MAX) * MESSAGE_BYTES


def _divided(metadata: pb.MessageMetadata, payload: memoryview, count: int) -> list[Outgoing]:
    found: list[Outgoing] = []
    at = 0
    for index in range(count):
        if len(payload) - at < _SIZE.size:
            raise BadMessage(f"a batch of {count} messages ends after {index}")
        (size,) = _SIZE.unpack_from(payload, at)
        at += _SIZE.size
        try:
            one = pb.SingleMessageMetadata.FromString(bytes(payload[at : at + size]))
        except DecodeError as error:
            raise BadMessage(f"message {index} of a batch has no valid metadata") from error
        at += size
        if not 0 <= one.payload_size <= len(payload) - at:
            raise BadMessage(f"message {index} of a batch is longer than the batch")
        if not one.compacted_out:
            sequence_id = one.sequence_id if one.HasField("sequence_id") else metadata.sequence_id + index
            content = bytes(payload[at : at + one.payload_size])
            found.append(_single(_own_metadata(metadata, one), content, sequence_id))
        at += one.payload_size
    return found


def _own_metadata(batch: pb.MessageMetadata, one: pb.SingleMessageMetadata) -> pb.MessageMetadata:
    """Return the metadata that a message of a batch would have alone."""
    own = pb.MessageMetadata(properties=one.properties)
    if batch.HasField("schema_version"):
        own.schema_version = batch.schema_version
    if batch.HasField("deliver_at_time"):
        own.deliver_at_time = batch.deliver_at_time
    for name in ("partition_key", "partition_key_b64_encoded", "event_time", "ordering_key"):
        if one.HasField(name):
            setattr(own, name, getattr(one, name))
    for name in ("null_value", "null_partition_key"):
        if getattr(one, name):
            setattr(own, name, True)
    return own


def _single(metadata: pb.MessageMetadata, payload: bytes, sequence_id: int, count: int = 1) -> Outgoing:
    rest = pb.MessageMetadata()
    rest.CopyFrom(metadata)
    headers = {one.key: one.value.encode() for one in metadata.properties}
    if reserved := HIDDEN_HEADERS & headers.keys():
        raise BadMessage(f"the property {min(reserved)} is reserved")
    for name in _STORED_ELSEWHERE:
        rest.ClearField(name)
    if count == 1 and metadata.num_messages_in_batch <= 1:
        rest.ClearField("num_messages_in_batch")
    if described := rest.SerializeToString():
        headers[METADATA_HEADER] = described
    delay = metadata.deliver_at_time if metadata.deliver_at_time > 0 else None
    value = None if metadata.null_value else payload
    return Outgoing(value, _key(metadata), headers, sequence_id, delay, count)


_STORED_ELSEWHERE = (
    "producer_name",
    "sequence_id",
    "highest_sequence_id",
    "publish_time",
    "properties",
    "partition_key",
    "txnid_least_bits",
    "txnid_most_bits",
    "null_value",
)


def _key(metadata: pb.MessageMetadata) -> bytes | None:
    if not metadata.HasField("partition_key"):
        return None
    if not metadata.partition_key_b64_encoded:
        return metadata.partition_key.encode()
    try:
        return base64.b64decode(metadata.partition_key, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadMessage("the key of the message is not valid base64") from error


def _decompressed(metadata: pb.MessageMetadata, payload: bytes, bytes_max: int) -> bytes:
    """Return the payload of a batch without its compression; no more than ``bytes_max`` bytes are ever made."""
    kind, size = metadata.compression, metadata.uncompressed_size
    if kind == pb.NONE:
        return payload
    if size > bytes_max:
        raise BadMessage(f"a batch has {size} bytes when it is decompressed, and at most {bytes_max} are allowed")
    plain = bytearray(size)
    try:
        if kind == pb.ZLIB:
            made = zlib.decompressobj().decompress(payload, size + 1)
            plain, length = bytearray(made), len(made)
        elif kind == pb.LZ4:
            length = cramjam.lz4.decompress_block_into(payload, plain)
        elif kind == pb.ZSTD:
            length = cramjam.zstd.decompress_into(payload, plain)
        else:
            length = cramjam.snappy.decompress_raw_into(payload, plain)
    except (cramjam.DecompressionError, zlib.error, ValueError) as error:
        raise BadMessage(f"a batch cannot be decompressed: {error}") from error
    if length != size:
        raise BadMessage(f"a batch has {length} bytes when it is decompressed, not {size}")
    return bytes(plain)


def described(message: Message) -> tuple[pb.MessageMetadata, bytes, int]:
    """
    Return the metadata and the payload of a stored message, and the number of messages in it.

    Messages of the framework's own producers have the form of a single message: headers are properties, and a key or
    a header that is not text is encoded.
    """
    stored = message.headers.get(METADATA_HEADER)
    metadata = pb.MessageMetadata() if stored is None else pb.MessageMetadata.FromString(stored)
    metadata.producer_name = message.producer
    metadata.sequence_id = message.sequence_id
    metadata.publish_time = message.published_ms
    for name, value in message.headers.items():
        if name not in HIDDEN_HEADERS:
            metadata.properties.add(key=name, value=value.decode(errors="backslashreplace"))
    if message.key is not None:
        _set_key(metadata, message.key)
    if message.value is None:
        metadata.null_value = True
    return metadata, message.value or b"", max(1, metadata.num_messages_in_batch)


def _set_key(metadata: pb.MessageMetadata, key: bytes) -> None:
    if not metadata.partition_key_b64_encoded:
        try:
            metadata.partition_key = key.decode()
        except UnicodeDecodeError:
            metadata.partition_key_b64_encoded = True
    if metadata.partition_key_b64_encoded:
        metadata.partition_key = base64.b64encode(key).decode()
