"""The copy of a stream's records in this process: in order, with their indexes, and with the deletions."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from txnframework.model import (
    IndexedPage,
    IndexedRecord,
    IndexEntry,
    IndexPage,
    IndexRange,
    IndexReference,
    KeyRange,
    Record,
    RecordPage,
)
from txnframework_nats.records._layout import Content, RecordID, key_of, record_id
from txnframework_nats.records._sorted_keys import SortedKeys


class CopiedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record in the copy."""

    record: Record
    indexes: frozenset[IndexEntry]


class RecordChange(msgspec.Struct, frozen=True, gc=False):
    """
    One written or deleted record.

    ``indexes``: the index entries of all its versions since the last one that this process has read; None if they are
    unknown, because versions between were removed from the stream before this process read them. ``value``: None if the
    record was deleted.
    """

    path: str
    partition: str
    indexes: frozenset[IndexEntry] | None
    value: bytes | None


class RecordCopy:
    """
    Every record of the stream, as of the message with number ``applied``.

    ``deleted`` contains the numbers of deletions. The stream drops such a message after a time, and the copy is not
    notified of it. So a number here means: the subject's last number is this one or 0.
    """

    def __init__(self) -> None:
        self.applied = 0
        self.deleted: dict[RecordID, int] = {}
        self._stored: dict[RecordID, CopiedRecord] = {}
        self._places: SortedKeys[RecordID] = SortedKeys()
        self._indexes: dict[str, SortedKeys[tuple[bytes, RecordID]]] = {}

    def get(self, place: RecordID) -> Record | None:
        """Return the record at a place, or None."""
        stored = self._stored.get(place)
        return stored.record if stored else None

    def sequence(self, place: RecordID) -> int:
        """Return the number of the last message of a record, or 0 if there is none."""
        stored = self._stored.get(place)
        return stored.record.version if stored else self.deleted.get(place, 0)

    def apply(self, content: Content, sequence: int, replaced: int) -> RecordChange | None:
        """
        Apply a message, which replaced the message ``replaced`` of its record (0: none); return the change.

        A message that the copy has had is ignored, and the result is None: a consumer that replaces another one may
        repeat messages.
        """
        place = content.place
        read = self.sequence(place)
        if sequence <= read:
            return None
        before = self._stored.get(place)
        # A watch may have been armed while the record had a version that is not read here any more.
        is_known = replaced <= read
        old = before.indexes if before else frozenset[IndexEntry]()
        if content.value is None:
            # In the order of the numbers, which `forget_deleted_until` needs.
            self.deleted.pop(place, None)
            self.deleted[place] = sequence
            if before is not None:
                self._remove(place, before)
            return RecordChange(*place, old if is_known else None, None)
        self.deleted.pop(place, None)
        if before is None:
            self._places.add(place)
        record = Record(key_of(place), content.value, sequence)
        self._stored[place] = CopiedRecord(record, content.indexes)
        self._reindex(place, old, content.indexes)
        return RecordChange(*place, old | content.indexes if is_known else None, content.value)

    def learn_deleted(self, place: RecordID, sequence: int) -> None:
        """Replace what is known of the deletion of an absent record; ``sequence`` 0: the stream has dropped it."""
        if sequence <= self.deleted.pop(place, 0) or place in self._stored:
            return
        self.deleted[place] = sequence

    def forget_deleted_until(self, sequence: int) -> None:
        """Forget the deletions up to a number: the stream has dropped them."""
        while self.deleted:
            place = next(iter(self.deleted))
            if self.deleted[place] > sequence:
                return
            del self.deleted[place]

    def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        found: list[Record] = []
        for path, partition in self._places.from_((keys.start, "")):
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
        found: list[Record] = []
        last_key = b""
        for key, place in self._entries(entries):
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
        lines: list[IndexReference] = []
        for key, place in self._entries(entries):
            if key >= entries.stop:
                break
            if len(lines) == items_max:
                resume = IndexRange(entries.index, lines[-1].entry.key, entries.stop, lines[-1].key)
                return IndexPage(tuple(lines), resume)
            lines.append(IndexReference(IndexEntry(entries.index, key), key_of(place)))
        return IndexPage(tuple(lines))

    def clear(self) -> None:
        """Forget everything."""
        self.applied = 0
        self.deleted.clear()
        self._stored.clear()
        self._indexes.clear()
        self._places = SortedKeys()

    def places(self) -> frozenset[RecordID]:
        """Return the places of all records."""
        return frozenset(self._stored)

    def _entries(self, entries: IndexRange) -> Iterator[tuple[bytes, RecordID]]:
        index = self._indexes.get(entries.index)
        if index is None:
            return
        if entries.after is None:
            yield from index.from_((entries.start, ("", "")))
            return
        after = record_id(entries.after)
        for key, place in index.from_((entries.start, after)):
            if (key, place) != (entries.start, after):
                yield key, place

    def _remove(self, place: RecordID, before: CopiedRecord) -> None:
        del self._stored[place]
        self._places.remove(place)
        self._reindex(place, before.indexes, frozenset())

    def _reindex(self, place: RecordID, before: frozenset[IndexEntry], after: frozenset[IndexEntry]) -> None:
        for entry in before - after:
            index = self._indexes[entry.index]
            index.remove((entry.key, place))
            if not len(index):
                del self._indexes[entry.index]
        for entry in after - before:
            self._indexes.setdefault(entry.index, SortedKeys()).add((entry.key, place))
