"""Options of the plugin; times and bounds that every family shares stand under ``[transactions]``."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class SidecarOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the transaction buffer."""

    attempts_max: Annotated[
        int, Meta(ge=1, description="How often a write to a ledger that was closed meanwhile is tried in the next one.")
    ] = 10
    branches_max: Annotated[
        int, Meta(ge=1, description="How many writers a process remembers to have admitted; forgetting costs a look.")
    ] = 10_000
    marker_messages_max: Annotated[
        int, Meta(ge=1, description="How many messages one marker lists; a transaction of more has several markers.")
    ] = 1_000
    marker_bytes_max: Annotated[
        int,
        Meta(ge=1, description="How many bytes of entries one marker lists; a larger entry has a marker of its own."),
    ] = 1024 * 1024
    marker_spans_max: Annotated[
        int, Meta(ge=1, description="How many places in the sidecar one marker names, each of entries without a gap.")
    ] = 1_000
    snapshot_entries: Annotated[
        int,
        Meta(ge=1, description="After how many entries a process writes down what it found: so many are read again."),
    ] = 10_000
    snapshot_entry_bytes_max: Annotated[
        int, Meta(ge=1024, description="How many bytes of a snapshot one entry holds; a larger one has several.")
    ] = 256 * 1024
    compaction_ledgers_kept_max: Annotated[
        int,
        Meta(
            ge=0,
            description="How many closed ledgers of the sidecar may be kept for committed transactions only; more are"
            " compacted.",
        ),
    ] = 4
    compaction_entries_max: Annotated[
        int, Meta(ge=1, description="How many entries one run of compaction writes, but for one larger transaction.")
    ] = 10_000
    sidecar_ledger_entries_max: Annotated[
        int,
        Meta(ge=1, description="After how many entries the sidecar's ledger is closed, so that it can be trimmed."),
    ] = 10_000
