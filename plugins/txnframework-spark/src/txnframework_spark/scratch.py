"""Temporary folders that are removed with the process that created them, even if it is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_HELD: Final = "held"
"""A file in each folder that the process keeps locked while it lives; a folder whose file is unlocked is a leftover."""


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """
    Provide a folder that only this user can read, and remove it when the block ends.

    First remove folders with this prefix that killed processes of the same user have left.
    """
    _remove_left_behind(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        unnamed = folder / f"{_HELD}.new"
        with unnamed.open("wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            # Locked before it gets its name: a folder without that file is still being created, and is not removed.
            unnamed.rename(folder / _HELD)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_behind(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and folder.stat().st_uid == os.getuid() and not _is_held(folder / _HELD):
                shutil.rmtree(folder, ignore_errors=True)


def _is_held(file: Path) -> bool:
    """Return whether a living process has locked the file; OSError if the file does not exist."""
    with file.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
