"""
Translation of errors of PostgreSQL and its driver into the framework's own.

An operation that was surely not performed raises one of the framework's plain errors. A server that answers a statement
with severity ERROR has rolled it back, whatever the reason, its own timeouts included. Three kinds of statements change
nothing, however they end: those that only read, those never sent, and those in a transaction whose COMMIT was not sent.
For a writing statement or a COMMIT without such an answer, ``OutcomeUnknown`` is raised. A write that was lost while it
was prepared raises it as well, because the driver does not distinguish the two.

The caller reads back its write. PostgreSQL shows a commit to every reader as soon as it can survive a crash, and to
none before. No connection is lent here before the server process of a lost connection has ended
(``_uncertain_writes``). So a write that this read does not find never appears.
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
        UNIQUE_VIOLATION,  # a row that was absent when it was read; permanent only in a damaged database
    }
)

_BY_CODE: dict[str, tuple[type[TxnFrameworkError], str]] = {
    "25006": (
        Unavailable,
        "takes no writes: it is a standby, or default_transaction_read_only is on; name the primary in the URL (with"
        " several hosts: target_session_attrs=read-write), or turn that setting off",
    ),
    "25P03": (Unavailable, "ended a transaction that did nothing for too long; do it again"),
    "28000": (
        InvalidInput,
        "does not let this user in; allow user, database and address in its pg_hba.conf, or connect as it demands"
        " (sslmode=require)",
    ),
    "28P01": (
        InvalidInput,
        "refused the password, or was given none; set it in the URL, in PGPASSWORD or in the file of PGPASSFILE",
    ),
    "3D000": (InvalidInput, "has no database of this name; make it with createdb, or name another in the URL"),
    "42501": (InvalidInput, "denies this user a right that it needs; grant it, or connect as the owner of the tables"),
    "53100": (Unavailable, "has no room left on its disk; make room, then try again"),
    "53200": (Unavailable, "has no memory left; give it more, then try again"),
    "53300": (
        Unavailable,
        "has no connection left; lower connections_max of those who use it, or raise the server's max_connections",
    ),
    "55P03": (Unavailable, "stayed locked by other writers for lock_timeout_ms; try again"),
    "57014": (Unavailable, "did not finish within statement_timeout_ms, and undid it; try again, or raise that option"),
    "57P01": (Unavailable, "was shut down, or this connection ended by its administrator; try again when it is back"),
    "57P02": (Unavailable, "is restarting after a crash; try again in a moment"),
    "57P03": (Unavailable, "is starting up or shutting down; try again in a moment"),
    "57P04": (Unavailable, "lost the database, which was dropped; make it again with createdb"),
}
_BY_CLASS: dict[str, tuple[type[TxnFrameworkError], str]] = {
    "08": (Unavailable, "cannot be reached any more; try again"),
    "22": (InvalidInput, "does not take a value"),
    "23": (Corrupt, "contradicts itself"),
    "28": (InvalidInput, "does not let this user in"),
    "53": (Unavailable, "has not enough of a resource; try again"),
    "54": (InvalidInput, "does not take a value of this size; a key and its partition fit with 2,600 bytes"),
    "58": (Unavailable, "met an error of its operating system"),
    "XX": (Corrupt, "found its data damaged"),
}


class Rerun(Unavailable):
    """
    A conflict with another writer; nothing was changed, and the same work may succeed when restarted.

    ``if_always`` is the error to raise when all attempts fail.
    """

    def __init__(self, message: str, if_always: TxnFrameworkError) -> None:
        self.if_always = if_always
        super().__init__(message)


def is_hopeless(error: BaseException) -> bool:
    """Return whether the connection is unusable after this error."""
    return isinstance(error, TimeoutError | asyncpg.InternalClientError) or (
        isinstance(error, asyncpg.PostgresError) and error.severity_en in ("FATAL", "PANIC")
    )


def translated(error: BaseException, shown_url: str) -> TxnFrameworkError:
    """Return the error to raise, ``from error``, for a statement that surely changed nothing."""
    if isinstance(error, TimeoutError):
        return Unavailable(f"{shown_url} did not answer in time; try again")
    if isinstance(error, asyncpg.DataError) and error.severity_en is None:
        # The driver's text contains the value.
        return InvalidInput(f"{shown_url} does not take an argument of this type or size")
    if isinstance(error, asyncpg.PostgresError):
        return _told(error, shown_url)
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
    return OutcomeUnknown(f"{shown_url} did not confirm a write: {_reason(error)}; read before trying again")


def not_connected(error: BaseException, shown_url: str) -> TxnFrameworkError:
    """Return the error to raise, ``from error``, when connecting failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return InvalidInput(
            f"{shown_url} shows a certificate that is not trusted here ({error.verify_message}); name its authority"
            " with sslrootcert, and the host as the certificate does"
        )
    if isinstance(error, ssl.SSLError):
        return InvalidInput(
            f"{shown_url} and this client do not agree on TLS ({error.reason}); look at its ssl settings"
        )
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return Unavailable(f"none of the hosts of {shown_url} is one that target_session_attrs asks for; start it")
    if isinstance(error, asyncpg.PostgresError):
        return _told(error, shown_url)
    if isinstance(error, asyncpg.InterfaceError):
        return InvalidInput(f"{shown_url} asks for a login that cannot be made: {error.args[0]}")
    return _unreachable(error, shown_url)


def not_configured(error: asyncpg.ClientConfigurationError, shown_url: str) -> TxnFrameworkError:
    """Return the error to raise, ``from None``, for parameters that the driver rejects; their values are not shown."""
    told = str(error.args[0]).partition(", got")[0].partition(": {")[0]
    return InvalidInput(f"the parameters of {shown_url}, or the environment's (PGSSLMODE, ...), cannot be used: {told}")


def _unreachable(error: BaseException, shown_url: str) -> TxnFrameworkError:
    if isinstance(error, TimeoutError):
        return Unavailable(f"{shown_url} did not answer within connect_timeout_ms; look at host, port and firewall")
    if isinstance(error, ConnectionError) and "SSL" in str(error):
        return InvalidInput(
            f"{shown_url} does not speak TLS as PostgreSQL does; correct host and port if something else listens there,"
            " or turn ssl on in its postgresql.conf, or write sslmode=disable in the URL"
        )
    return Unavailable(f"nobody answers at {shown_url} ({_reason(error)}); start the server, or correct host and port")


def _told(error: asyncpg.PostgresError, shown_url: str) -> TxnFrameworkError:
    """Return the error for the server's answer; an unlisted code is reported in the server's words."""
    if error.severity_en is None and isinstance(error.__cause__, asyncpg.PostgresError):
        # The driver's own error about the connection; its cause is the server's reason for ending it.
        error = error.__cause__
    code = error.sqlstate or ""
    reason = _reason(error)
    if code == _TOO_MUCH and error.server_source_function == _NOTIFYING:
        return Unavailable(
            f"{shown_url} has no room left for notifications: somebody who listens has been in one transaction for too"
            " long; end it (pg_notification_queue_usage() and pg_stat_activity show it), then try again"
        )
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        text = f"{shown_url} changed its tables meanwhile"
        return Rerun(text, Unavailable(f"{text}; try again"))
    if code in _AGAIN:
        if_always: TxnFrameworkError = Unavailable(f"{shown_url} is too busy: other writers were always in the way")
        if code == UNIQUE_VIOLATION:
            if_always = Corrupt(f"{shown_url} contradicts itself: {reason}")
        return Rerun(f"another writer of {shown_url} was in the way: {reason}", if_always)
    kind, sentence = _BY_CODE.get(code) or _BY_CLASS.get(code[:2]) or (Unavailable, "refused an operation")
    return kind(f"{shown_url} {sentence} ({reason})")


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no reply came in time"
    # Without detail and hint, which may contain stored data.
    text = str(error.args[0]) if isinstance(error, asyncpg.PostgresError) and error.args else str(error)
    return text or type(error).__name__
