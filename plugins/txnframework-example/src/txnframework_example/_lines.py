"""What stands in the file: a head, then a line for each change."""

from __future__ import annotations

import msgspec

from txnframework.errors import Corrupt, UnknownFormat
from txnframework.model import IndexEntry, Key, Record
from txnframework.model.records import UNREADABLE

FORMAT = 1

Place = tuple[str, str]
"""Path and partition of a record. Text of Python sorts as its UTF-8 does, which is the order that the role asks for."""


class Head(msgspec.Struct, kw_only=True):
    """The first line. ``number`` is at least the highest that was ever given to a version or to a sequence."""

    format: int = FORMAT
    identity: str
    number: int = 0


class Line(msgspec.Struct, omit_defaults=True):
    """A record as it is from here on; without a value: it was removed. Record and index entries are one line, so that
    no crash separates them.
    """

    path: str
    number: int
    partition: str = ""
    value: bytes | None = None
    indexes: tuple[tuple[str, bytes], ...] = ()

    @property
    def place(self) -> Place:
        """Where the record stands; without a partition it stands in one of its own, named as its path."""
        return self.path, self.partition or self.path

    @property
    def record(self) -> Record:
        """The record that the line describes; its version is the line's number."""
        return Record(Key(self.path, self.partition), self.value or b"", self.number)

    @property
    def entries(self) -> frozenset[IndexEntry]:
        """The record's index entries."""
        return frozenset(IndexEntry(index, key) for index, key in self.indexes)


def place_of(key: Key) -> Place:
    """Return where the record of a key stands."""
    return key.path, key.partition or key.path


def encode(*lines: Head | Line) -> bytes:
    """Return lines as they stand in the file."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def decode(data: bytes, name: str) -> tuple[Head, list[Line]]:
    """
    Return what stands in a file that has a head.

    A last line without an end was being written when the process died: nobody was ever told that it stands.

    :raises UnknownFormat: another release wrote it.
    :raises Corrupt: a line that was whole once is damaged.
    """
    try:
        first, *rest = data.split(b"\n")[:-1]
        head = msgspec.json.decode(first, type=Head)
        if head.format != FORMAT:
            raise UnknownFormat(name, head.format)
        return head, [msgspec.json.decode(line, type=Line) for line in rest]
    except UNREADABLE as error:
        raise Corrupt(f"{name} is damaged: {error}") from error
