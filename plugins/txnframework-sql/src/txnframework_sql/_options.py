"""Options of the stores and their defaults."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from txnframework.plugin import SESSION_TTL_MS, SessionTtlMs

_REPLY_MARGIN_S = 5


class PostgresqlOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of connections to PostgreSQL; of these, only ``lock_timeout_ms`` applies to SQLite."""

    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            description="The maximum number of connections of one process, without those for notifications and the"
            " one for the heartbeats of its session.",
        ),
    ] = 8
    connect_timeout_ms: Annotated[
        int,
        Meta(ge=1, description="The time limit for connecting; the URL's connect_timeout takes precedence."),
    ] = 10_000
    require_tls: Annotated[
        bool,
        Meta(description="Refuse a server on another machine unless the URL's sslmode requires TLS."),
    ] = False
    statement_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 30,
            description="The time after which the server rolls a statement back; after 5 s more without a reply, the"
            " connection counts as lost.",
        ),
    ] = 30_000
    lock_timeout_ms: Annotated[
        int,
        Meta(ge=1, le=1 << 30, description="How long a write waits for other writers before it fails."),
    ] = 10_000
    retries_max: Annotated[
        int,
        Meta(ge=0, description="How often a write is retried that the server rolled back because of a conflict."),
    ] = 16
    statements_max: Annotated[
        int, Meta(ge=1, description="The maximum number of prepared statements of each connection.")
    ] = 256
    keepalive_idle_s: Annotated[
        int,
        Meta(
            ge=1,
            le=32_767,
            description="A connection that was unused for this many seconds must answer before it is used. After the"
            " same time, the server starts to check by TCP keepalive whether this process still exists.",
        ),
    ] = 10
    keepalive_interval_s: Annotated[
        int, Meta(ge=1, le=32_767, description="The seconds between two such checks by the server.")
    ] = 3
    keepalive_count: Annotated[
        int,
        Meta(
            ge=1,
            le=127,
            description="The number of unanswered checks after which the server drops the connection. This process"
            " waits as long for an answer.",
        ),
    ] = 3
    heartbeat_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="How often the listening connection is checked, and a third of the watches is woken, in case"
            " a process ended after a commit and before it notified the others. Without an answer for the same time,"
            " the connection is replaced, and every watch is woken.",
        ),
    ] = 3_000
    reconnect_max_ms: Annotated[
        int, Meta(ge=1, description="The longest pause between two attempts to replace a lost listening connection.")
    ] = 5_000

    @property
    def reply_timeout_s(self) -> float:
        """The time limit for a reply, in seconds."""
        return self.statement_timeout_ms / 1000 + _REPLY_MARGIN_S


class DatabaseOptions(PostgresqlOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of both stores; an option for one kind of database has no effect on the other."""

    group_max: Annotated[int, Meta(ge=1, description="The maximum number of waiting writes that share one commit.")] = (
        512
    )
    queue_max: Annotated[
        int,
        Meta(ge=1, description="The maximum number of concurrent operations of one store; further operations wait."),
    ] = 4_096
    poll_ms: Annotated[
        int,
        Meta(ge=1, description="How often a waiting watch checks whether another process has committed."),
    ] = 20
    share_connection: Annotated[
        bool,
        Meta(
            description="Stores of this process with the same database use the same connections. In SQLite, their"
            " writes then share commits instead of waiting for each other."
        ),
    ] = True


class MetadataOptions(DatabaseOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of metadata stores, in addition to those of both stores."""

    session_ttl_ms: SessionTtlMs = SESSION_TTL_MS
    commit_pause_max_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 30,
            description="In a commit with own rows: how long the application's process may pause between the put of the"
            " header and the COMMIT. After that PostgreSQL rolls back, so that a stopped process holds no lock.",
        ),
    ] = 5_000


class LedgerOptions(DatabaseOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of ledger stores, in addition to those of both stores."""

    ledger_entries_max: Annotated[
        int, Meta(ge=1, le=1 << 31, description="The append that reaches this number of entries closes its ledger.")
    ] = 50_000
    ledger_bytes_max: Annotated[
        int, Meta(ge=1, description="The append that reaches this number of bytes closes its ledger.")
    ] = 256 * 1024 * 1024
    group_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="The maximum bytes of waiting appends that are sent together (PostgreSQL).",
        ),
    ] = 4 * 1024 * 1024
    deduplication_window_sequences: Annotated[
        int,
        Meta(
            ge=1,
            description="The number of a producer's last messages in a segment for which duplicates are detected. An"
            " older message that is sent again is stored again.",
        ),
    ] = 10_000
    producer_idle_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="How long a producer must be silent before it may be forgotten when ledgers are trimmed.",
        ),
    ] = 7 * 24 * 3_600_000
    trim_entries_max: Annotated[
        int,
        Meta(ge=1, description="The number of entries after which one call of trim stops; ledgers are dropped whole."),
    ] = 10_000


_SQLITE_ONLY = {"poll_ms"}
_POSTGRESQL_ONLY = {field.name for field in msgspec.structs.fields(PostgresqlOptions)} - {"lock_timeout_ms"} | {
    "group_bytes_max",
    "commit_pause_max_ms",
}

T = TypeVar("T", bound=DatabaseOptions)


def for_sqlite(kind: type[DatabaseOptions]) -> type[msgspec.Struct]:
    """Return the type of the options that apply to SQLite; a configuration with other options is refused."""
    return _without(kind, _POSTGRESQL_ONLY)


def for_postgresql(kind: type[DatabaseOptions]) -> type[msgspec.Struct]:
    """Return the type of the options that apply to PostgreSQL; a configuration with other options is refused."""
    return _without(kind, _SQLITE_ONLY)


def with_defaults(given: object, kind: type[T]) -> T:
    """Return options of one kind of database as options of both kinds; None gives the defaults."""
    return msgspec.convert(given or {}, kind, from_attributes=True)


def ledger_options_of(options: MetadataOptions) -> LedgerOptions:
    """Return the options of a ledger store that is opened like a metadata store."""
    return LedgerOptions(**{name: getattr(options, name) for name in DatabaseOptions.__struct_fields__})


def _without(kind: type[DatabaseOptions], names: set[str]) -> type[msgspec.Struct]:
    fields = [
        (field.name, field.type, field.default) for field in msgspec.structs.fields(kind) if field.name not in names
    ]
    return msgspec.defstruct(kind.__name__, fields, frozen=True, forbid_unknown_fields=True, kw_only=True)
