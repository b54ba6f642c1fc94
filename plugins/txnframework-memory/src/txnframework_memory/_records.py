"""The records of one space, their indexes and their locks; every change is one step without an await."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from txnframework.errors import VersionMismatch
from txnframework.model import (
    Expect,
    Expected,
    IndexedPage,
    IndexedRecord,
    IndexEntry,
    IndexPage,
    IndexRange,
    IndexReference,
    Key,
    KeyRange,
    Put,
    PutSequential,
    Record,
    RecordPage,
    Step,
)
from txnframework_memory._link import Link, RecordWatch, W, Watch, Watches

RecordID = tuple[str, str]
"""Path and partition. Python sorts text as its UTF-8 bytes sort, so paths are in the order that the role requires."""


Row = tuple[str, str]
"""The place of a row: its table and its key."""


def record_id(key: Key) -> RecordID:
    """Return the place of a record; without a partition, the record has a partition of its own, named as its path."""
    return key.path, key.partition or key.path


@dataclass(frozen=True, slots=True)
class Change:
    """
    One written or removed record.

    ``indexes``: its index entries before and after. ``value``: None if the record was removed.
    """

    path: str
    partition: str
    indexes: frozenset[IndexEntry]
    value: bytes | None = None


def concerned_by(target: Key | KeyRange | IndexRange, change: Change) -> bool:
    """Return whether ``change`` wakes a watch on ``target``."""
    if isinstance(target, Key):
        return record_id(target) == (change.path, change.partition)
    if isinstance(target, KeyRange):
        inside = target.start <= change.path < target.stop
        return inside and target.partition in (None, change.partition)
    return any(entry.index == target.index and target.start <= entry.key < target.stop for entry in change.indexes)


class IndexWatch(Watch[Change]):
    """A watch on the records with entries in a range of an index."""

    def __init__(self, watches: Watches[Change], target: IndexRange, link: Link) -> None:
        super().__init__(watches, partial(concerned_by, target), link)
        self.index = target.index


@dataclass(frozen=True, slots=True)
class _Stored:
    record: Record
    indexes: frozenset[IndexEntry]


class RecordWatches(Watches[Change]):
    """
    The armed watches on records, in groups, so that a change is compared with few of them.

    A consumer has watches for each segment of its topic.
    """

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[Hashable, dict[Watch[Change], None]] = {}
        # The number of each watch, by which the watches of several groups are woken in the order of arming.
        self._numbers: dict[Watch[Change], int] = {}
        self._last_number = 0

    def add(self, watch: W) -> W:
        """Wake ``watch`` from now on, and return it."""
        self._last_number += 1
        self._numbers[watch] = self._last_number
        self._groups.setdefault(_group_of(watch), {})[watch] = None
        return super().add(watch)

    def remove(self, watch: Watch[Change]) -> None:
        """Remove a watch; an unknown one is ignored."""
        if self._numbers.pop(watch, None) is not None:
            group = _group_of(watch)
            del self._groups[group][watch]
            if not self._groups[group]:
                del self._groups[group]
        super().remove(watch)

    def notify(self, changes: Iterable[Change]) -> None:
        """Wake every watch that one of the changes concerns."""
        told = tuple(changes)
        groups = dict.fromkeys(group for change in told for group in _groups_of(change) if group in self._groups)
        for watch in sorted((one for group in groups for one in self._groups[group]), key=self._numbers.__getitem__):
            if watch.link is not None and watch.link.is_cut:
                continue
            if concerning := tuple(filter(watch.concerns, told)):
                watch.wake(concerning)


def _group_of(watch: Watch[Change]) -> Hashable:
    """Return the group of a watch: its record, its index, or all ranges of keys."""
    if isinstance(watch, RecordWatch):
        return watch.place
    return watch.index if isinstance(watch, IndexWatch) else KeyRange


def _groups_of(change: Change) -> set[Hashable]:
    """Return the groups that have all watches that a change may concern."""
    return {(change.path, change.partition), KeyRange, *(entry.index for entry in change.indexes)}


class Records:
    """Versioned records in key order, and index entries in index order."""

    def __init__(self) -> None:
        self.watches = RecordWatches()
        self._stored: dict[RecordID, _Stored] = {}
        self._places: list[RecordID] = []
        self._indexes: dict[str, list[tuple[bytes, RecordID]]] = {}
        # One counter for every version and every sequence, instead of one for each prefix. It only grows, so no
        # version returns when a record is created again, and no number of a prefix is given twice.
        self.last_number = 0

    def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        stored = self._stored.get(record_id(key))
        return stored.record if stored else None

    def apply(self, step: Step, versions: Sequence[int] | None = None) -> tuple[Record, ...]:
        """
        Write and delete the records of a step; return those that the puts wrote.

        ``versions``: those of ``new_number`` that the puts get.

        :raises VersionMismatch: a record is not as expected; nothing was written.
        """
        self.require(step)
        changes: list[Change] = []
        numbers = iter(self.new_number, None) if versions is None else iter(versions)
        written = [self._put(put, changes, next(numbers)) for put in step.puts]
        for delete in step.deletes:
            self._remove(record_id(delete.key), changes)
        self.watches.notify(changes)
        return tuple(written)

    def require(self, step: Step) -> None:
        """
        Apply nothing.

        :raises VersionMismatch: ``apply`` would raise it.
        """
        for part in (*step.checks, *step.puts, *step.deletes):
            if not isinstance(part, PutSequential):
                self._check(part.key, part.expected)

    def require_vacant(self, entries: IndexRange) -> None:
        """
        Require that no record has an index entry in the range.

        :raises VersionMismatch: one has; the error names it.
        """
        for record in self.scan_index(entries, 1).records:
            raise VersionMismatch(record.key, record.version)

    def new_number(self) -> int:
        """Return the next number; no other record gets it as its version."""
        self.last_number += 1
        return self.last_number

    def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        found: list[Record] = []
        first = bisect_left(self._places, (keys.start, ""))
        for at in range(first, len(self._places)):
            path, partition = self._places[at]
            if path >= keys.stop:
                break
            if keys.partition is not None and partition != keys.partition:
                continue
            # The records of one path in several partitions have the same key in a range, so a page may end only between
            # two paths.
            if len(found) >= items_max and found[-1].key.path != path:
                return RecordPage(tuple(found), KeyRange(path, keys.stop, keys.partition))
            found.append(self._stored[path, partition].record)
        return RecordPage(tuple(found))

    def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of the index."""
        index = self._indexes.get(entries.index, [])
        if entries.after is None:
            first = bisect_left(index, (entries.start, ("", "")))
        else:
            first = bisect_right(index, (entries.start, record_id(entries.after)))
        found: list[Record] = []
        last_key = b""
        for key, place in index[first : first + items_max + 1]:
            if key >= entries.stop:
                break
            if len(found) == items_max:
                resume = IndexRange(entries.index, last_key, entries.stop, found[-1].key)
                return RecordPage(tuple(found), resume)
            found.append(self._stored[place].record)
            last_key = key
        return RecordPage(tuple(found))

    def scan_indexed(self, keys: KeyRange, items_max: int) -> IndexedPage:
        """Return a page of records with their index entries."""
        page = self.scan(keys, items_max)
        assert not isinstance(page.resume, IndexRange)
        found = (self._stored[record_id(record.key)] for record in page.records)
        return IndexedPage(tuple(IndexedRecord(one.record, tuple(sorted(one.indexes))) for one in found), page.resume)

    def scan_entries(self, entries: IndexRange, items_max: int) -> IndexPage:
        """Return a page of an index."""
        index = self._indexes.get(entries.index, [])
        if entries.after is None:
            first = bisect_left(index, (entries.start, ("", "")))
        else:
            first = bisect_right(index, (entries.start, record_id(entries.after)))
        lines = tuple(
            IndexReference(IndexEntry(entries.index, key), Key(path, "" if partition == path else partition))
            for key, (path, partition) in index[first : first + items_max]
            if key < entries.stop
        )
        if len(lines) < items_max:
            return IndexPage(lines)
        return IndexPage(lines, IndexRange(entries.index, lines[-1].entry.key, entries.stop, lines[-1].key))

    def skip_numbers(self, number: int) -> None:
        """Give no number up to ``number``."""
        self.last_number = max(self.last_number, number)

    def _check(self, key: Key, expected: Expected) -> None:
        """Raise VersionMismatch unless the record is as expected."""
        stored = self._stored.get((key.path, key.partition or key.path))
        actual = stored.record.version if stored else None
        if expected is Expect.ANY or (expected is Expect.ABSENT and actual is None):
            return
        if expected is Expect.ABSENT or actual != expected:
            raise VersionMismatch(key, actual)

    def _put(self, put: Put | PutSequential, changes: list[Change], version: int) -> Record:
        """Write one record with its index entries."""
        key = put.key if isinstance(put, Put) else self._next_key(put.prefix)
        place = key.path, key.partition or key.path
        before = self._stored.get(place)
        if before is None:
            insort(self._places, place)
        after = _Stored(Record(key, bytes(put.value), version), frozenset(put.indexes))
        self._stored[place] = after
        indexes = self._reindex(place, before.indexes if before else frozenset(), after.indexes)
        changes.append(Change(*place, indexes, after.record.value))
        return after.record

    def _next_key(self, prefix: Key) -> Key:
        """Return the key of the next record under a prefix, in the prefix's partition."""
        path, partition = record_id(prefix)
        while True:
            next_path = f"{path}/{self.last_number:020d}"
            if (next_path, partition) not in self._stored:
                return Key(next_path, partition)
            self.last_number += 1

    def _remove(self, place: RecordID, changes: list[Change]) -> None:
        """Remove one record with its index entries; an absent one is ignored."""
        before = self._stored.pop(place, None)
        if before is not None:
            del self._places[bisect_left(self._places, place)]
            changes.append(Change(*place, self._reindex(place, before.indexes, frozenset())))

    def _reindex(
        self, place: RecordID, before: frozenset[IndexEntry], after: frozenset[IndexEntry]
    ) -> frozenset[IndexEntry]:
        """Update the indexes in the same step as the record; return its index entries before and after."""
        for entry in before - after:
            index = self._indexes[entry.index]
            del index[bisect_left(index, (entry.key, place))]
            if not index:
                del self._indexes[entry.index]
        for entry in after - before:
            insort(self._indexes.setdefault(entry.index, []), (entry.key, place))
        return before | after


class RowLocked(Exception):
    """Another open transaction has written the row; roll back and try again."""


class Locks:
    """The records and rows that open transactions have written, each with the end of its transaction."""

    def __init__(self) -> None:
        self._everything: asyncio.Event | None = None
        self._records: dict[RecordID, asyncio.Event] = {}
        self._rows: dict[Row, asyncio.Event] = {}

    def whole(self) -> asyncio.Event | None:
        """Return the end of a transaction that has locked everything, or None."""
        return self._everything

    def of_step(self, step: Step) -> asyncio.Event | None:
        """Return the end of a transaction that has written a record of this step, or None."""
        if self._everything is not None or not self._records:
            return self._everything
        places = [record_id(part.key) for part in step.keyed()]
        return next((self._records[place] for place in places if place in self._records), None)

    def take_step(self, step: Step, end: asyncio.Event) -> None:
        """Lock the records of a step until ``end`` is set; if it has more than records, lock everything."""
        if step.is_of_records:
            self._records |= {record_id(part.key): end for part in step.keyed()}
        else:
            self._everything = end

    def take_row(self, row: Row, end: asyncio.Event) -> None:
        """
        Lock a row until ``end`` is set.

        :raises RowLocked: another transaction has it. It does not wait, so there are no deadlocks.
        """
        if self._rows.setdefault(row, end) is not end:
            raise RowLocked(f"row {row[1]} of {row[0]} is locked by another transaction")

    def release(self, end: asyncio.Event) -> None:
        """Unlock everything of a transaction, and wake the callers that wait for it."""
        self._records = {place: its for place, its in self._records.items() if its is not end}
        self._rows = {row: its for row, its in self._rows.items() if its is not end}
        if self._everything is end:
            self._everything = None
        end.set()
