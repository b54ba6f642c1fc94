"""Options of the stores and their defaults."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from txnframework_sql.postgresql._options import PostgresqlOptions


class DatabaseOptions(PostgresqlOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of both stores; an option for one kind of database has no effect on the other."""

    group_max: Annotated[int, Meta(ge=1, description="How many waiting writes share one commit at most.")] = 512
    queue_max: Annotated[
        int,
        Meta(ge=1, description="How many operations of one store are under way at most; further ones wait."),
    ] = 4_096
    poll_ms: Annotated[
        int,
        Meta(ge=1, description="How often a waiting watch asks whether another process has committed."),
    ] = 20
    share_connection: Annotated[
        bool,
        Meta(
            description="Let the stores of this process that name one database use the same connections; in SQLite"
            " their writes then share commits instead of waiting for each other."
        ),
    ] = True


class MetadataOptions(DatabaseOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of metadata stores, in addition to those of both stores."""

    session_ttl_ms: Annotated[
        int,
        Meta(
            ge=30,
            description="How long a lease outlives its holder's last heartbeat; one comes every third of it.",
        ),
    ] = 6_000


class LedgerOptions(DatabaseOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of ledger stores, in addition to those of both stores."""

    ledger_entries_max: Annotated[
        int, Meta(ge=1, le=1 << 31, description="The append that reaches so many entries closes its ledger.")
    ] = 50_000
    ledger_bytes_max: Annotated[
        int, Meta(ge=1, description="The append that reaches so many bytes closes its ledger.")
    ] = 256 * 1024 * 1024
    group_bytes_max: Annotated[
        int,
        Meta(ge=1, description="Waiting appends to one ledger are sent together up to so many bytes (PostgreSQL)."),
    ] = 4 * 1024 * 1024
    deduplication_window_sequences: Annotated[
        int,
        Meta(
            ge=1,
            description="Of how many of its last messages in a segment a producer may send one again and have it"
            " stored once; an older one is stored again.",
        ),
    ] = 10_000
    producer_idle_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="A producer that was silent for so long may be forgotten when ledgers are trimmed.",
        ),
    ] = 7 * 24 * 3_600_000
    trim_entries_max: Annotated[
        int,
        Meta(ge=1, description="After how many entries one call of trim stops; ledgers are dropped whole."),
    ] = 10_000


_SQLITE_ONLY = {"poll_ms"}
_POSTGRESQL_ONLY = {field.name for field in msgspec.structs.fields(PostgresqlOptions)} - {"lock_timeout_ms"} | {
    "group_bytes_max"
}

T = TypeVar("T", bound=DatabaseOptions)


def for_sqlite(kind: type[DatabaseOptions]) -> type[msgspec.Struct]:
    """Return the type of the options that apply to SQLite; a configuration with other options is refused."""
    return _without(kind, _POSTGRESQL_ONLY)


def for_postgresql(kind: type[DatabaseOptions]) -> type[msgspec.Struct]:
    """Return the type of the options that apply to PostgreSQL; a configuration with other options is refused."""
    return _without(kind, _SQLITE_ONLY)


def completed(given: object, kind: type[T]) -> T:
    """Return options of one kind of database as options of both kinds; None gives the defaults."""
    return msgspec.convert(given or {}, kind, from_attributes=True)


def _without(kind: type[DatabaseOptions], names: set[str]) -> type[msgspec.Struct]:
    fields = [
        (field.name, field.type, field.default) for field in msgspec.structs.fields(kind) if field.name not in names
    ]
    return msgspec.defstruct(kind.__name__, fields, frozen=True, forbid_unknown_fields=True, kw_only=True)
