"""The text of the database is part of every error that a caller gets, without statements and their parameters."""

from __future__ import annotations

import asyncpg
import pytest
from sqlalchemy.exc import DBAPIError

from txnframework_sql.application._connection import reason
from txnframework_sql.postgresql import _errors as postgresql
from txnframework_sql.postgresql._errors import RetryableConflict

URL = "postgresql://db/txn"
TEXT = "what the database says"
SECRET = "stored text"
CODES = (*postgresql._BY_CODE, *(f"{one}000" for one in postgresql._BY_CLASS), "0A000", "40001", "40P01", "23505")


def answer(code: str) -> asyncpg.PostgresError:
    """Return the error of the driver for an answer of the server."""
    fields = {"S": "ERROR", "V": "ERROR", "C": code, "M": TEXT, "D": f"Key (value)=({SECRET})", "H": SECRET}
    return asyncpg.PostgresError.new(fields, query=f"SELECT '{SECRET}'")


@pytest.mark.parametrize("code", CODES)
def test_answers_of_postgresql(code: str) -> None:
    """The server's message is in the sentence; its detail and hint, which may contain a row, are not."""
    found = postgresql.translated(answer(code), URL)
    shown = str(found.final_error if isinstance(found, RetryableConflict) else found)
    assert TEXT in shown
    assert SECRET not in shown


def test_errors_of_an_application() -> None:
    """The same for a driver's error about the application's connection."""
    assert reason(DBAPIError("SELECT ?", (SECRET,), asyncpg.PostgresError(f"{TEXT}\nDETAIL: {SECRET}"))) == TEXT
