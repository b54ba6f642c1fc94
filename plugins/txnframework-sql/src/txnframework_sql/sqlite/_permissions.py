"""Who may read a database's files: only the user who made them, until that user says otherwise."""

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
    """Make a directory that only this user can enter, and those above it; one that is there stays as it is."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        with suppress(FileExistsError):
            one.mkdir(mode=PRIVATE_DIRECTORY)


def make_file(path: Path) -> None:
    """
    Make an empty file that only this user can read, unless there is one; SQLite gives its other files the same mode.

    It is made under another name and linked: closing a handle of the database's own file would drop the locks that
    SQLite has on it, in this process. The crash window: an empty file with a name of its own may be left behind.
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
    """Say once in each process that other users can read a database that is there."""
    try:
        mode, above = path.stat().st_mode, path.parent.stat().st_mode
    except OSError:
        return
    if os.name != "posix" or path in _warned or not (mode & _READ_BY_OTHERS and above & _ENTERED_BY_OTHERS):
        return
    _warned.add(path)
    _LOG.warning("%s can be read by other users of this machine; 'chmod 600' on it and its -wal ends that", shown_url)


def mode_beside(database: Path) -> int:
    """Return the mode of a file beside a database, for whoever may use the database."""
    try:
        return stat.S_IMODE(database.stat().st_mode) & 0o666
    except OSError:
        return PRIVATE_FILE
