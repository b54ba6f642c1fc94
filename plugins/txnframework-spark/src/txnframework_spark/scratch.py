"""Temporary folders that live as long as the process that made them, also when that is killed."""

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
"""A file in each folder that is locked for as long as the process lives: what nobody holds was left behind."""


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """
    Give a folder that only we can read, and remove it when the block ends.

    Folders of this prefix that killed processes of the same user have left are removed first.
    """
    _remove_left_behind(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        unnamed = folder / f"{_HELD}.new"
        with unnamed.open("wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            # Locked before it has its name: a folder without that file is just being made, and left alone.
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
    """Whether a process lives that locked it; OSError: there is no such file."""
    with file.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
