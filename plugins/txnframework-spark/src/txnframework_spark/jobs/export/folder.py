"""
The folder that exports go to: what readers see of it, and how far the last export came.

::

    FOLDER/export=1/*.parquet         finished exports, one folder each, which no export changes any more
    FOLDER/export=1/_exported.json    of what, and how far: where the next one begins
    FOLDER/_staging/2-<token>/        being written, or left behind; readers of Parquet pass by names that begin with _

An export becomes visible by one change: its folder in ``_staging`` gets its name. The name holds a number, and a folder
that has files in it is never replaced, so of several exports that begin where the same one ended, one finishes.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from txnframework.errors import UnknownFormat
from txnframework.model.positions import Position
from txnframework_spark.jobs.errors import ExportInTheWay, UnusableFolder

COLUMN: Final = "export"
"""The column that readers who know of partitions see: which export a message came with."""

FORMAT: Final = 1
_EXPORTED: Final = "_exported.json"
_STAGING: Final = "_staging"
_FINISHED: Final = re.compile(rf"{COLUMN}=([1-9]\d*)")


class Exported(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What all exports of a folder hold together: of topic ``topic``, each segment up to a position."""

    store: str
    topic: str
    life: int
    number: int
    upto: dict[str, str]
    messages: int
    created_ms: int
    format: int = FORMAT

    def positions(self) -> dict[str, Position]:
        """Return up to where each segment was exported."""
        return {segment: Position.parse(text) for segment, text in self.upto.items()}


@dataclass(frozen=True, slots=True)
class ExportFolder:
    """A folder on a file system that all machines of the job see."""

    path: Path

    @classmethod
    def of(cls, named: str) -> ExportFolder:
        """
        Return the folder that a person named.

        :raises UnusableFolder: it is on a store that cannot give a folder its name in one step.
        """
        scheme, colon, rest = named.partition(":")
        if colon and scheme != "file" and "/" not in scheme:
            raise UnusableFolder(
                named,
                "is not a folder of a file system: exports become visible by renaming a folder, which object stores do"
                " not do in one step; export to a folder, and copy its export=* folders from there",
            )
        path = Path("/" + rest.lstrip("/")) if scheme == "file" and colon else Path(named)
        if path.exists() and not path.is_dir():
            raise UnusableFolder(named, "is a file; name a folder")
        return cls(path.resolve())

    def last(self) -> Exported | None:
        """
        Return what the last finished export says; None: there is none.

        :raises UnusableFolder: it holds other things than exports.
        """
        finished = [int(found[1]) for name in self._names() if (found := _FINISHED.fullmatch(name))]
        others = [name for name in self._names() if not _FINISHED.fullmatch(name) and not name.startswith(("_", "."))]
        if others:
            raise UnusableFolder(str(self.path), f"holds {sorted(others)[0]}, which is no export; name an empty folder")
        return self._read(max(finished)) if finished else None

    def _names(self) -> list[str]:
        return [one.name for one in self.path.iterdir()] if self.path.exists() else []

    def _read(self, number: int) -> Exported:
        file = self.path / f"{COLUMN}={number}" / _EXPORTED
        try:
            data = file.read_bytes()
            if (found := msgspec.json.decode(data).get("format")) != FORMAT:
                raise UnknownFormat(str(file), found)
            return msgspec.json.decode(data, type=Exported)
        except (OSError, msgspec.MsgspecError, AttributeError) as error:
            raise UnusableFolder(str(self.path), f"has no readable {file.relative_to(self.path)}: {error}") from error

    def staged(self, number: int, token: str) -> Path:
        """Return where an export is written before it is visible; nothing is there yet."""
        return self.path / _STAGING / f"{number}-{token}"

    def finish(self, staged: Path, exported: Exported) -> Path:
        """
        Make an export visible, durably and at once.

        :raises ExportInTheWay: another one of this number is.
        """
        target = self.path / f"{COLUMN}={exported.number}"
        try:
            (staged / _EXPORTED).write_bytes(msgspec.json.encode(exported))
            for one in _all_below(staged):
                _sync(one)
            # A folder that is not empty is never replaced: this is the compare-and-set. Killed before it, nothing is
            # visible; killed after it, everything is, and the next export begins behind it.
            staged.rename(target)
        except OSError as error:
            if target.exists() and error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
                raise ExportInTheWay(str(self.path), exported.number) from error
            raise
        _sync(self.path)
        return target

    def clean(self, finished: int) -> None:
        """Remove what exports left that cannot finish any more: those of numbers up to the last that is finished."""
        staging = self.path / _STAGING
        for one in staging.iterdir() if staging.exists() else ():
            number = one.name.partition("-")[0]
            if not number.isdecimal() or int(number) <= finished:
                shutil.rmtree(one, ignore_errors=True)

    def remove(self, staged: Path) -> None:
        """Remove an export that will not be finished."""
        shutil.rmtree(staged, ignore_errors=True)


def _all_below(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names)
        yield Path(place)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
