"""One subscription's log, as this process has read it."""

from __future__ import annotations

import asyncio

from txnframework.errors import Closed, EntryTrimmed, LedgerClosed, LedgerSealed, OutcomeUnknown, Unavailable
from txnframework.interfaces import IManagedLedger
from txnframework.model import Append, Position
from txnframework_legacy.log import BatchedLogWriter, LedgerCount, read_records
from txnframework_legacy.log.format import encode_plain
from txnframework_legacy.pending_acks.holds import HeldAcks
from txnframework_legacy.pending_acks.records import AnyRecord, Base, decode, encode


class PendingAckLog:
    """The log of one subscription: appends records, reads on from the last record read, and trims from the front."""

    def __init__(self, ledger: IManagedLedger, writer: BatchedLogWriter) -> None:
        self.held = HeldAcks()
        self._ledger = ledger
        self._writer = writer
        self._upto: Position | None = None
        self._read = LedgerCount()
        self._reading = asyncio.Lock()

    async def catch_up(self) -> Position:
        """Apply every record confirmed before this call to ``held``; return the position of the last one."""
        tail = await self._ledger.tail()
        await self._read_to(tail.last_confirmed)
        return tail.last_confirmed

    async def append(self, record: AnyRecord) -> None:
        """
        Append a record, and apply all records up to it, at least, to ``held``.

        :raises OutcomeUnknown: the record may be stored, now or later.
        """
        position = await self._writer.add(encode(record))
        try:
            await self._read_to(position.entry)
        except (Unavailable, Closed) as error:
            raise OutcomeUnknown(f"a record was stored in {self._ledger.name}, but could not be read") from error

    @property
    def records(self) -> int:
        """
        The number of records read from the last ledger; a process that opens the log reads them in addition to the
        base.
        """
        return self._read.records

    async def shrink(self, records_max: int) -> None:
        """
        Write the current holds to the beginning of the open ledger, then trim the closed ledgers.

        The open ledger is closed first if it has at least one record and at least ``records_max`` records.
        """
        tail = await self._ledger.tail()
        await self._read_to(tail.last_confirmed)
        records = self._read.of(tail.open_ledger_id)
        (first, *_) = await self._ledger.ledgers(-1, 1)
        if records and records >= records_max:
            tail = await self._ledger.roll()
        elif first.ledger_id == tail.open_ledger_id:
            return
        try:
            base = await self._base_of(tail.open_ledger_id)
            if base.held:
                # In this very ledger, and before the trim: a process that starts reading at this ledger needs its base.
                entry = Append(encode_plain(encode(base)))
                await self._ledger.append((entry,), tail.open_ledger_id)
            await self._ledger.trim(tail.open_ledger_id, frozenset())
        except (EntryTrimmed, LedgerClosed, LedgerSealed):
            return  # another process is trimming, or the topic migrates and this log is not used any more

    async def seal(self) -> None:
        """Refuse further records permanently, in every process; a second call is allowed."""
        await self._ledger.seal()

    async def close(self) -> None:
        """Refuse further records and close the ledger. Idempotent."""
        await self._writer.close()
        await self._ledger.close()

    async def _base_of(self, ledger_id: int) -> Base:
        """
        Return the holds where a ledger begins. The earlier ledgers no longer change, so every process returns the same.
        """
        held = HeldAcks()
        (first, *_) = await self._ledger.ledgers(-1, 1)
        await self._replay(held, first.ledger_id, Position(ledger_id, -1))
        return held.base(ledger_id)

    async def _read_to(self, upto: Position) -> None:
        async with self._reading:
            while self._upto is None or self._upto < upto:
                try:
                    if self._upto is None:
                        (first, *_) = await self._ledger.ledgers(-1, 1)
                        # Read the tail again: the base of that ledger may have been stored since the caller read the
                        # tail.
                        upto = max(upto, (await self._ledger.tail()).last_confirmed)
                        held = HeldAcks()
                        self._read = await self._replay(held, first.ledger_id, upto)
                        self.held, self._upto = held, upto
                        return
                    async for records in read_records(self._ledger, self._upto, upto):
                        self._read.add(records)
                        for record in records:
                            self.held.apply(decode(record, self._ledger.name), record.position.entry)
                        self._upto = records[-1].position.entry
                    self._upto = max(self._upto, upto)
                except EntryTrimmed:
                    self._upto = None  # the base of the remaining first ledger contains all current holds

    async def _replay(self, held: HeldAcks, first_ledger_id: int, upto: Position) -> LedgerCount:
        """Apply the records up to ``upto``, starting with the first ledger's base if it has one; return their count."""
        count = LedgerCount()
        found: list[tuple[AnyRecord, Position]] = []
        async for records in read_records(self._ledger, Position(first_ledger_id, -1), upto):
            count.add(records)
            for record in records:
                decoded = decode(record, self._ledger.name)
                if isinstance(decoded, Base) and decoded.ledger == first_ledger_id and not held:
                    held.begin(decoded)
                found.append((decoded, record.position.entry))
        for decoded, entry in found:
            held.apply(decoded, entry)
        return count
