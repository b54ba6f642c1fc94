"""One subscription's log, as this process knows it."""

from __future__ import annotations

import asyncio

from txnframework.errors import Closed, EntryTrimmed, LedgerClosed, OutcomeUnknown, Unavailable
from txnframework.interfaces import IManagedLedger
from txnframework.model import Append, Position
from txnframework_legacy.log import BatchedLogWriter, LedgerCount, read_records
from txnframework_legacy.log.format import encode_plain
from txnframework_legacy.pending_acks.held import Held
from txnframework_legacy.pending_acks.records import AnyRecord, Base, decode, encode


class PendingAckLog:
    """The log of one subscription: appended to, read from where this process came to, and trimmed from the front."""

    def __init__(self, ledger: IManagedLedger, writer: BatchedLogWriter) -> None:
        self.held = Held()
        self._ledger = ledger
        self._writer = writer
        self._upto: Position | None = None
        self._read = LedgerCount()
        self._reading = asyncio.Lock()

    async def catch_up(self) -> Position:
        """Let ``held`` be what every record says that was confirmed before this call; return where the last one is."""
        tail = await self._ledger.tail()
        await self._read_to(tail.last_confirmed)
        return tail.last_confirmed

    async def append(self, record: AnyRecord) -> None:
        """
        Append a record, and let ``held`` be what is said up to there at least.

        :raises OutcomeUnknown: it may stand there, or come to.
        """
        place = await self._writer.add(encode(record))
        try:
            await self._read_to(place.entry)
        except (Unavailable, Closed) as error:
            raise OutcomeUnknown(f"a record stands in {self._ledger.name} that could not be read again") from error

    @property
    def records(self) -> int:
        """How many records of the last ledger are known here: who opens the log reads them beside what is held."""
        return self._read.records

    async def shrink(self, records_max: int) -> None:
        """
        Drop the closed ledgers, once what is still held is written at the beginning of the open one.

        The open ledger is closed before if it has so many records, and any.
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
                # In that very ledger, and before anything goes: whoever begins with that ledger finds it there.
                entry = Append(encode_plain(encode(base)))
                await self._ledger.append((entry,), tail.open_ledger_id)
            await self._ledger.trim(tail.open_ledger_id, frozenset())
        except (EntryTrimmed, LedgerClosed):
            return  # somebody else is at it

    async def close(self) -> None:
        """Take nothing more, and let the ledger go; may be repeated."""
        await self._writer.close()
        await self._ledger.close()

    async def _base_of(self, ledger_id: int) -> Base:
        """Return what is held where a ledger begins: what stands before it can change no more, so all find the same."""
        held = Held()
        (first, *_) = await self._ledger.ledgers(-1, 1)
        await self._replay(held, first.ledger_id, Position(ledger_id, -1))
        return held.base(ledger_id)

    async def _read_to(self, upto: Position) -> None:
        async with self._reading:
            while self._upto is None or self._upto < upto:
                try:
                    if self._upto is None:
                        (first, *_) = await self._ledger.ledgers(-1, 1)
                        # Asked again: the base of that ledger may have come to stand there since the caller asked.
                        upto = max(upto, (await self._ledger.tail()).last_confirmed)
                        held = Held()
                        self._read = await self._replay(held, first.ledger_id, upto)
                        self.held, self._upto = held, upto
                        return
                    async for records in read_records(self._ledger, self._upto, upto):
                        self._read.add(records)
                        for record in records:
                            self.held.apply(decode(record, self._ledger.name), record.place.entry)
                        self._upto = records[-1].place.entry
                    self._upto = max(self._upto, upto)
                except EntryTrimmed:
                    self._upto = None  # what stands at the beginning now says all that is left of what went

    async def _replay(self, held: Held, first_ledger_id: int, upto: Position) -> LedgerCount:
        """Read all there is up to a place, beginning with the base of the first ledger if it has one; count it."""
        count = LedgerCount()
        found: list[tuple[AnyRecord, Position]] = []
        async for records in read_records(self._ledger, Position(first_ledger_id, -1), upto):
            count.add(records)
            for record in records:
                decoded = decode(record, self._ledger.name)
                if isinstance(decoded, Base) and decoded.ledger == first_ledger_id and not held:
                    held.begin(decoded)
                found.append((decoded, record.place.entry))
        for decoded, entry in found:
            held.apply(decoded, entry)
        return count
