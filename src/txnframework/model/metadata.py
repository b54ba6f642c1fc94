"""Values of the metadata-store role."""

from __future__ import annotations

from enum import Enum

import msgspec

from txnframework.values import Key as Key


class Expect(Enum):
    """The expectation of a write that does not name a version."""

    ABSENT = "absent"
    ANY = "any"


Expected = int | Expect
"""A version is opaque: it grows while a record exists, and may start over after the record was deleted."""


class IndexEntry(msgspec.Struct, frozen=True, order=True, gc=False):
    """One entry of a secondary index; ``key`` is made by ``model.index_keys`` from components."""

    index: str
    key: bytes


class Record(msgspec.Struct, frozen=True, gc=False):
    """A stored record as read."""

    key: Key
    value: bytes
    version: int


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write ``value`` and make ``indexes`` the record's only index entries."""

    key: Key
    value: bytes
    expected: Expected
    indexes: tuple[IndexEntry, ...] = ()


class PutSequential(msgspec.Struct, frozen=True, gc=False):
    """Write ``value`` at ``prefix`` + ``/`` + the next number in 20 digits."""

    prefix: Key
    value: bytes
    indexes: tuple[IndexEntry, ...] = ()


class Delete(msgspec.Struct, frozen=True, gc=False):
    """
    Delete a record and its index entries; ``expected``: the last version, or ABSENT/ANY, which accept an absent record.
    """

    key: Key
    expected: Expected


class Check(msgspec.Struct, frozen=True, gc=False):
    """Require a version (or absence) without writing; excludes a concurrent change of the checked record."""

    key: Key
    expected: Expected


class KeyRange(msgspec.Struct, frozen=True, gc=False):
    """Keys with ``start <= path < stop`` in byte order of UTF-8, in one partition or (None) in all."""

    start: str
    stop: str
    partition: str | None = None


class IndexRange(msgspec.Struct, frozen=True, gc=False):
    """
    Entries of one index with ``start <= key < stop``.

    ``after``: of the entries whose key is ``start``, only those of records after this one. Many records may share an
    index key, so the ``resume`` of a page that ended among them needs it. Ranges that callers make omit it.
    """

    index: str
    start: bytes
    stop: bytes
    after: Key | None = None


class RecordPage(msgspec.Struct, frozen=True, gc=False):
    """A bounded page of a scan; ``resume`` is the remaining range, None at the end."""

    records: tuple[Record, ...]
    resume: KeyRange | IndexRange | None = None
