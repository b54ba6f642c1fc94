"""Values that cross the buffer role: what may be read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from txnframework.model.ids import Branch
from txnframework.model.positions import EntryRange, Limit, Position


class Isolation(Enum):
    """What a reader sees."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class Visibility(Enum):
    """What is known of an entry's branch."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Readable entries after ``after``, bounded."""

    after: Position
    limit: Limit
    isolation: Isolation = Isolation.READ_COMMITTED


@dataclass(frozen=True, slots=True)
class ReadableEntry:
    """An entry to hand out, and what is known of it (always COMMITTED under ``read_committed``)."""

    position: Position
    data: bytes
    branch: Branch | None
    visibility: Visibility


@dataclass(frozen=True, slots=True)
class EntryPage:
    """
    Entries in reading order.

    ``upto``: everything to here was looked at, also what was skipped; ``skipped``: the entries left out, because their
    branch was aborted or they are a family's own such as markers, so that a cursor can pass them.
    """

    entries: tuple[ReadableEntry, ...]
    upto: Position
    skipped: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """All that is needed to read ``entries`` straight from the ledger: skip the branches in ``aborted``."""

    entries: EntryRange
    aborted: frozenset[Branch]
