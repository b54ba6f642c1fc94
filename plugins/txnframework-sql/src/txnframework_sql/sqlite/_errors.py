"""Translation of errors of SQLAlchemy and the driver into the framework's own."""

from __future__ import annotations

import re
import sqlite3

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from txnframework.errors import Corrupt, InvalidInput, OutcomeUnknown, TxnFrameworkError, Unavailable

DATABASE_ERRORS = (SQLAlchemyError, sqlite3.Error)
"""The errors that a database call may raise."""

# The low byte of an extended code is the primary code.
_PRIMARY = 0xFF
# I/O errors which show that the data read is not the data written. After other I/O errors a retry may help.
_DAMAGED_ON_DISK = (sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS, sqlite3.SQLITE_IOERR_DATA)
# The driver raises this itself, without a code, about a value that SQLite accepts. The rest of its message is the
# value.
_NOT_TEXT = re.compile(r"Could not decode to UTF-8 column '(?P<column>[^']*)'")


def sqlite_code(error: BaseException) -> int | None:
    """Return SQLite's primary error code, if the error carries one."""
    code = extended_code(error)
    return None if code is None else code & _PRIMARY


def is_locked(error: BaseException) -> bool:
    """Return whether another connection held a lock: nothing was changed, and waiting helps."""
    return sqlite_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_full(error: BaseException) -> bool:
    """Return whether a write did not fit on the disk."""
    return sqlite_code(error) == sqlite3.SQLITE_FULL


def locked() -> sqlite3.OperationalError:
    """Return the driver's error for a lock that another connection holds."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    error.sqlite_errorname = "SQLITE_BUSY"
    return error


def translated(error: BaseException, shown_url: str) -> TxnFrameworkError:
    """
    Return the error to raise, ``from error``, for a call that changed nothing.

    ``shown_url`` is the database's URL without its password.
    """
    if isinstance(error, TxnFrameworkError):
        return error
    code = sqlite_code(error)
    reason = _reason(error)
    if is_locked(error):
        return Unavailable(f"{shown_url} was locked by other writers ({reason})")
    if code == sqlite3.SQLITE_NOTADB:
        return InvalidInput(f"{shown_url} is not a SQLite database ({reason}); name another file")
    if code == sqlite3.SQLITE_CORRUPT or extended_code(error) in _DAMAGED_ON_DISK:
        return Corrupt(f"{shown_url} is damaged: {reason}")
    if not_text := _NOT_TEXT.match(reason):
        return Corrupt(f"{shown_url} is damaged: a value in its column {not_text['column']!r} is not valid text")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return Unavailable(f"{shown_url} cannot be opened for writing: {reason}; file and directory must be writable")
    if is_full(error):
        return Unavailable(f"no disk space is left for {shown_url} ({reason})")
    if code in (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH):
        return Corrupt(f"{shown_url} is inconsistent: {reason}")
    return Unavailable(f"{shown_url} rejected an operation: {reason}")


def commit_lost(error: BaseException, shown_url: str) -> TxnFrameworkError:
    """Return the error to raise when COMMIT failed and its effect is unknown."""
    return OutcomeUnknown(f"{shown_url} did not confirm a commit: {_reason(error)}")


def extended_code(error: BaseException) -> int | None:
    """Return SQLite's extended error code, if the error carries one."""
    original = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(original, "sqlite_errorcode", None)
    return code if isinstance(code, int) else None


def _reason(error: BaseException) -> str:
    # SQLAlchemy's own text contains the statement, its parameters and a link.
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return str(original) or type(original).__name__
