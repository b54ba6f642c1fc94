"""Frames: a command, with the metadata and the payload of a message where it carries one."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import google_crc32c
from google.protobuf.message import DecodeError

from txnframework_pulsar.wire import messages_pb2 as pb

CHECKSUM_MAGIC = 0x0E01
SIZE_BYTES = 4
OVERHEAD_BYTES_MAX = 10 * 1024
"""The most bytes of a frame that are not the payload: the command and the metadata."""

_SIZE = struct.Struct(">I")
_CHECKED = struct.Struct(">HI")


class BadFrame(Exception):
    """The peer sent bytes that are not a frame of the protocol, or too many; the connection cannot go on."""


class BadChecksum(Exception):
    """The metadata and the payload of a message do not have the checksum that the frame says."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A command, and the rest of the frame: empty, or a checksum, metadata and payload (``payload_of``)."""

    command: pb.Command
    rest: memoryview


def size_of(prefix: bytes, bytes_max: int) -> int:
    """
    Return the number of bytes that follow the first four bytes of a frame.

    :raises BadFrame: there are more than ``bytes_max``, or too few for a command.
    """
    (size,) = _SIZE.unpack(prefix)
    if not SIZE_BYTES <= size <= bytes_max:
        raise BadFrame(f"a frame has {SIZE_BYTES} to {bytes_max} bytes, not {size}")
    return int(size)


def parse_frame(body: bytes) -> Frame:
    """
    Return the frame that has these bytes after its size.

    :raises BadFrame: the bytes are not a frame.
    """
    (size,) = _SIZE.unpack_from(body)
    if size > len(body) - SIZE_BYTES:
        raise BadFrame(f"a command of {size} bytes does not fit into a frame of {len(body)}")
    try:
        command = pb.Command.FromString(body[SIZE_BYTES : SIZE_BYTES + size])
    except DecodeError as error:
        raise BadFrame("the command is not a protobuf message") from error
    return Frame(command, memoryview(body)[SIZE_BYTES + size :])


def payload_of(rest: memoryview) -> tuple[pb.MessageMetadata, bytes]:
    """
    Return the metadata and the payload that follow a command.

    :raises BadFrame: the bytes have another form.
    :raises BadChecksum: they were damaged on their way.
    """
    if len(rest) >= _CHECKED.size and _CHECKED.unpack_from(rest)[0] == CHECKSUM_MAGIC:
        expected = _CHECKED.unpack_from(rest)[1]
        rest = rest[_CHECKED.size :]
        if google_crc32c.value(bytes(rest)) != expected:
            raise BadChecksum("the message does not have its checksum")
    if len(rest) < SIZE_BYTES:
        raise BadFrame("a message has no metadata")
    (size,) = _SIZE.unpack_from(rest)
    if size > len(rest) - SIZE_BYTES:
        raise BadFrame(f"metadata of {size} bytes does not fit into its frame")
    try:
        metadata = pb.MessageMetadata.FromString(bytes(rest[SIZE_BYTES : SIZE_BYTES + size]))
    except DecodeError as error:
        raise BadFrame("the metadata is not a protobuf message") from error
    return metadata, bytes(rest[SIZE_BYTES + size :])


def command_frame(command: pb.Command) -> bytes:
    """Return the frame of a command without a message."""
    body = _with_type(command).SerializeToString()
    return _SIZE.pack(SIZE_BYTES + len(body)) + _SIZE.pack(len(body)) + body


def message_frame(command: pb.Command, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """Return the frame of a command with a message."""
    body = _with_type(command).SerializeToString()
    described = metadata.SerializeToString()
    checked = _SIZE.pack(len(described)) + described + payload
    sized = _SIZE.pack(len(body)) + body + _CHECKED.pack(CHECKSUM_MAGIC, google_crc32c.value(checked)) + checked
    return _SIZE.pack(len(sized)) + sized


def _with_type(command: pb.Command) -> pb.Command:
    """Set the type of a command to the number of the one field that it has."""
    ((field, _),) = command.ListFields()
    command.type = field.number
    return command
