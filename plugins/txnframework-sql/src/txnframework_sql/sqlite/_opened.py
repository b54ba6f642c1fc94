"""
Which files this process, and the one it was forked from, have open.

SQLite's locks belong to a process, and SQLite keeps track of its own in memory, which a fork copies: a child that opens
a file its parent had open believes that it holds locks which are the parent's alone. It would then write beside other
writers, and lose what it confirmed when the parent closes the file.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

from txnframework.errors import InvalidInput

FileId = tuple[int, int]


class OpenFiles:
    """Files by device and inode, as SQLite tells them apart; any of its threads may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: Counter[FileId] = Counter()
        # Made just now by a thread that does not know the inode yet; a path serves until it does.
        self._making: Counter[Path] = Counter()
        self._of_parent: set[FileId | Path] = set()

    def begin(self, path: Path, shown_url: str) -> FileId | None:
        """
        Note that a file is being opened; return what it is, None if it is not there yet.

        :raises InvalidInput: the process that this one was forked from had it open.
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
        """Note what a file is that was not there when its opening began."""
        found = file_id(path)
        with self._lock:
            if found is not None:
                self._own[found] += 1
            self._making[path] -= 1
        return found

    def end(self, closed: FileId | None) -> None:
        """Note that a connection was closed."""
        if closed is not None:
            with self._lock:
                self._own[closed] -= 1

    def forked(self) -> None:
        """Begin anew in a child process."""
        self._lock = threading.Lock()
        self._of_parent.update(+self._own)
        self._of_parent.update(+self._making)
        self._own.clear()
        self._making.clear()


def file_id(path: Path) -> FileId | None:
    """Return what SQLite knows a file by. It is not opened: closing it would drop this process's locks on it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


# SQLite's own table is one for each process, and so is this.
open_files = OpenFiles()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=open_files.forked)
