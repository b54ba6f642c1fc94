"""Reading entries of a managed ledger: which records hold them, and their data."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable
from operator import attrgetter
from typing import TypeVar

from txnframework.errors import Corrupt, CorruptEntry, UnknownFormat
from txnframework.model import EntryRange, LedgerEntry, Limit, MessageCount, Position, StoredEntry
from txnframework_nats.ledgers._cache import RecordCache
from txnframework_nats.ledgers._log import LedgerLog
from txnframework_nats.ledgers._records import Added, StoredRecord, decode, unframe
from txnframework_nats.ledgers._requests import StoredMessage
from txnframework_nats.ledgers._state import LedgerTotals, RecordMark

T = TypeVar("T")

_READ_ITEMS = 64
_READ_BYTES = 8 * 1024 * 1024
_SCANNED = 16
_PLACES_MAX = 512
_LEDGERS_MAX = 256
_TRIES = 5

By = Callable[[RecordMark], int]

_entry: By = attrgetter("entry")
_messages: By = attrgetter("messages")
_appended_ms: By = attrgetter("appended_ms")


class _RemovedError(Exception):
    """A record is not there any more; what the log says now decides what that means. ``position``: of its entry."""

    def __init__(self, position: Position) -> None:
        self.position = position
        super().__init__(str(position))


class EntryReader:
    """Reads entries of one managed ledger; records come from the cache, from any replica, or from the leader."""

    def __init__(self, log: LedgerLog, cache: RecordCache) -> None:
        self._log = log
        self._cache = cache
        self._key = log.subjects.records
        self._places: dict[int, list[RecordMark]] = {}

    async def read(self, entries: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range; see IManagedLedger."""
        return tuple(LedgerEntry(one.position, one.data) for one in await self.stored(entries, limit))

    async def stored(self, entries: EntryRange, limit: Limit) -> tuple[StoredEntry, ...]:
        """Return the first entries of the range with everything that is stored of them; see ICopyableLedgerStore."""

        async def read() -> tuple[StoredEntry, ...]:
            self._log.state.require_untrimmed(entries)
            return await self._read(entries, limit)

        return await self._repeat(read)

    async def count(self, entries: EntryRange, messages_max: int) -> MessageCount:
        """Return how far messages reach into the range; see IManagedLedger."""
        return await self._repeat(lambda: self._count(entries, messages_max))

    async def find_time(self, published_ms: int) -> Position:
        """Return the position before the first entry appended at this time or later; see IManagedLedger."""
        return await self._repeat(lambda: self._find_time(published_ms))

    async def _repeat(self, work: Callable[[], Awaitable[T]]) -> T:
        """Read the log to its end, and do the work; again if records were removed meanwhile."""
        missing: Position | None = None
        for _ in range(_TRIES):
            await self._log.refresh()
            self._log.state.require_present()
            try:
                return await work()
            except _RemovedError as error:
                missing = error.position
        raise CorruptEntry(missing, "it is missing, and was never trimmed", self._log.name)

    async def _read(self, entries: EntryRange, limit: Limit) -> tuple[StoredEntry, ...]:
        found: list[StoredEntry] = []
        size = 0
        for ledger, first, last in self._ledgers(entries):
            place = await self._locate(ledger, _entry, first)
            at = Position(ledger.ledger_id, first)
            async for record in self._records(place.number, ledger.last_number, at):
                added = record.content
                assert isinstance(added, Added)
                if added.first > last:
                    break
                data = await self._data(record, at)
                start = 0
                for index, length in enumerate(added.sizes):
                    entry_id, stop = added.first + index, start + length
                    if first <= entry_id <= last:
                        size += length
                        if found and (len(found) == limit.items or size > limit.bytes):
                            return tuple(found)
                        position = Position(ledger.ledger_id, entry_id)
                        stored = StoredEntry(position, data[start:stop], added.messages_of(index), added.time_of(index))
                        found.append(stored)
                    start = stop
        return tuple(found)

    async def _count(self, entries: EntryRange, messages_max: int) -> MessageCount:
        counted = MessageCount(entries.after, 0)
        for ledger, first, last in self._ledgers(entries):
            whole = first == 0 and last == ledger.entries - 1
            if whole and counted.messages + ledger.messages <= messages_max:
                counted = MessageCount(ledger.last, counted.messages + ledger.messages, ledger.appended_ms)
                continue
            counted, is_full = await self._count_within(ledger, first, last, counted, messages_max)
            if is_full:
                break
        return counted

    async def _count_within(
        self, ledger: LedgerTotals, first: int, last: int, counted: MessageCount, messages_max: int
    ) -> tuple[MessageCount, bool]:
        """Count entries of one ledger; return the count, and whether further entries exceed it."""
        start = await self._locate(ledger, _entry, first)
        at = Position(ledger.ledger_id, first)
        begun = await self._added_at(start.number, at)
        # The messages of the ledger before the first entry that is counted.
        before = begun.messages_before + sum(begun.messages_of(index) for index in range(first - begun.first))
        wanted = before + messages_max - counted.messages
        # From here on entries are counted one by one: everything before fits in.
        near = await self._locate(ledger, _messages, max(wanted, before))
        if near.number > start.number and near.entry <= last:
            # The entry before it is counted, whatever the size of the next one is.
            last_before = await self._locate(ledger, _entry, near.entry - 1)
            counted = MessageCount(
                Position(ledger.ledger_id, near.entry - 1),
                counted.messages + near.messages - before,
                (await self._added_at(last_before.number, at)).last_ms,
            )
            first, start = near.entry, near
        async for record in self._records(start.number, ledger.last_number, at):
            added = record.content
            assert isinstance(added, Added)
            for index, entry_id in enumerate(range(added.first, added.first + len(added.sizes))):
                if entry_id < first:
                    continue
                if entry_id > last:
                    return counted, False
                total = counted.messages + added.messages_of(index)
                if counted.messages and total > messages_max:
                    return counted, True
                counted = MessageCount(Position(ledger.ledger_id, entry_id), total, added.time_of(index))
        return counted, False

    async def _find_time(self, published_ms: int) -> Position:
        for ledger in tuple(self._log.state.ledgers):
            if not ledger.entries or ledger.appended_ms < published_ms:
                continue
            if ledger.places[0].appended_ms >= published_ms:
                return Position(ledger.ledger_id, -1)
            place = await self._locate(ledger, _appended_ms, published_ms - 1)
            added = await self._added_at(place.number, Position(ledger.ledger_id, place.entry))
            earlier = sum(added.time_of(index) < published_ms for index in range(len(added.sizes)))
            return Position(ledger.ledger_id, place.entry + earlier - 1)
        return self._log.state.last

    def _ledgers(self, entries: EntryRange) -> list[tuple[LedgerTotals, int, int]]:
        """Return the ledgers with entries of the range, each with the first and the last of these entries."""
        found: list[tuple[LedgerTotals, int, int]] = []
        after, upto = entries.after, entries.upto
        for ledger in self._log.state.ledgers:
            if ledger.ledger_id < after.ledger_id or ledger.ledger_id > upto.ledger_id:
                continue
            first = after.entry_id + 1 if ledger.ledger_id == after.ledger_id else 0
            last = min(upto.entry_id, ledger.entries - 1) if ledger.ledger_id == upto.ledger_id else ledger.entries - 1
            if first <= last:
                found.append((ledger, first, last))
        return found

    async def _locate(self, ledger: LedgerTotals, by: By, value: int) -> RecordMark:
        """Return the last record of a ledger whose entry, messages or time is at most ``value``, or its first one."""
        known: list[RecordMark] = sorted({*ledger.places, *self._places.get(ledger.ledger_id, ())})
        at = max(bisect_right(known, value, key=by), 1)
        low = known[at - 1]
        high = known[at].number if at < len(known) else ledger.last_number + 1
        while True:
            scanned, position = 0, Position(ledger.ledger_id, low.entry)
            async for record in self._records(low.number, high - 1, position):
                place = self._place(ledger, record)
                if by(place) > value and place.number != low.number:
                    return low
                low, scanned = place, scanned + 1
                if scanned == _SCANNED:
                    break
            if scanned < _SCANNED:
                return low
            low, high = await self._halve(ledger, by, value, low, high)

    async def _halve(
        self, ledger: LedgerTotals, by: By, value: int, low: RecordMark, high: int
    ) -> tuple[RecordMark, int]:
        """Narrow the numbers between which the wanted record is, until few are left."""
        while high - low.number > _SCANNED:
            middle = (low.number + high) // 2
            position = Position(ledger.ledger_id, low.entry)
            found = None
            async for record in self._records(middle, high - 1, position, exact=False):
                found = record
                break
            if found is None:
                high = middle
                continue
            place = self._place(ledger, found)
            if by(place) <= value:
                low = place
            else:
                high = middle
        return low, high

    def _place(self, ledger: LedgerTotals, record: StoredRecord) -> RecordMark:
        """Return where a record is, and remember it."""
        added = record.content
        assert isinstance(added, Added)
        place = RecordMark(added.first, added.messages_before, added.appended_ms, record.number)
        if len(self._places) > _LEDGERS_MAX:
            self._places.clear()
        known = self._places.setdefault(ledger.ledger_id, [])
        at = bisect_left(known, place)
        if at == len(known) or known[at] != place:
            known.insert(at, place)
            if len(known) > _PLACES_MAX:
                del known[::2]
        return place

    async def _records(
        self, number: int, last: int, position: Position, *, exact: bool = True
    ) -> AsyncIterator[StoredRecord]:
        """
        Yield the records of entries of one ledger from message ``number`` to message ``last``.

        :param exact: there is a record at ``number``. Otherwise the first one may be later.
        """
        following: int | None = None
        record = self._cache.at(self._key, number)
        while number <= last:
            records = [record] if record is not None else await self._fetch(number, position, exact=exact)
            if not records:
                return
            for one in records:
                if one.number > last:
                    return
                number, added = one.number + 1, one.content
                if isinstance(added, Added):
                    if following not in (None, added.first):
                        # Records between them were removed while they were read.
                        raise _RemovedError(Position(position.ledger_id, following))
                    following = added.first + len(added.sizes)
                    yield one
            exact = False
            record = self._cache.after(self._key, records[-1].number)

    async def _fetch(self, number: int, position: Position, *, exact: bool) -> list[StoredRecord]:
        """Return some records from ``number`` on, in order; the records of a ledger are checked by their entries."""
        log, stream = self._log, self._log.subjects.stream
        messages = await log.requests.some(stream, self._key, number, _READ_ITEMS, _READ_BYTES)
        if not messages or (exact and messages[0].number != number):
            # The replica lags behind, or records were removed.
            found = await log.requests.next_at_leader(stream, self._key, number)
            if exact and (found is None or found.number != number):
                raise _RemovedError(position)
            messages = [found] if found is not None else []
        records = [self._decoded(message, position) for message in messages]
        for record in records:
            self._cache.put(self._key, record)
        return records

    async def _added_at(self, number: int, position: Position) -> Added:
        async for record in self._records(number, number, position):
            assert isinstance(record.content, Added)
            return record.content
        raise _RemovedError(position)

    async def _data(self, record: StoredRecord, position: Position) -> bytes:
        """Return the data of the entries of a record."""
        added = record.content
        assert isinstance(added, Added)
        total = sum(added.sizes)
        data = record.data
        if added.pieces and len(data) != total:
            data = await self._pieces(record, added.pieces, position)
            self._cache.put_data(self._key, record, data)
        if len(data) != total:
            raise CorruptEntry(position, f"its record has {len(data)} bytes of {total}", self._log.name)
        return data

    async def _pieces(self, record: StoredRecord, count: int, position: Position) -> bytes:
        """Return the data of the messages before a record, which were stored together with it."""
        requests, subjects = self._log.requests, self._log.subjects
        pieces: list[StoredMessage] = []
        while len(pieces) < count:
            number = pieces[-1].number + 1 if pieces else record.before + 1
            some = await requests.some(subjects.stream, subjects.pieces, number, count - len(pieces), _READ_BYTES)
            if not some:
                found = await requests.next_at_leader(subjects.stream, subjects.pieces, number)
                if found is None:
                    raise _RemovedError(position)
                some = [found]
            if some[-1].number > record.number:
                raise _RemovedError(position)
            pieces += some
        what = f"a piece of the entries before message {record.number} of the log of {self._log.name}"
        return b"".join(unframe(piece.data, what) for piece in pieces)

    def _decoded(self, message: StoredMessage, position: Position) -> StoredRecord:
        try:
            return decode(message.number, message.expected, message.data, self._log.name)
        except UnknownFormat:
            raise
        except Corrupt as error:
            raise CorruptEntry(position, str(error), self._log.name) from error
