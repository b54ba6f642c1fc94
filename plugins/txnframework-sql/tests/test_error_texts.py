"""The text of the database is part of every error that a caller gets, without statements and their parameters."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy.exc import DBAPIError

from txnframework_sql.sqlite import _errors as sqlite

TEXT = "what the database says"
SECRET = "stored text"


@pytest.mark.parametrize(
    "code",
    [
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_ERROR,
    ],
)
def test_answers_of_sqlite(code: int) -> None:
    """The same, also for an error that SQLAlchemy wraps."""
    original = sqlite3.OperationalError(TEXT)
    original.sqlite_errorcode = code
    for error in (original, DBAPIError("SELECT ?", (SECRET,), original)):
        shown = str(sqlite.translated(error, "sqlite:///txn.db"))
        assert TEXT in shown
        assert SECRET not in shown
