"""Fairness between the processes that wait for a file's write lock."""

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
    A lock held by a process that has waited too long for the write lock, until it acquires it.

    SQLite has no queue: a process that writes continuously takes the write lock again before sleeping processes retry.
    Here every process first checks whether another process has the turn, and holds back if so. The safety of writes
    does not depend on the turn, only on SQLite's own lock.
    """

    def __init__(self, database: Path) -> None:
        # A separate file: closing any handle of the database's file would release SQLite's locks of this process.
        self._database = database
        self._path = database.with_name(f"{database.name}-turn")
        self._file: int | None = None

    def take(self) -> bool:
        """Take the turn if it is free; on a file system without such locks it is always free."""
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
        """Return whether no process has the turn."""
        if not self.take():
            return False
        self.give()
        return True

    def give(self) -> None:
        """Release the turn; without it, do nothing."""
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
