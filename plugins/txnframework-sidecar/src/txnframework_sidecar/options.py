"""Options of the plugin; times and bounds that all families share are in ``[transactions]``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from txnframework_legacy.options import TopicOptions


class SidecarOptions(TopicOptions, frozen=True, kw_only=True):
    """Options of the transaction buffer ``sidecar``."""

    marker_messages_max: Annotated[
        int, Meta(ge=1, description="Messages that one marker lists; a larger transaction has several markers.")
    ] = 1_000
    marker_bytes_max: Annotated[
        int,
        Meta(ge=1, description="Bytes of entries that one marker lists; a larger entry has a marker of its own."),
    ] = 1024 * 1024
    marker_spans_max: Annotated[
        int, Meta(ge=1, description="Spans of consecutive entries in the sidecar that one marker lists.")
    ] = 1_000
    own_ledgers_open_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Unused ledgers of large transactions that a process keeps open;"
            " a transaction that exceeds what one marker can list has such a ledger.",
        ),
    ] = 100
    compaction_ledgers_kept_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Closed ledgers of the sidecar that are kept only for committed transactions;"
            " if there are more, they are compacted.",
        ),
    ] = 4
    compaction_entries_max: Annotated[
        int, Meta(ge=1, description="Entries that one run of compaction writes; a larger transaction is not split.")
    ] = 10_000
    sidecar_ledger_entries_max: Annotated[
        int,
        Meta(ge=1, description="Entries after which the sidecar's ledger is closed, so that it can be trimmed."),
    ] = 10_000
