"""Values that cross the ledger role."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.model.ids import Branch
from txnframework.model.positions import Position


@dataclass(frozen=True, slots=True)
class ProducerSequence:
    """Idempotence token of an entry: a producer's name and its first and last sequence id in the entry, inclusive."""

    producer: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Append:
    """
    One encoded entry and what the ledger itself must know of it.

    ``messages``: how many messages it holds, for lag and admission. ``replaces``: the earlier copy of ``sequence``
    that no longer counts; compared atomically with appending. ``principal``: on whose behalf it is sent; the
    transaction buffer looks at it, the ledger does not.
    """

    data: bytes
    messages: int = 1
    branch: Branch | None = None
    sequence: ProducerSequence | None = None
    replaces: Position | None = None
    principal: str = ""


@dataclass(frozen=True, slots=True)
class Appended:
    """
    Where an entry stands.

    ``duplicate``: (part of) its sequence stood there before this call, in ``branch``, and nothing was appended for it;
    ``sequence`` is then that of the earlier copy, so that the sender can split a batch that is partly stored. A copy
    without a branch counts: it was appended outside transactions, or committed and trimmed since.
    """

    position: Position
    duplicate: bool = False
    branch: Branch | None = None
    sequence: ProducerSequence | None = None


@dataclass(frozen=True, slots=True)
class Remembered:
    """
    What a row of ledgers remembers of one producer.

    ``window``: of how many of its last sequences copies are recognised at least. ``highest``: the highest sequence that
    is remembered, None: none is. ``above``: how many sequences are remembered above the one that was asked for. Where
    they are ``window`` or more, a copy of that one may have been forgotten.
    """

    window: int
    highest: int | None
    above: int


@dataclass(frozen=True, slots=True)
class Tail:
    """Last confirmed position (no entry at or below it can appear any more), the open ledger, sealed or not."""

    last_confirmed: Position
    open_ledger_id: int
    sealed: bool


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """An encoded entry as read."""

    position: Position
    data: bytes


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """
    One ledger of a row: how many entries, messages and bytes of data it holds.

    ``appended_ms``: when its last entry was appended, by the store's clock; without meaning while it is empty.
    """

    ledger_id: int
    entries: int
    messages: int
    bytes: int
    appended_ms: int

    @property
    def last(self) -> Position:
        """Where its last entry stands; while it is empty, the place before its first."""
        return Position(self.ledger_id, self.entries - 1)


@dataclass(frozen=True, slots=True)
class Counted:
    """
    How far a count came: ``messages`` stand in the entries up to and including ``upto``.

    ``appended_ms``: when ``upto`` was appended, by the store's clock; None where no entry was counted.
    """

    upto: Position
    messages: int
    appended_ms: int | None = None
