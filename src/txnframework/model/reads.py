"""Values of the buffer role: what may be read."""

from __future__ import annotations

from enum import Enum

import msgspec

from txnframework.model.ids import Branch
from txnframework.model.positions import EntryRange, Limit, Position


class Isolation(Enum):
    """Which messages a reader receives."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class Visibility(Enum):
    """The known state of an entry's branch."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


class ReadRequest(msgspec.Struct, frozen=True, gc=False):
    """A request for the readable entries after ``after``, at most ``limit``."""

    after: Position
    limit: Limit
    isolation: Isolation = Isolation.READ_COMMITTED


class ReadableEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry to return, and the state of its branch (always COMMITTED under ``read_committed``)."""

    position: Position
    data: bytes
    branch: Branch | None
    visibility: Visibility


class EntryPage(msgspec.Struct, frozen=True, gc=False):
    """
    Entries in reading order.

    ``upto``: everything up to this position was examined, skipped entries included. ``skipped``: the entries that were
    left out, so that a cursor can pass them. Their branch was aborted, or they are a family's own entries, such as
    markers.
    """

    entries: tuple[ReadableEntry, ...]
    upto: Position
    skipped: tuple[Position, ...] = ()


class ReadPlan(msgspec.Struct, frozen=True, gc=False):
    """All that is needed to read ``entries`` directly from the ledger: skip the branches in ``aborted``."""

    entries: EntryRange
    aborted: frozenset[Branch]
