"""Keys of records in a metadata store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """Path of a record and the partition it stands in; no partition: the path itself."""

    path: str
    partition: str = ""
