"""
Translation of errors of PostgreSQL and its driver into the framework's own.

An operation that was surely not performed raises one of the framework's plain errors. A server that answers a statement
with severity ERROR has rolled it back, whatever the reason, its own timeouts included. Three kinds of statements change
nothing, however they end: those that only read, those never sent, and those in a transaction whose COMMIT was not sent.
For a writing statement or a COMMIT without such an answer, ``OutcomeUnknown`` is raised. A write that was lost while it
was prepared raises it as well, because the driver does not distinguish the two.

The caller reads back its write. PostgreSQL shows a commit to every reader as soon as it can survive a crash, and
not before. No connection is lent here before the server process of a lost connection has ended
(``UncertainWrites``). So a write that this read does not find never appears.
"""

from __future__ import annotations

import ssl

import asyncpg

from txnframework.errors import Corrupt, InvalidInput, OutcomeUnknown, TxnFrameworkError, Unavailable

POSTGRESQL_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""The errors that the driver may raise; a ``TimeoutError`` is an ``OSError``."""

UNIQUE_VIOLATION = "23505"

# A value that is too long and a full notification queue share a code; the place where the server raises it differs.
_TOO_MUCH, _NOTIFYING = "54000", "PreCommit_Notify"

# A conflict with another transaction rolled this one back: the same work may succeed when repeated.
_AGAIN = frozenset(
    {
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "42P07",  # duplicate_table, in these three cases because another process creates the same
        "42710",  # duplicate_object
        "42723",  # duplicate_function
        UNIQUE_VIOLATION,  # a row that was absent when it was read; permanent only in a damaged database
    }
)


class Locked(Unavailable):
    """A lock was not free in time; nothing was changed."""


_BY_CODE: dict[str, tuple[type[TxnFrameworkError], str]] = {
    "25006": (
        Unavailable,
        "is read-only: it is a standby, or default_transaction_read_only is on; name the primary in the URL (with"
        " several hosts: target_session_attrs=read-write), or turn that setting off",
    ),
    "25P03": (Unavailable, "ended a transaction that was idle for too long; try again"),
    "28000": (
        InvalidInput,
        "rejects this user; allow user, database and address in its pg_hba.conf, or connect as that file requires"
        " (sslmode=require)",
    ),
    "28P01": (
        InvalidInput,
        "reports that the password is missing or wrong; set it in the URL, in PGPASSWORD or in the file of PGPASSFILE",
    ),
    "3D000": (InvalidInput, "has no database of this name; create it with createdb, or name another in the URL"),
    "42501": (
        InvalidInput,
        "denies this user a required right; connect as the owner of the tables, or let the owner grant it by the"
        " statements that 'txnframework sql grants' prints for this user",
    ),
    "53100": (Unavailable, "has no free disk space; free some, then try again"),
    "53200": (Unavailable, "is out of memory; give it more, then try again"),
    "53300": (
        Unavailable,
        "has no free connection; lower connections_max in its clients, or raise the server's max_connections",
    ),
    "55P03": (Locked, "was locked by other writers for lock_timeout_ms; try again"),
    "57014": (Unavailable, "rolled back a statement after statement_timeout_ms; try again, or raise that option"),
    "57P01": (Unavailable, "was shut down, or its administrator ended this connection; try again when it is available"),
    "57P02": (Unavailable, "is restarting after a crash; try again in a moment"),
    "57P03": (Unavailable, "is starting up or shutting down; try again in a moment"),
    "57P04": (Unavailable, "reports that the database was dropped; create it again with createdb"),
}
_BY_CLASS: dict[str, tuple[type[TxnFrameworkError], str]] = {
    "08": (Unavailable, "cannot be reached; try again"),
    "22": (InvalidInput, "rejects a value"),
    "23": (Corrupt, "is inconsistent"),
    "28": (InvalidInput, "rejects this user"),
    "53": (Unavailable, "is out of a resource; try again"),
    "54": (InvalidInput, "rejects a value of this size; a key and its partition may have 2,600 bytes"),
    "58": (Unavailable, "reports an error of its operating system"),
    "XX": (Corrupt, "reports damaged data"),
}


class RetryableConflict(Unavailable):
    """
    A conflict with another writer; nothing was changed, and the same work may succeed when restarted.

    ``final_error`` is the error to raise when all attempts fail.
    """

    def __init__(self, message: str, final_error: TxnFrameworkError) -> None:
        self.final_error = final_error
        super().__init__(message)


def breaks_connection(error: BaseException) -> bool:
    """Return whether the connection is unusable after this error."""
    return isinstance(error, TimeoutError | asyncpg.InternalClientError) or (
        isinstance(error, asyncpg.PostgresError) and error.severity_en in ("FATAL", "PANIC")
    )


def translated(error: BaseException, shown_url: str) -> TxnFrameworkError:
    """Return the error to raise, ``from error``, for a statement that surely changed nothing."""
    if isinstance(error, TimeoutError):
        return Unavailable(f"{shown_url} did not reply in time; try again")
    if isinstance(error, asyncpg.DataError) and error.severity_en is None:
        # The driver's text contains the value.
        return InvalidInput(f"{shown_url} rejects an argument of this type or size")
    if isinstance(error, asyncpg.PostgresError):
        return _server_error(error, shown_url)
    return Unavailable(f"the connection to {shown_url} broke down: {_reason(error)}; try again")


def in_doubt(error: BaseException, shown_url: str) -> TxnFrameworkError:
    """Return the error to raise, ``from error``, for a writing statement or a COMMIT that may have been sent."""
    # FATAL may follow the commit, so it is no answer to the statement.
    is_answer = isinstance(error, asyncpg.PostgresError) and error.severity_en == "ERROR"
    # The driver does not send a statement that it rejects itself. It rejects, for example, a value of the wrong type,
    # or a connection that the server has just closed.
    is_unsent = isinstance(error, asyncpg.InternalClientError) and str(error).startswith("cannot switch to state")
    if is_answer or is_unsent or isinstance(error, asyncpg.InterfaceError | asyncpg.DataError):
        return translated(error, shown_url)
    return OutcomeUnknown(f"{shown_url} did not confirm a write: {_reason(error)}; read it back before trying again")


def not_connected(error: BaseException, shown_url: str) -> TxnFrameworkError:
    """Return the error to raise, ``from error``, when connecting failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return InvalidInput(
            f"{shown_url} has a certificate that is not trusted ({error.verify_message}); set sslrootcert to its"
            " authority, and use the host name of the certificate"
        )
    if isinstance(error, ssl.SSLError):
        return InvalidInput(
            f"{shown_url} and this client cannot agree on TLS settings ({error.reason}); check its ssl settings"
        )
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return Unavailable(f"no host of {shown_url} meets target_session_attrs; start one that does")
    if isinstance(error, asyncpg.PostgresError):
        if "startup parameter" in (reason := _reason(error)):
            return InvalidInput(
                f"the connection pooler at {shown_url} rejects a parameter of the URL ({reason}); leave it out, or let"
                " the pooler pass it"
            )
        return _server_error(error, shown_url)
    if isinstance(error, asyncpg.InterfaceError):
        return InvalidInput(f"{shown_url} requires an unsupported login: {error.args[0]}")
    return _unreachable(error, shown_url)


def not_configured(error: asyncpg.ClientConfigurationError, shown_url: str) -> TxnFrameworkError:
    """Return the error to raise, ``from None``, for parameters that the driver rejects; their values are not shown."""
    reason = str(error.args[0]).partition(", got")[0].partition(": {")[0]
    return InvalidInput(
        f"the parameters of {shown_url}, or the environment's (PGSSLMODE, ...), cannot be used: {reason}"
    )


def _unreachable(error: BaseException, shown_url: str) -> TxnFrameworkError:
    if isinstance(error, TimeoutError):
        return Unavailable(f"{shown_url} did not reply within connect_timeout_ms; check host, port and firewall")
    if isinstance(error, ConnectionError) and "SSL" in str(error):
        return InvalidInput(
            f"{shown_url} does not support PostgreSQL's TLS; correct host and port if another service listens there, or"
            " turn ssl on in its postgresql.conf, or write sslmode=disable in the URL"
        )
    return Unavailable(f"cannot connect to {shown_url} ({_reason(error)}); start the server, or correct host and port")


def _server_error(error: asyncpg.PostgresError, shown_url: str) -> TxnFrameworkError:
    """Return the error for the server's answer; an unlisted code is reported in the server's words."""
    if error.severity_en is None and isinstance(error.__cause__, asyncpg.PostgresError):
        # The driver's own error about the connection; its cause is the server's reason for ending it.
        error = error.__cause__
    code = error.sqlstate or ""
    reason = _reason(error)
    if code == _TOO_MUCH and error.server_source_function == _NOTIFYING:
        return Unavailable(
            f"{shown_url} has a full notification queue: a listening session has been in one transaction for too long;"
            f" end it (see pg_notification_queue_usage() and pg_stat_activity), then try again ({reason})"
        )
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        text = f"{shown_url} changed its tables in the meantime"
        return RetryableConflict(text, Unavailable(f"{text}; try again ({reason})"))
    if code in _AGAIN:
        final_error: TxnFrameworkError = Unavailable(
            f"{shown_url} exhausted its retries after conflicts with other writers ({reason})"
        )
        if code == UNIQUE_VIOLATION:
            final_error = Corrupt(f"{shown_url} is inconsistent: {reason}")
        return RetryableConflict(f"conflict with another writer of {shown_url}: {reason}", final_error)
    kind, sentence = _BY_CODE.get(code) or _BY_CLASS.get(code[:2]) or (Unavailable, "rejected an operation")
    return kind(f"{shown_url} {sentence} ({reason})")


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no reply in time"
    # Without detail and hint, which may contain stored data.
    text = str(error.args[0]) if isinstance(error, asyncpg.PostgresError) and error.args else str(error)
    return text or type(error).__name__
