"""
The files of a SQLite database: protection after a fork, permissions, and fairness between waiting processes.

SQLite's locks belong to a process, and SQLite tracks its own locks in memory, which a fork copies. A child that opens a
file of its parent believes that it holds the parent's locks. It would then write at the same time as other writers, and
lose its confirmed writes when the parent closes the file. ``OpenFiles`` prevents that.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

from txnframework.errors import InvalidInput

FileId = tuple[int, int]


class OpenFiles:
    """Files by device and inode, as SQLite identifies them; safe for use by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: Counter[FileId] = Counter()
        # Files that a thread is creating, whose inode is not yet known; the path identifies them meanwhile.
        self._making: Counter[Path] = Counter()
        self._of_parent: set[FileId | Path] = set()

    def begin(self, path: Path, shown_url: str) -> FileId | None:
        """
        Record that a file is being opened; return its id, or None if it does not exist yet.

        :raises InvalidInput: the process that this one was forked from had the file open.
        """
        found = file_id(path)
        with self._lock:
            if path in self._of_parent or found in self._of_parent:
                raise InvalidInput(
                    f"{shown_url} was open in the process that this one was forked from; open it in a process started "
                    "by spawn or exec, or fork before it is opened"
                )
            if found is None:
                self._making[path] += 1
            else:
                self._own[found] += 1
        return found

    def made(self, path: Path) -> FileId | None:
        """Record and return the id of a file that did not exist when its opening began."""
        found = file_id(path)
        with self._lock:
            if found is not None:
                self._own[found] += 1
            self._making[path] -= 1
        return found

    def end(self, closed: FileId | None) -> None:
        """Record that a connection was closed."""
        if closed is not None:
            with self._lock:
                self._own[closed] -= 1

    def forked(self) -> None:
        """Start empty in a child process, with the parent's files as forbidden."""
        self._lock = threading.Lock()
        self._of_parent.update(+self._own)
        self._of_parent.update(+self._making)
        self._own.clear()
        self._making.clear()


def file_id(path: Path) -> FileId | None:
    """
    Return the id by which SQLite identifies a file.

    The file is not opened, because closing it would release this process's locks on it.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


# One for each process, like SQLite's own table.
open_files = OpenFiles()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=open_files.forked)


_LOG = logging.getLogger(__name__)

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
_READ_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH
_ENTERED_BY_OTHERS = stat.S_IXGRP | stat.S_IXOTH

_warned: set[Path] = set()
_warned_remote: set[Path] = set()
_warned_reset: set[Path] = set()
_RESET_REPAIRED = (3, 51, 3)
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "fuse.sshfs", "glusterfs"})


def make_directory(path: Path) -> None:
    """Create a directory that only this user can enter, and its parents; an existing one is unchanged."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        with suppress(FileExistsError):
            one.mkdir(mode=PRIVATE_DIRECTORY)


def make_file(path: Path) -> None:
    """
    Create an empty file that only this user can read, unless it exists; SQLite gives its other files the same mode.

    The file is created under another name and linked. Closing a handle of the database's own file would release this
    process's SQLite locks on it. Crash window: an empty file with the other name may be left behind.
    """
    if path.exists():
        return
    draft = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(8).hex()}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))
    try:
        with suppress(FileExistsError):
            os.link(draft, path)
    except OSError:  # a file system without links
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))
    finally:
        draft.unlink()


def warn_if_others_read(path: Path, shown_url: str) -> None:
    """Warn once in each process that other users can read an existing database."""
    try:
        mode, above = path.stat().st_mode, path.parent.stat().st_mode
    except OSError:
        return
    if os.name != "posix" or path in _warned or not (mode & _READ_BY_OTHERS and above & _ENTERED_BY_OTHERS):
        return
    _warned.add(path)
    _LOG.warning("%s can be read by other users of this machine; run 'chmod 600' on it and on its -wal file", shown_url)


def warn_if_remote(path: Path, shown_url: str) -> None:
    """Warn once in each process that a database is on a network file system."""
    try:
        kind = file_system_of(path, Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace"))
    except OSError:  # not Linux
        return
    if path in _warned_remote or kind not in _REMOTE:
        return
    _warned_remote.add(path)
    _LOG.warning("%s is on a network file system (%s), which can lose messages; use a local disk", shown_url, kind)


def warn_if_log_may_be_reset(path: Path, shown_url: str, version: tuple[int, ...]) -> None:
    """
    Warn once in each process that connections of the application write to a database with an old SQLite.

    Until 3.51.3, two connections that write and checkpoint at the same moment can damage the file ("WAL reset bug").
    Connections of stores never do both at the same time, but those of an application do not take their lock.
    """
    if path in _warned_reset or version >= _RESET_REPAIRED:
        return
    _warned_reset.add(path)
    _LOG.warning(
        "%s: SQLite %s can damage the file in rare cases if an application's own connections write to it; use 3.51.3 or"
        " later",
        shown_url,
        ".".join(map(str, version)),
    )


def file_system_of(path: Path, mounts: str) -> str:
    """Return the type of the file system that an absolute path is on, from the text of ``/proc/self/mounts``."""
    found = ("", "")
    for line in mounts.splitlines():
        _, mounted, kind, *_ = line.split(" ")
        where = mounted.replace("\\040", " ")
        # Of two mounts at one place, the later one is visible.
        if path.is_relative_to(where) and len(where) >= len(found[0]):
            found = where, kind
    return found[1]


def mode_beside(database: Path) -> int:
    """Return the mode of a file beside a database, for the users of the database."""
    try:
        return stat.S_IMODE(database.stat().st_mode) & 0o666
    except OSError:
        return PRIVATE_FILE


if sys.platform == "win32":
    fcntl = None
else:
    import fcntl


class WriterFairness:
    """
    A lock that a process holds after it has waited too long for the write lock, until it acquires the write lock.

    SQLite has no queue: a process that writes continuously takes the write lock again before sleeping processes retry.
    Here every process first checks whether another process holds this lock, and holds back if so. The safety of writes
    does not depend on this lock, only on SQLite's own lock.
    """

    def __init__(self, database: Path) -> None:
        # A separate file: closing any handle of the database's file would release SQLite's locks of this process.
        self._database = database
        self._path = database.with_name(f"{database.name}-turn")
        self._file: int | None = None

    def acquire(self) -> bool:
        """Acquire the lock if it is free; on a file system without such locks it is always free."""
        if fcntl is None:
            return True
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode_beside(self._database))
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def is_free(self) -> bool:
        """Return whether no process holds the lock."""
        if not self.acquire():
            return False
        self.release()
        return True

    def release(self) -> None:
        """Release the lock; do nothing if this process does not hold it."""
        if fcntl is not None and self._file is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_UN)
            except OSError:
                # Some file systems have no such locks; closing the file releases any lock.
                self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
