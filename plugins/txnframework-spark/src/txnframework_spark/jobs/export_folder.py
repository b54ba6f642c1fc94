"""
The folder of exports: its content for readers, and the end of the last export.

::

    FOLDER/export=1/*.parquet         finished exports, one folder each; no later export changes them
    FOLDER/export=1/_exported.json    the topic and the end of the export, where the next one begins
    FOLDER/_staging/2-<token>/        in progress, or left behind; Parquet readers ignore names that begin with _

An export becomes visible by one rename of its folder in ``_staging``. The new name contains a number, and a rename
never replaces a folder with files. So of several exports that begin at the same position, only one finishes.
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
from txnframework_spark.errors import ExportConflict, UnusableFolder

COLUMN: Final = "export"
"""The partition column that Parquet readers see: the number of a message's export."""

FORMAT: Final = 1
_EXPORTED: Final = "_exported.json"
_STAGING: Final = "_staging"
_FINISHED: Final = re.compile(rf"{COLUMN}=([1-9]\d*)")


class Exported(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The total of all exports of a folder: of topic ``topic``, each segment up to a position."""

    store: str
    topic: str
    life: int
    number: int
    upto: dict[str, str]
    messages: int
    created_ms: int
    format: int = FORMAT

    def positions(self) -> dict[str, Position]:
        """Return the exported position of each segment."""
        return {segment: Position.parse(text) for segment, text in self.upto.items()}


@dataclass(frozen=True, slots=True)
class ExportFolder:
    """A folder on a file system that all machines of the job share."""

    path: Path

    @classmethod
    def of(cls, named: str) -> ExportFolder:
        """
        Return the folder of this name.

        :raises UnusableFolder: its store cannot rename a folder atomically.
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
            raise UnusableFolder(named, "is a file; use a folder")
        return cls(path.resolve())

    def last(self) -> Exported | None:
        """
        Return the record of the last finished export; None if there is none.

        :raises UnusableFolder: the folder contains other files than exports.
        """
        finished = [int(found[1]) for name in self._names() if (found := _FINISHED.fullmatch(name))]
        others = [name for name in self._names() if not _FINISHED.fullmatch(name) and not name.startswith(("_", "."))]
        if others:
            raise UnusableFolder(
                str(self.path), f"contains {sorted(others)[0]}, which is not an export; use an empty folder"
            )
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
        """Return the folder in which an export is written before it is visible; it does not exist yet."""
        return self.path / _STAGING / f"{number}-{token}"

    def finish(self, staged: Path, exported: Exported) -> Path:
        """
        Make an export visible, durably and atomically.

        :raises ExportInTheWay: another export with this number is visible.
        """
        target = self.path / f"{COLUMN}={exported.number}"
        try:
            (staged / _EXPORTED).write_bytes(msgspec.json.encode(exported))
            for one in _all_below(staged):
                _sync(one)
            # The rename never replaces a folder with files: this is the compare-and-set. After a kill before it,
            # nothing is visible; after a kill behind it, everything is, and the next export begins at its end.
            staged.rename(target)
        except OSError as error:
            if target.exists() and error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
                raise ExportConflict(str(self.path), exported.number) from error
            raise
        _sync(self.path)
        return target

    def clean(self, finished: int) -> None:
        """Remove staged exports that can no longer finish: those with numbers up to the last finished one."""
        staging = self.path / _STAGING
        for one in staging.iterdir() if staging.exists() else ():
            number = one.name.partition("-")[0]
            if not number.isdecimal() or int(number) <= finished:
                shutil.rmtree(one, ignore_errors=True)

    def remove(self, staged: Path) -> None:
        """Remove a staged export that will not be finished."""
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
