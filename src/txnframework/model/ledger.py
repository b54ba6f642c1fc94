"""Values of the ledger role."""

from __future__ import annotations

import msgspec

from txnframework.model.ids import Branch
from txnframework.model.positions import Position


class ProducerSequence(msgspec.Struct, frozen=True, gc=False):
    """Idempotence token of an entry: a producer's name and its first and last sequence id in the entry, inclusive."""

    producer: str
    first: int
    last: int


class Append(msgspec.Struct, frozen=True, gc=False):
    """
    One encoded entry, and the values that the ledger itself needs.

    ``messages``: the number of its messages, for lag and admission. ``replaces``: the earlier copy of ``sequence`` that
    no longer counts; compared atomically with the append. ``principal``: on whose behalf it is sent; the transaction
    buffer reads it, the ledger does not.
    """

    data: bytes
    messages: int = 1
    branch: Branch | None = None
    sequence: ProducerSequence | None = None
    replaces: Position | None = None
    principal: str = ""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """
    The position of an entry.

    ``duplicate``: its sequence, or part of it, was stored before this call, in ``branch``, and nothing was appended for
    it. ``sequence`` is then that of the earlier copy, so that the sender can split a batch that is partly stored. A
    copy without a branch counts: it was appended outside transactions, or committed and trimmed since.
    """

    position: Position
    duplicate: bool = False
    branch: Branch | None = None
    sequence: ProducerSequence | None = None


class WindowState(msgspec.Struct, frozen=True, gc=False):
    """
    The remembered messages of one producer in a managed ledger.

    ``window``: the least number of its last sequences whose copies are recognised. ``highest``: the highest remembered
    sequence; None: none is remembered. ``above``: the number of remembered sequences above the requested one. If it is
    ``window`` or more, a copy of the requested sequence may have been forgotten.
    """

    window: int
    highest: int | None
    above: int


class Tail(msgspec.Struct, frozen=True, gc=False):
    """
    Last confirmed position (no entry at or below it can appear any more), the open ledger, and whether it is sealed.
    """

    last_confirmed: Position
    open_ledger_id: int
    sealed: bool

    @property
    def end(self) -> Position:
        """The furthest position that a record may name, also if every entry was trimmed; it only grows."""
        return max(self.last_confirmed, Position(self.open_ledger_id, -1))


class LedgerEntry(msgspec.Struct, frozen=True, gc=False):
    """An encoded entry as read."""

    position: Position
    data: bytes


class LedgerSummary(msgspec.Struct, frozen=True, gc=False):
    """
    One ledger of a row, with the numbers of its entries, messages and bytes of data.

    ``appended_ms``: when its last entry was appended, by the store's clock; without meaning while it is empty.
    """

    ledger_id: int
    entries: int
    messages: int
    bytes: int
    appended_ms: int

    @property
    def last(self) -> Position:
        """The position of its last entry; while it is empty, the position before the first."""
        return Position(self.ledger_id, self.entries - 1)


class MessageCount(msgspec.Struct, frozen=True, gc=False):
    """
    The end of a count: the entries up to and including ``upto`` hold ``messages``.

    ``appended_ms``: when ``upto`` was appended, by the store's clock; None: no entry was counted.
    """

    upto: Position
    messages: int
    appended_ms: int | None = None
