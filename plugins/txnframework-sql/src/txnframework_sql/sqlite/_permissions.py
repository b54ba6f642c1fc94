"""Permissions of a database's files: by default, only the user who created them can read them."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

_LOG = logging.getLogger(__name__)

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
_READ_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH
_ENTERED_BY_OTHERS = stat.S_IXGRP | stat.S_IXOTH

_warned: set[Path] = set()


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
    _LOG.warning("%s can be read by other users of this machine; 'chmod 600' on it and its -wal ends that", shown_url)


def mode_beside(database: Path) -> int:
    """Return the mode of a file beside a database, for the users of the database."""
    try:
        return stat.S_IMODE(database.stat().st_mode) & 0o666
    except OSError:
        return PRIVATE_FILE
