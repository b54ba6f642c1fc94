"""The content of the file: a head, then a line for each step."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from txnframework.errors import Corrupt, UnknownFormat
from txnframework.model import IndexEntry, Key, Record
from txnframework.model.records import UNREADABLE

FORMAT = 2
"""2: a line has all changes of a step; before, each change had a line."""

RecordId = tuple[str, str]
"""
Path and partition of a record. Python sorts text as its UTF-8 bytes sort, which is the order that the role requires.
"""


class Head(msgspec.Struct, kw_only=True):
    """The first line. ``number`` is at least the highest number ever given to a version or to a sequence."""

    format: int = FORMAT
    identity: str
    number: int = 0


class Change(msgspec.Struct, omit_defaults=True):
    """
    The state of a record from this line on; without a value, the record was removed.

    The changes of a step and their index entries share one line, so that no crash separates them.
    """

    path: str
    number: int
    partition: str = ""
    value: bytes | None = None
    indexes: tuple[tuple[str, bytes], ...] = ()

    @property
    def record_id(self) -> RecordId:
        """The record's id; without a partition, the record has a partition of its own, named as its path."""
        return self.path, self.partition or self.path

    @property
    def record(self) -> Record:
        """The record that the change describes; its version is the change's number."""
        return Record(Key(self.path, self.partition), self.value or b"", self.number)

    @property
    def entries(self) -> frozenset[IndexEntry]:
        """The record's index entries."""
        return frozenset(IndexEntry(index, key) for index, key in self.indexes)


def record_id_of(key: Key) -> RecordId:
    """Return the id of the record of a key."""
    return key.path, key.partition or key.path


def encode(*lines: Head | Sequence[Change]) -> bytes:
    """Return lines as they are stored in the file."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def decode(data: bytes, name: str) -> tuple[Head, list[Change]]:
    """
    Return the content of a file that has a head.

    A last line without an end was being written when the process died. Its write was never acknowledged, so the line is
    dropped.

    :raises UnknownFormat: another release wrote the file.
    :raises Corrupt: a complete line is damaged.
    """
    try:
        first, *rest = data.split(b"\n")[:-1]
        head = msgspec.json.decode(first, type=Head)
        if head.format != FORMAT:
            raise UnknownFormat(name, head.format)
        return head, [change for line in rest for change in msgspec.json.decode(line, type=list[Change])]
    except UNREADABLE as error:
        raise Corrupt(f"{name} is damaged: {error}") from error
