"""The records of one file, in memory and on disk; every change is one line, and one step without an await."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from txnframework.environment import Environment
from txnframework.errors import OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.model import Expect, Expected, IndexRange, Key, KeyRange, Record, RecordPage
from txnframework.model.paths import lease_key
from txnframework_example._lines import Head, Line, Place, decode, encode, place_of
from txnframework_example._watch import NotebookWatch

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
                self.head, lines = decode(data, str(path))
            else:
                self.head, lines = Head(identity=f"notebook-{environment.random_bits(64):016x}"), []
            self._lines: dict[Place, Line] = {}
            for line in lines:
                self._remember(line)
            self._write_fair_copy()
        except BaseException:
            os.close(self._file)
            raise

    # -- reading --------------------------------------------------------------------------------------

    def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        line = self._lines.get(place_of(key))
        return None if line is None else line.record

    def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        inside = sorted(
            place for place in self._lines if keys.start <= place[0] < keys.stop and keys.partition in (None, place[1])
        )
        found: list[Record] = []
        for place in inside:
            # The records of one path in several partitions have the same key in a range, so a page may end only between
            # two paths.
            if len(found) >= items_max and found[-1].key.path != place[0]:
                return RecordPage(tuple(found), KeyRange(place[0], keys.stop, keys.partition))
            found.append(self._lines[place].record)
        return RecordPage(tuple(found))

    def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        begin = (entries.start, place_of(entries.after)) if entries.after else (entries.start, ("", ""))
        inside = sorted(
            (key, place)
            for place, line in self._lines.items()
            for index, key in line.indexes
            if index == entries.index and (key, place) > begin and key < entries.stop
        )
        records = tuple(self._lines[place].record for _, place in inside[:items_max])
        if len(inside) <= items_max:
            return RecordPage(records)
        return RecordPage(records, IndexRange(entries.index, inside[items_max - 1][0], entries.stop, records[-1].key))

    # -- writing --------------------------------------------------------------------------------------

    def require(self, key: Key, expected: Expected) -> None:
        """Raise VersionMismatch unless the record is as expected."""
        line = self._lines.get(place_of(key))
        actual = None if line is None else line.number
        if expected is Expect.ANY or (expected is Expect.ABSENT and actual is None):
            return
        if expected is Expect.ABSENT or actual != expected:
            raise VersionMismatch(key, actual)

    def next_number(self) -> int:
        """Return a number that was never given before, for a version, a sequence, or a lease's fencing number."""
        self.head.number += 1
        return self.head.number

    def write(self, line: Line) -> None:
        """
        Make a line durable, then apply it in memory.

        :raises OutcomeUnknown: the line may be stored in the file; opening the file again shows it.
        :raises Unavailable: an earlier line failed, so the end of the file is unknown.
        """
        if self._is_broken:
            raise Unavailable(f"{self.path} failed to be written; close it and open it again")
        data = encode(line)
        try:
            if os.write(self._file, data) != len(data):
                raise OSError("the disk is full")
            os.fsync(self._file)
        except OSError as error:
            self._is_broken = True
            raise OutcomeUnknown(f"{self.path}: {error}") from error
        before = self._lines.get(line.place)
        self._remember(line)
        self._wake(line, () if before is None else (before,))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    # -- steps ----------------------------------------------------------------------------------------

    def _remember(self, line: Line) -> None:
        self.head.number = max(self.head.number, line.number)
        if line.value is None:
            self._lines.pop(line.place, None)
        else:
            self._lines[line.place] = line

    def _wake(self, line: Line, before: Iterable[Line]) -> None:
        entries = line.entries.union(*(one.entries for one in before))
        for watch in tuple(self.watches):
            if watch.concerns(line.place, entries):
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

    def _write_fair_copy(self) -> None:
        """
        Replace the file by a copy of the current records, without leases: their sessions ended with the earlier
        process.

        A crash before the renaming leaves the file as it was.
        """
        self._lines = {place: line for place, line in self._lines.items() if not line.path.startswith(LEASES)}
        copy = self.path.with_name(f"{self.path.name}.new")
        file = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        data = memoryview(encode(self.head, *self._lines.values()))
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
