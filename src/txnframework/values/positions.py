"""Where entries and messages stand in a managed ledger."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

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
"""From here on a ledger id is of no segment: what a buffer tells of a message that gets its place with the commit."""


TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, in ms since 1970: later times are not asked for."""


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries after ``after`` up to and including ``upto``."""

    after: Position
    upto: Position


@dataclass(frozen=True, slots=True)
class Limit:
    """Bound of one answer: at most this many items, and this many bytes unless a single item is larger."""

    items: int
    bytes: int = 4 * 1024 * 1024
