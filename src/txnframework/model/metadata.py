"""Values of the metadata-store role."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from txnframework.values import Key as Key


class Expect(Enum):
    """The expectation of a write that does not name a version."""

    ABSENT = "absent"
    ANY = "any"


Expected = int | Expect
"""A version is opaque: it grows while a record exists, and may start over after the record was deleted."""


@dataclass(frozen=True, slots=True, order=True)
class IndexEntry:
    """One entry of a secondary index; ``key`` is made by ``model.index_keys`` from components."""

    index: str
    key: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """A stored record as read."""

    key: Key
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write ``value`` and make ``indexes`` the record's only index entries."""

    key: Key
    value: bytes
    expected: Expected
    indexes: tuple[IndexEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class PutSequential:
    """Write ``value`` at ``prefix`` + ``/`` + the next number in 20 digits."""

    prefix: Key
    value: bytes
    indexes: tuple[IndexEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    """
    Delete a record and its index entries; ``expected``: the last version, or ABSENT/ANY, which accept an absent record.
    """

    key: Key
    expected: Expected


@dataclass(frozen=True, slots=True)
class Check:
    """Require a version (or absence) without writing; excludes a concurrent change of the checked record."""

    key: Key
    expected: Expected


@dataclass(frozen=True, slots=True)
class Batch:
    """Several steps of one partition, all or nothing; at most one step for any one key."""

    checks: tuple[Check, ...] = ()
    puts: tuple[Put | PutSequential, ...] = ()
    deletes: tuple[Delete, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys with ``start <= path < stop`` in byte order of UTF-8, in one partition or (None) in all."""

    start: str
    stop: str
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class IndexRange:
    """
    Entries of one index with ``start <= key < stop``.

    ``after``: of the entries whose key is ``start``, only those of records after this one. Many records may share an
    index key, so the ``resume`` of a page that ended among them needs it. Ranges that callers make omit it.
    """

    index: str
    start: bytes
    stop: bytes
    after: Key | None = None


@dataclass(frozen=True, slots=True)
class RecordPage:
    """A bounded page of a scan; ``resume`` is the remaining range, None at the end."""

    records: tuple[Record, ...]
    resume: KeyRange | IndexRange | None = None
