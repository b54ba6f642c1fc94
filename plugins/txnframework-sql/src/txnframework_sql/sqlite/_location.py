"""The file that a URL names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from txnframework.config import redact_url
from txnframework.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Location:
    """A database file; ``shown_url`` may be printed."""

    path: Path
    shown_url: str


def locate(url: str) -> Location:
    """
    Return the file that a URL names, as an absolute path without links.

    :raises InvalidInput: the URL names no file.
    """
    shown = redact_url(url)
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidInput(f"{shown} is not a database URL; write sqlite:///directory/txn.db") from error
    backend = parsed.get_backend_name()
    if backend != "sqlite":
        raise InvalidInput(
            f"{shown}: this release of txnframework-sql supports only SQLite and PostgreSQL, not {backend}"
        )
    if parsed.query:
        names = ", ".join(sorted(parsed.query))
        raise InvalidInput(f"{shown} has parameters ({names}), and a SQLite URL has none; remove them from ? on")
    if parsed.host or not parsed.database or parsed.database.startswith((":memory:", "file:")):
        raise InvalidInput(f"{shown} names no file; write sqlite:///directory/txn.db (four slashes: absolute)")
    return Location(Path(parsed.database).expanduser().resolve(), shown)
