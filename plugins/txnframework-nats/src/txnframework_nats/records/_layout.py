"""Subjects of records, sessions and numbers in the stream, and the form of their messages; pure functions."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from txnframework.errors import CorruptRecord, UnknownFormat
from txnframework.model import IndexEntry, Key, Put

FORMAT = 1

RecordID = tuple[str, str]
"""Path and partition. Python sorts text as its UTF-8 bytes sort, so paths are in the order that the role requires."""

_READABLE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_~%")
_SUBJECT_CHARACTERS_MAX = 300
_PARTITION_CHARACTERS = 16

LIFE_HEADER = "Nats-TTL"
ROLLUP = {"Nats-Rollup": "sub"}
"""
Removes the earlier messages of the subject, and records on disk that they are removed.

A limit of one message per subject would remove them without such a record. A server that is killed may then read its
files again, and find a removed value when the message of the deletion is gone: a deleted record would return.
Crash window: a server that is killed after it has stored a message, and before it has removed the earlier one, keeps
both until the next write to the subject. Only the last one counts, but a deletion's message is dropped some time.
"""
EXPECTED_HEADER = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT_HEADER = "Nats-Expected-Last-Subject-Sequence-Subject"
WRITE_HEADER = "Txn-Write"
"""Names the write that a message belongs to, so that its writer recognizes it after a lost reply."""


def record_id(key: Key) -> RecordID:
    """Return the place of a record; without a partition, the record has a partition of its own, named as its path."""
    return key.path, key.partition or key.path


def key_of(place: RecordID) -> Key:
    """Return the key of a record at a place."""
    path, partition = place
    return Key(path, "" if partition == path else partition)


class Layout:
    """The names of one store: of its stream, and of the subjects in it."""

    def __init__(self, prefix: str) -> None:
        self.stream = f"{prefix}-records"
        self.root = f"{prefix}.records"
        self.identity = f"{self.root}.identity"
        self.numbers = f"{self.root}.numbers"
        self._records = f"{self.root}.r."
        self._long_records = f"{self.root}.h."
        self._sessions = f"{self.root}.s."
        self._checks = f"{self.root}.c."

    @property
    def subjects(self) -> list[str]:
        """The subjects of the stream."""
        return [f"{self.root}.>"]

    def record(self, place: RecordID) -> str:
        """
        Return the subject of a record; different places have different subjects.

        It shows the path, unless it would be long. Servers limit the line that contains the subject.
        """
        path, partition = place
        readable = "".join(_token_character(byte) for byte in path.encode())
        if partition != path:
            readable += f".=p{hashlib.sha256(partition.encode()).hexdigest()[:_PARTITION_CHARACTERS]}"
        # Empty components would be empty tokens, which subjects must not have.
        if len(readable) <= _SUBJECT_CHARACTERS_MAX and not {""} & set(readable[1:].split(".")) and readable[0] == ".":
            return f"{self._records}{readable[1:]}"
        digest = hashlib.sha256(b"\0".join((path.encode(), partition.encode()))).hexdigest()
        return f"{self._long_records}{digest}"

    def session(self, name: str) -> str:
        """Return the subject of a session."""
        return f"{self._sessions}{name}"

    def check(self, client: str, number: int) -> str:
        """Return the subject of a message that only carries a condition."""
        return f"{self._checks}{client}.{number}"

    def is_record(self, subject: str) -> bool:
        """Return whether this is the subject of a record."""
        return subject.startswith((self._records, self._long_records))

    def session_of(self, subject: str) -> str | None:
        """Return the session whose subject this is, or None."""
        return subject.removeprefix(self._sessions) if subject.startswith(self._sessions) else None


def _token_character(byte: int) -> str:
    if byte == ord("/"):
        return "."
    return chr(byte) if byte in _READABLE else f"={byte:02X}"


class _Document(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a record's message contains; ``value`` None: the record was deleted."""

    format: int
    path: str
    partition: str
    indexes: tuple[tuple[str, bytes], ...]
    value: bytes | None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Document)
_FIRST = msgspec.msgpack.Decoder(list[Any])


class Content(msgspec.Struct, frozen=True, gc=False):
    """A record as a message describes it; ``value`` None: it was deleted."""

    place: RecordID
    indexes: frozenset[IndexEntry]
    value: bytes | None


def encode_put(place: RecordID, put: Put) -> bytes:
    """Return the content of the message that writes a record."""
    indexes = tuple((entry.index, entry.key) for entry in put.indexes)
    return _ENCODER.encode(_Document(FORMAT, *place, indexes, bytes(put.value)))


def encode_delete(place: RecordID) -> bytes:
    """Return the content of the message that deletes a record."""
    return _ENCODER.encode(_Document(FORMAT, *place, (), None))


def decode(subject: str, payload: bytes) -> Content:
    """
    Return the record that a message describes.

    :raises UnknownFormat: a later release wrote it.
    :raises CorruptRecord: it is damaged.
    """
    try:
        document = _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _refuse_format(subject, payload)
        raise CorruptRecord(subject, "its message", str(error)) from error
    if document.format != FORMAT:
        raise UnknownFormat(f"record {document.path}", document.format)
    indexes = frozenset(IndexEntry(index, key) for index, key in document.indexes)
    return Content((document.path, document.partition), indexes, document.value)


def _refuse_format(subject: str, payload: bytes) -> None:
    """Raise UnknownFormat if the message begins with the number of another format."""
    try:
        first = _FIRST.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    if first and isinstance(first[0], int) and first[0] != FORMAT:
        raise UnknownFormat(f"record at {subject}", first[0])
