"""Options of the plugins; times and bounds that all families share are in ``[transactions]``."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from txnframework_legacy.log import Batching


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of every part of the family."""

    attempts_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Attempts of a write whose outcome is unknown, or whose ledger was closed.",
        ),
    ] = 10


class LogOptions(Options, frozen=True, kw_only=True):
    """Options of the parts that keep a log."""

    batching: Batching = Batching()
    ledger_entries_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Records after which a ledger of a log is closed; opening the log reads about as many.",
        ),
    ] = 10_000


class CoordinatorOptions(LogOptions, frozen=True, kw_only=True):
    """Options of the coordinator ``log``."""

    id_block_size: Annotated[
        int,
        Meta(ge=1, description="Transaction ids that a process reserves together; unused ids are lost."),
    ] = 1_000
    participants_together_max: Annotated[
        int, Meta(ge=1, description="Participants of one transaction that are settled concurrently.")
    ] = 16
    retry_delay_ms: Annotated[
        int, Meta(ge=1, description="The wait before a participant is retried; it doubles with each retry.")
    ] = 10
    retry_delay_ms_max: Annotated[int, Meta(ge=1, description="The longest wait between two retries.")] = 1_000


class PendingAckOptions(LogOptions, frozen=True, kw_only=True):
    """Options of the pending-ack store ``log``."""

    idle_entries_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Records after which a log is emptied while no transaction holds acknowledgments.",
        ),
    ] = 100


class TopicOptions(Options, frozen=True, kw_only=True):
    """Options of every transaction buffer of the family, including those of other distributions."""

    snapshot_entries: Annotated[
        int,
        Meta(ge=1, description="Entries after which a process writes a snapshot; recovery reads about as many."),
    ] = 10_000
    snapshot_entry_bytes_max: Annotated[
        int, Meta(ge=1_024, description="Bytes of the largest entry of a snapshot or segment.")
    ] = 256 * 1024
    branches_max: Annotated[
        int, Meta(ge=1, description="Admitted writers that a process remembers; admitting one again costs a read.")
    ] = 10_000


class BufferOptions(TopicOptions, frozen=True, kw_only=True):
    """Options of the transaction buffer ``marker``."""

    segmented_snapshots: Annotated[
        bool,
        Meta(
            description="Whether aborted branches are written in segments, each once, instead of with every snapshot;"
            " for topics with many aborted transactions."
        ),
    ] = False
    snapshot_segment_branches: Annotated[int, Meta(ge=1, le=100_000, description="Aborted branches in a segment.")] = (
        1_000
    )
    append_entries_max: Annotated[
        int,
        Meta(ge=1, description="Entries of concurrent appends to a topic that are combined into one call."),
    ] = 512
    append_bytes_max: Annotated[
        int, Meta(ge=1, description="Bytes of a combined call, unless a single append is larger.")
    ] = 4 * 1024 * 1024
