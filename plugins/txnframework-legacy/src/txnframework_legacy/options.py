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
            description="How often a write is tried whose outcome is not known, or whose ledger was closed under it.",
        ),
    ] = 10


class LogOptions(Options, frozen=True, kw_only=True):
    """Options of the parts that keep a log."""

    batching: Batching = Batching()
    ledger_entries_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many records a ledger of a log holds before the next is opened: so many are read again.",
        ),
    ] = 10_000


class CoordinatorOptions(LogOptions, frozen=True, kw_only=True):
    """Options of the coordinator ``log``."""

    id_block_size: Annotated[
        int,
        Meta(ge=1, description="How many transaction ids a process reserves at once; what it does not use is lost."),
    ] = 1_000
    participants_together_max: Annotated[
        int, Meta(ge=1, description="How many participants of one transaction are told its outcome at the same time.")
    ] = 16
    retry_delay_ms: Annotated[
        int, Meta(ge=1, description="The wait before a participant is tried again; it doubles with each further one.")
    ] = 10
    retry_delay_ms_max: Annotated[int, Meta(ge=1, description="The longest wait between two of these tries.")] = 1_000


class PendingAckOptions(LogOptions, frozen=True, kw_only=True):
    """Options of the pending-ack store ``log``."""

    idle_entries_max: Annotated[
        int,
        Meta(
            ge=0,
            description="How many records a log keeps at most while no transaction holds anything; then it is emptied.",
        ),
    ] = 100


class TopicOptions(Options, frozen=True, kw_only=True):
    """Options of every transaction buffer of the family, including those of other distributions."""

    snapshot_entries: Annotated[
        int,
        Meta(ge=1, description="After how many entries a process writes down what it found: so many are read again."),
    ] = 10_000
    snapshot_entry_bytes_max: Annotated[
        int, Meta(ge=1_024, description="The largest entry of a snapshot or segment; a larger one takes several.")
    ] = 256 * 1024
    branches_max: Annotated[
        int, Meta(ge=1, description="How many writers a process remembers to have admitted; forgetting costs a look.")
    ] = 10_000


class BufferOptions(TopicOptions, frozen=True, kw_only=True):
    """Options of the transaction buffer ``marker``."""

    segmented_snapshots: Annotated[
        bool,
        Meta(
            description="Whether the aborted set is written in segments, each once, and not anew with every snapshot:"
            " for topics of which many transactions are aborted."
        ),
    ] = False
    snapshot_segment_branches: Annotated[
        int, Meta(ge=1, le=100_000, description="How many aborted branches make a segment.")
    ] = 1_000
    append_entries_max: Annotated[
        int,
        Meta(ge=1, description="How many entries that a process appends to a topic at the same moment go as one call."),
    ] = 512
    append_bytes_max: Annotated[
        int, Meta(ge=1, description="How many bytes such a call has at most, unless a single append is larger.")
    ] = 4 * 1024 * 1024
