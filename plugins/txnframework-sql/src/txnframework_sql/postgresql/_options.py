"""Options of the connections to a PostgreSQL server and their defaults."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

_REPLY_MARGIN_S = 5


class PostgresqlOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of connections to PostgreSQL; of these, only ``lock_timeout_ms`` applies to SQLite."""

    connections_max: Annotated[
        int,
        Meta(ge=1, description="How many connections one process holds at most, besides the one that listens."),
    ] = 8
    connect_timeout_ms: Annotated[
        int,
        Meta(ge=1, description="How long a connection may take to come about; the URL's connect_timeout goes first."),
    ] = 10_000
    require_tls: Annotated[
        bool,
        Meta(description="Refuse a server on another machine unless the URL's sslmode demands TLS."),
    ] = False
    statement_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 30,
            description="How long the server works on one statement before it gives it up and undoes it; a connection"
            " that does not answer for 5 s longer is taken for lost.",
        ),
    ] = 30_000
    lock_timeout_ms: Annotated[
        int,
        Meta(ge=1, le=1 << 30, description="How long a write waits for other writers before it is refused."),
    ] = 10_000
    retries_max: Annotated[
        int,
        Meta(ge=0, description="How often a write is done again when the server undid it in favour of another one."),
    ] = 16
    statements_max: Annotated[
        int, Meta(ge=1, description="How many prepared statements each connection keeps at most.")
    ] = 256
    keepalive_idle_s: Annotated[
        int,
        Meta(
            ge=1,
            le=32_767,
            description="A connection that was not used for so many seconds has to answer before it is used. After as"
            " many, the server asks by TCP whether this process is still there.",
        ),
    ] = 10
    keepalive_interval_s: Annotated[
        int, Meta(ge=1, le=32_767, description="How many seconds pass between two such questions of the server.")
    ] = 3
    keepalive_count: Annotated[
        int,
        Meta(
            ge=1,
            le=127,
            description="After how many unanswered questions the server drops the connection; an answer to this"
            " process may take as long.",
        ),
    ] = 3
    heartbeat_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="How often the listening connection is tried; one without an answer for as long is replaced,"
            " and every watch woken.",
        ),
    ] = 3_000
    reconnect_max_ms: Annotated[
        int, Meta(ge=1, description="The longest pause between two attempts to replace a lost listening connection.")
    ] = 5_000

    @property
    def reply_timeout_s(self) -> float:
        """The time limit for a reply, in seconds."""
        return self.statement_timeout_ms / 1000 + _REPLY_MARGIN_S
