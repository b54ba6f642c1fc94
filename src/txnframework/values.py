"""
Values that errors have as attributes: ids, positions, keys and states.

They are defined below ``txnframework.errors``, because the rest of ``txnframework.model`` raises errors. Import them
from ``txnframework.model``, which has all values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

import msgspec

COORDINATOR_BITS = 16
NUMBER_BITS = 112
LOG_FAMILY_BIT = 1 << (COORDINATOR_BITS - 1)
"""Set in the ids of coordinators of the log family."""
LOG_FAMILY = "log"
METADATA_FAMILY = "metadata"


@dataclass(frozen=True, slots=True, order=True)
class TxnID:
    """128 bits: the coordinator (16, its highest bit set for the log family) and a counter that never repeats."""

    coordinator: int
    number: int

    def __post_init__(self) -> None:
        if not (0 <= self.coordinator < 1 << COORDINATOR_BITS and 0 <= self.number < 1 << NUMBER_BITS):
            raise ValueError(f"transaction id out of range: {self.coordinator}, {self.number}")

    def __str__(self) -> str:
        """Return the 32 lower-case hex digits used in keys; fixed width, so that no id is a prefix of another."""
        return f"{self.coordinator << NUMBER_BITS | self.number:032x}"

    @property
    def family(self) -> str:
        """The family that it belongs to, ``log`` or ``metadata``: the highest bit of its coordinator's id says so."""
        return LOG_FAMILY if self.coordinator & LOG_FAMILY_BIT else METADATA_FAMILY

    @classmethod
    def parse(cls, text: str) -> TxnID:
        """Return the id written as 32 lower-case hex digits, or raise ValueError."""
        if len(text) != 32 or text.strip("0123456789abcdef"):
            raise ValueError(f"{text!r} is not a transaction id (32 lower-case hex digits)")
        return cls(int(text[:4], 16), int(text[4:], 16))


TxnText = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
"""A transaction's id as documents hold it; whatever is decoded as one can be parsed."""


@dataclass(frozen=True, slots=True, order=True)
class Branch:
    """One writer's part of a transaction: 0 is the beginner's, every other one is 63 random bits."""

    txn_id: TxnID
    number: int = 0

    def __hash__(self) -> int:
        # Branches are looked up all the time, so this avoids computing the hash of the transaction's id.
        return hash((self.txn_id.coordinator, self.txn_id.number, self.number))

    @property
    def is_control(self) -> bool:
        """Whether its entries are control entries of a family, and no messages; no client has such a branch."""
        return self.number >> BRANCH_BITS != 0


BRANCH_BITS = 63
"""A branch number fits a signed 64-bit integer, so that every store and Arrow can hold it."""


class State(Enum):
    """States of both families; COMMITTING and ABORTING occur in the log family only."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


class Key(msgspec.Struct, frozen=True, gc=False):
    """Path of a record and its partition; without one, the path itself."""

    path: str
    partition: str = ""


# One spelling only, as for everything that is stored as text; the bounds keep int() away from endless digits.
_NUMBER: Final = "0|[1-9][0-9]{0,18}"
_TEXT: Final = re.compile(rf"({_NUMBER}):(-1|{_NUMBER})(?::({_NUMBER}))?")

PositionText = Annotated[str, msgspec.Meta(pattern=rf"\A{_TEXT.pattern}\Z")]
"""A position as documents hold it; whatever is decoded as one can be parsed."""


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """
    Place of an entry, or of one message of it; totally ordered within one managed ledger.

    ``entry_id`` -1 is the place before the first entry of ``ledger_id``; ``batch_index`` -1 means the whole entry.
    """

    # A struct, and invisible to the garbage collector, because there is one for each message.

    ledger_id: int
    entry_id: int
    batch_index: int = -1

    def __str__(self) -> str:
        """Return ``ledger:entry`` or ``ledger:entry:index``, the form used in records and offsets."""
        text = f"{self.ledger_id}:{self.entry_id}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Return the position written as ``ledger:entry`` or ``ledger:entry:index``, or raise ValueError."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a position (ledger:entry or ledger:entry:index)")
        ledger_id, entry_id, batch_index = found.groups(default="-1")
        return cls(int(ledger_id), int(entry_id), int(batch_index))

    @property
    def entry(self) -> Position:
        """The position of the whole entry."""
        return self if self.batch_index < 0 else Position(self.ledger_id, self.entry_id)


EARLIEST = Position(0, -1)
"""Before every entry: ledger ids are never negative."""

ASIDE: Final = 1 << 62
"""Ledger ids from here on belong to no segment. Buffers return one for a message positioned by its commit."""


TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, in ms since 1970: later times are not asked for."""


class EntryRange(msgspec.Struct, frozen=True, gc=False):
    """Entries after ``after`` up to and including ``upto``."""

    after: Position
    upto: Position


class Limit(msgspec.Struct, frozen=True, gc=False):
    """Bound of one answer: at most this many items, and this many bytes unless a single item is larger."""

    items: int
    bytes: int = 4 * 1024 * 1024
