"""Options of the ledger store and their defaults."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from txnframework_nats._options import ConnectionOptions


class NatsLedgerOptions(ConnectionOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the ledgers, in addition to those of the connection."""

    streams: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="The number of streams over which new ledgers are spread. It is fixed when the first process"
            " opens the store.",
        ),
    ] = 8
    stream_bytes_max: Annotated[
        int, Meta(ge=-1, description="The size at which a stream refuses appends, when it is created; -1: no limit.")
    ] = -1
    patience_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="How long requests are repeated before a call fails; longer than the election of a leader.",
        ),
    ] = 20_000
    look_ms: Annotated[
        int,
        Meta(ge=1, description="How often a watched ledger is looked at, in case that a notification was lost."),
    ] = 5_000
    cache_bytes_max: Annotated[
        int, Meta(ge=0, description="The bytes of entries that one process keeps in memory for repeated reads.")
    ] = 64 * 1024 * 1024
    group_bytes_max: Annotated[
        int, Meta(ge=1, description="The maximum bytes of waiting appends to one ledger that are stored together.")
    ] = 512 * 1024
    ledger_entries_max: Annotated[
        int, Meta(ge=1, le=1 << 31, description="The append that reaches this number of entries closes its ledger.")
    ] = 50_000
    ledger_bytes_max: Annotated[
        int, Meta(ge=1, description="The append that reaches this number of bytes closes its ledger.")
    ] = 256 * 1024 * 1024
    deduplication_window_sequences: Annotated[
        int,
        Meta(
            ge=1,
            description="The number of a producer's last messages in a segment for which duplicates are detected. It"
            " should be equal in all processes, as the lowest one decides.",
        ),
    ] = 10_000
    producer_idle_ms: Annotated[
        int,
        Meta(
            ge=1, description="How long a producer must be silent before it may be forgotten when ledgers are trimmed."
        ),
    ] = 7 * 24 * 3_600_000
    snapshot_records: Annotated[
        int, Meta(ge=1, description="After so many records of a ledger, its state is stored so that it opens faster.")
    ] = 1_000
    snapshot_bytes: Annotated[
        int, Meta(ge=1, description="After so many bytes of entries of a ledger, its state is stored as well.")
    ] = 16 * 1024 * 1024
