"""Options of the plugin; times and bounds that all families share are in ``[transactions]``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from txnframework_legacy.options import TopicOptions


class SidecarOptions(TopicOptions, frozen=True, kw_only=True):
    """Options of the transaction buffer ``sidecar``."""

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
    own_ledgers_open_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many ledgers of large transactions a process keeps open when nobody is at them;"
            " a transaction that no single marker could list has one.",
        ),
    ] = 100
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
