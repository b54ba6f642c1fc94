"""
Locks that the rest of the process cannot drop.

SQLite's own locks are POSIX locks. They belong to the process and to the file, and the kernel drops all of them when
the process closes any descriptor of that file. A program that copies its store file does so, and so does a second
SQLite library in the process. Then another process can believe that it is alone: it moves the log into the file and
removes the log, while this process goes on writing to the removed one. Or two processes write at the same time.

The locks here belong to an open file description, and end only with it. They conflict with SQLite's locks of every
program, so a program that does not know them respects them, too:

* *a shared lock on the database*, on the bytes that SQLite locks exclusively before it removes the log or leaves WAL
  mode. SQLite holds the same lock while a connection is open;
* *a shared lock on the log's index*, on the byte by which SQLite decides whether an opener is the first and may
  initialize the index;
* *an exclusive lock of the writer*, on a byte of the index that SQLite does not use. It is held from the begin of a
  transaction until its COMMIT returns, which includes the checkpoint that SQLite may append to a COMMIT. So no
  connection of a store writes while another one writes or checkpoints.

Connections of other programs write without the third lock. They rely on SQLite's locks on the index, so no process may
read that file beside SQLite.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from txnframework_sql.sqlite._files import FileId

if sys.platform == "linux":
    import fcntl

# The bytes of the database's file that a connection locks shared while it is open: os_unix.c, and "File Locking" in
# SQLite's documentation.
_SHARED = (0x40000002, 510)
# The byte of the index that each process locks shared while it uses the index: "WAL-mode File Format".
_USERS = (128, 1)
# Beyond every byte that SQLite locks or stores.
_WRITER = (1 << 40, 1)
# The two format numbers in the header of a file in WAL mode.
_FORMATS, _WAL_FORMATS = 18, b"\2\2"

# The C structure flock of Linux.
_FLOCK = "hhqqi0q"


class Descriptors:
    """
    Descriptors of database files, which are closed only where that drops no lock; safe for use by all threads.

    A descriptor that is given back is kept for the next caller while the process has another descriptor of the same
    file. Crash window: none; but a connection of the application that is opened between the look and the closing loses
    SQLite's lock, as it would by a copy of the file.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: set[int] = set()
        self._kept: defaultdict[FileId, list[int]] = defaultdict(list)

    def take(self, path: Path) -> int:
        """Return a descriptor of a file; raise OSError if there is none."""
        found = path.stat()
        with self._lock:
            kept = self._kept.get((found.st_dev, found.st_ino))
            descriptor = kept.pop() if kept else os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self._used.add(descriptor)
            return descriptor

    def give_back(self, descriptor: int) -> None:
        """Release a descriptor without locks; close all unused ones of its file if no other one is open."""
        found = os.fstat(descriptor)
        file = found.st_dev, found.st_ino
        with self._lock:
            self._used.discard(descriptor)
            self._kept[file].append(descriptor)
            if _count_open(file) == len(self._kept[file]):
                for kept in self._kept.pop(file):
                    os.close(kept)

    def forked(self) -> None:
        """Close all in a child process, which inherits no POSIX locks; the parent's descriptions stay open."""
        self._lock = threading.Lock()
        for descriptor in [*self._used, *(one for kept in self._kept.values() for one in kept)]:
            with suppress(OSError):
                os.close(descriptor)
        self._used.clear()
        self._kept.clear()


def _count_open(file: FileId) -> int | None:
    """Return how many descriptors of a file this process has; None: unknown."""
    count = 0
    try:
        names = [one.name for one in Path("/proc/self/fd").iterdir()]
    except OSError:
        return None
    for name in names:
        with suppress(OSError):  # closed since
            found = os.fstat(int(name))
            count += (found.st_dev, found.st_ino) == file
    return count


# One for each process, like the locks that a closing would drop.
_descriptors = Descriptors()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_descriptors.forked)


class Presence:
    """The locks of one connection; only one thread uses it. Only Linux has such locks; elsewhere, nothing is locked."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._index = database.with_name(f"{database.name}-shm")
        self._in_database: int | None = None
        self._in_index: int | None = None
        self._is_writing = False

    def enter(self) -> bool:
        """
        Keep the log of the database from being removed; return False if another process locks the file exclusively.

        A file that is not in WAL mode is not locked, because its writers need it exclusively.
        """
        if sys.platform != "linux" or self._in_database is not None:
            return True
        try:
            taken = _descriptors.take(self._database)
        except OSError:  # SQLite fails as well, and reports the reason
            return True
        is_wal = os.pread(taken, len(_WAL_FORMATS), _FORMATS) == _WAL_FORMATS
        if is_wal and _locks(taken, _SHARED, is_exclusive=False):
            self._in_database = taken
            return True
        _descriptors.give_back(taken)
        return not is_wal

    def enter_index(self) -> None:
        """
        Keep the index from being initialized again.

        The connection uses the index, and ``enter`` keeps it from being removed. So this is the index that it uses.
        """
        if self._in_database is None or self._in_index is not None:
            return
        with suppress(OSError):
            self._in_index = _descriptors.take(self._index)
            _locks(self._in_index, _USERS, is_exclusive=False)

    def begin_writing(self) -> bool:
        """Become the only writer; return False if another connection writes."""
        self._is_writing = self._in_index is None or _locks(self._in_index, _WRITER, is_exclusive=True)
        return self._is_writing

    def end_writing(self) -> None:
        """Let others write; do nothing if this connection does not."""
        if self._is_writing and self._in_index is not None:
            _unlock(self._in_index, _WRITER)
        self._is_writing = False

    def leave(self) -> None:
        """
        Release all locks, immediately before the connection closes.

        What SQLite believes to hold is restored first. So a last connection of all processes can remove the log.
        """
        self.end_writing()
        for taken, bytes_ in ((self._in_index, _USERS), (self._in_database, _SHARED)):
            if taken is not None:
                _restore(taken, bytes_)
                _unlock(taken, bytes_)

    def close(self) -> None:
        """Release the files, after the connection was closed."""
        for taken in (self._in_index, self._in_database):
            if taken is not None:
                _descriptors.give_back(taken)
        self._in_index = self._in_database = None


def _set(descriptor: int, command: int, kind: int, bytes_: tuple[int, int]) -> None:
    fcntl.fcntl(descriptor, command, struct.pack(_FLOCK, kind, os.SEEK_SET, *bytes_, 0))


def _locks(descriptor: int, bytes_: tuple[int, int], is_exclusive: bool) -> bool:
    """Lock bytes; return False if another description or process has them locked."""
    try:
        _set(descriptor, fcntl.F_OFD_SETLK, fcntl.F_WRLCK if is_exclusive else fcntl.F_RDLCK, bytes_)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a kernel or a file system without such locks
        return True
    return True


def _unlock(descriptor: int, bytes_: tuple[int, int]) -> None:
    with suppress(OSError):
        _set(descriptor, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, bytes_)


def _restore(descriptor: int, bytes_: tuple[int, int]) -> None:
    """Lock bytes shared for the process, as SQLite does."""
    with suppress(OSError):
        _set(descriptor, fcntl.F_SETLK, fcntl.F_RDLCK, bytes_)
