"""
The files that this process, or the one it was forked from, has open.

SQLite's locks belong to a process, and SQLite tracks its own locks in memory, which a fork copies. A child that opens a
file of its parent believes that it holds the parent's locks. It would then write at the same time as other writers, and
lose its confirmed writes when the parent closes the file.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
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
