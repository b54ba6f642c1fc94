"""The records of one file, in memory and on disk, with watches; each step is one line, written without an await."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from zope.interface import implementer

from txnframework.environment import Environment
from txnframework.errors import Closed, OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.interfaces import IWatch
from txnframework.model import Expect, Expected, IndexEntry, IndexRange, Key, KeyRange, Record, RecordPage
from txnframework.model.paths import lease_key
from txnframework_example._format import Change, Head, RecordId, decode, encode, record_id_of


@implementer(IWatch)
class NotebookWatch:
    """A flag that each change sets, so that no change is missed between two waits."""

    def __init__(self, target: Key | KeyRange | IndexRange) -> None:
        self._target = target
        self._flag = asyncio.Event()
        self._is_closed = False

    async def changed(self) -> None:
        """Return once anything may have changed since arming or since the last return."""
        await self._flag.wait()
        if self._is_closed:
            raise Closed("the watch was closed")
        self._flag.clear()

    async def close(self) -> None:
        """Close the watch; may be repeated."""
        self.end()

    def wake(self) -> None:
        """Make ``changed`` return, now or at its next call."""
        self._flag.set()

    def end(self) -> None:
        """Make ``changed`` raise Closed, now and later."""
        self._is_closed = True
        self._flag.set()

    @property
    def is_closed(self) -> bool:
        """Whether the watch was closed."""
        return self._is_closed

    def matches(self, record_id: RecordId, entries: frozenset[IndexEntry]) -> bool:
        """
        Return whether the watch reports a change of this record.

        :param entries: the record's index entries before and after the change.
        """
        target = self._target
        if isinstance(target, Key):
            return record_id == record_id_of(target)
        if isinstance(target, KeyRange):
            return target.start <= record_id[0] < target.stop and target.partition in (None, record_id[1])
        return any(one.index == target.index and target.start <= one.key < target.stop for one in entries)


LEASES: Final = lease_key("").path.rpartition("/")[0] + "/"


class Notebook:
    """
    The records that one process read from a file, and all its changes to them.

    The file is locked, and other processes are refused. This memory is therefore the current state, and a newly opened
    file has no sessions.
    """

    def __init__(self, path: Path, environment: Environment) -> None:
        self.path = path
        self.watches: set[NotebookWatch] = set()
        self.sessions = 0
        self._is_broken = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._lock()
            data = path.read_bytes()
            if b"\n" in data:
                self.head, changes = decode(data, str(path))
            else:
                self.head, changes = Head(identity=f"notebook-{environment.random_bits(64):016x}"), []
            self._changes: dict[RecordId, Change] = {}
            for change in changes:
                self._apply(change)
            self._compact()
        except BaseException:
            os.close(self._file)
            raise

    # -- reading --------------------------------------------------------------------------------------

    def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        change = self._changes.get(record_id_of(key))
        return None if change is None else change.record

    def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        inside = sorted(
            (path, partition)
            for path, partition in self._changes
            if keys.start <= path < keys.stop and keys.partition in (None, partition)
        )
        found: list[Record] = []
        for record_id in inside:
            # The records of one path in several partitions have the same key in a range, so a page may end only between
            # two paths.
            if len(found) >= items_max and found[-1].key.path != record_id[0]:
                return RecordPage(tuple(found), KeyRange(record_id[0], keys.stop, keys.partition))
            found.append(self._changes[record_id].record)
        return RecordPage(tuple(found))

    def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        begin = (entries.start, record_id_of(entries.after)) if entries.after else (entries.start, ("", ""))
        inside = sorted(
            (key, record_id)
            for record_id, change in self._changes.items()
            for index, key in change.indexes
            if index == entries.index and (key, record_id) > begin and key < entries.stop
        )
        records = tuple(self._changes[record_id].record for _, record_id in inside[:items_max])
        if len(inside) <= items_max:
            return RecordPage(records)
        return RecordPage(records, IndexRange(entries.index, inside[items_max - 1][0], entries.stop, records[-1].key))

    # -- writing --------------------------------------------------------------------------------------

    def require(self, key: Key, expected: Expected) -> None:
        """Raise VersionMismatch unless the record is as expected."""
        change = self._changes.get(record_id_of(key))
        actual = None if change is None else change.number
        if expected is Expect.ANY or (expected is Expect.ABSENT and actual is None):
            return
        if expected is Expect.ABSENT or actual != expected:
            raise VersionMismatch(key, actual)

    def next_number(self) -> int:
        """Return a number that was never given before, for a version, a sequence, or a lease's fencing number."""
        self.head.number += 1
        return self.head.number

    def write(self, *changes: Change) -> None:
        """
        Make the changes of a step durable as one line, then apply them in memory.

        :raises OutcomeUnknown: the line may be stored in the file; opening the file again shows it.
        :raises Unavailable: an earlier line failed, so the end of the file is unknown.
        """
        if self._is_broken:
            raise Unavailable(f"an earlier write to {self.path} failed; close the store and open it again")
        data = encode(changes)
        try:
            if os.write(self._file, data) != len(data):
                raise OSError("the disk is full")
            os.fsync(self._file)
        except OSError as error:
            self._is_broken = True
            raise OutcomeUnknown(f"{self.path}: {error}") from error
        befores = [self._changes.get(change.record_id) for change in changes]
        for change in changes:
            self._apply(change)
        for change, before in zip(changes, befores, strict=True):
            self._wake(change, () if before is None else (before,))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    # -- steps ----------------------------------------------------------------------------------------

    def _apply(self, change: Change) -> None:
        self.head.number = max(self.head.number, change.number)
        if change.value is None:
            self._changes.pop(change.record_id, None)
        else:
            self._changes[change.record_id] = change

    def _wake(self, change: Change, before: Iterable[Change]) -> None:
        entries = change.entries.union(*(one.entries for one in before))
        for watch in tuple(self.watches):
            if watch.matches(change.record_id, entries):
                watch.wake()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Refuse a file that another process has just replaced by its compacted copy.
            is_current = os.path.samestat(os.fstat(self._file), self.path.stat())
        except OSError as error:
            raise Unavailable(f"{self.path} is open in another process, and a notebook is for one") from error
        if not is_current:
            raise Unavailable(f"{self.path} was being opened by another process; try again")

    def _compact(self) -> None:
        """
        Replace the file by a copy of the current records, without leases: their sessions ended with the earlier
        process.

        A crash before the renaming leaves the file as it was.
        """
        kept = (change for change in self._changes.values() if not change.path.startswith(LEASES))
        self._changes = {change.record_id: change for change in kept}
        copy = self.path.with_name(f"{self.path.name}.new")
        file = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        data = memoryview(encode(self.head, *([change] for change in self._changes.values())))
        while data:
            data = data[os.write(file, data) :]
        os.fsync(file)
        # Locked before it is renamed, so that a process that opens the name finds the file locked.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        copy.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        os.close(self._file)
        self._file = file
