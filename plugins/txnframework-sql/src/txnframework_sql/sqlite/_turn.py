"""Whose turn it is next to take a file's write lock, among the processes that want it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from txnframework_sql.sqlite._permissions import mode_beside

if sys.platform == "win32":
    fcntl = None
else:
    import fcntl


class Turn:
    """
    A lock held by a process that has waited for the write lock for too long, until it has it.

    SQLite does not queue: a process that writes without pause takes the write lock again before those that sleep look
    at it. Here every process looks first whether somebody has the turn, and stands back if so. It is no part of what
    makes writes safe: SQLite's own lock is.
    """

    def __init__(self, database: Path) -> None:
        # A file of its own: closing any handle of the database's file would drop SQLite's locks of this process.
        self._database = database
        self._path = database.with_name(f"{database.name}-turn")
        self._file: int | None = None

    def take(self) -> bool:
        """Take the turn if it is free; where there can be no such lock, it always is."""
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
        """Whether nobody has the turn."""
        if not self.take():
            return False
        self.give()
        return True

    def give(self) -> None:
        """Let the next one have it; without having it, nothing happens."""
        if fcntl is not None and self._file is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_UN)
            except OSError:
                # Some file systems have no such locks; closing the file gives up whatever it held.
                self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
