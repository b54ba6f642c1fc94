"""Appends and records that are written in one step of a database that has both."""

from __future__ import annotations

import msgspec

from txnframework.model.ledger import Append, Appended, Tail
from txnframework.model.metadata import Batch, Check, IndexEntry, IndexRange, Key, Put, PutSequential, Record
from txnframework.model.positions import Position
from txnframework.model.records import WriteOperation, encode


class IntendedAppend(msgspec.Struct, frozen=True, gc=False):
    """
    Entries of one branch, and the write operation that announces them.

    ``check``: the header of the open transaction. ``prefix`` and ``indexes`` are those of the operation's record. The
    ledger and the position in ``operation`` are ignored: the step sets both.
    """

    entries: tuple[Append, ...]
    check: Check
    prefix: Key
    indexes: tuple[IndexEntry, ...]
    operation: WriteOperation

    def operation_at(self, tail: Tail) -> WriteOperation:
        """Return the operation that announces entries after ``tail``."""
        ledger_id, after = tail.open_ledger_id, str(tail.last_confirmed)
        return msgspec.structs.replace(self.operation, ledger=ledger_id, after=after)

    def put_of(self, operation: WriteOperation) -> PutSequential:
        """Return the step that writes the operation's record."""
        return PutSequential(self.prefix, encode(operation), self.indexes)


class IntendedAppended(msgspec.Struct, frozen=True, gc=False):
    """The positions of the entries, and the operation as it was written, with its record."""

    appended: tuple[Appended, ...]
    operation: WriteOperation
    record: Record


class LedgerAppend(msgspec.Struct, frozen=True, gc=False):
    """
    Entries of one ledger in a joint append.

    ``ledger``: the ``reference`` of an IColocatedLedger of the same store.
    """

    ledger: object
    entries: tuple[Append, ...]


class JointAppend(msgspec.Struct, frozen=True, gc=False):
    """
    Entries of any number of ledgers, and a batch of records, to be written all or nothing.

    ``appends``: at most one for each ledger, and each with at least one entry, without sequences. ``batch``: without
    PutSequential. ``vacant``: index ranges in which no
    record may have an entry. Each part may be empty.
    """

    appends: tuple[LedgerAppend, ...]
    batch: Batch = Batch()
    vacant: tuple[IndexRange, ...] = ()

    @property
    def puts(self) -> tuple[Put, ...]:
        """The puts of the batch; ValueError if one is a PutSequential."""
        puts = tuple([put for put in self.batch.puts if isinstance(put, Put)])
        if len(puts) < len(self.batch.puts):
            raise ValueError("a joint append has no PutSequential")
        return puts


class JointAppended(msgspec.Struct, frozen=True, gc=False):
    """The positions of the entries of each ledger, and the records that the puts wrote; in the order of the request."""

    positions: tuple[tuple[Position, ...], ...]
    records: tuple[Record, ...]
