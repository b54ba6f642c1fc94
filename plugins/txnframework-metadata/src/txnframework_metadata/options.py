"""Options of the three plugins; the times and bounds of all families are configured under ``[transactions]``."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options common to all three plugins."""

    page_records: Annotated[
        int, Meta(ge=1, description="How many records one request to the metadata store returns at most.")
    ] = 500
    attempts_max: Annotated[
        int,
        Meta(ge=1, description="How often a compare-and-set that lost a race is tried before Unavailable is raised."),
    ] = 100


class CoordinatorOptions(Options, frozen=True, kw_only=True):
    """Options of the coordinator."""

    id_block_size: Annotated[
        int,
        Meta(ge=1, description="How many transaction ids a process reserves at once; what it does not use is lost."),
    ] = 1_000
    participants_together_max: Annotated[
        int,
        Meta(
            ge=1,
            description="At how many segments and subscriptions of a transaction it is settled at once.",
        ),
    ] = 16
    begun_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Of how many transactions that it began or ended a process remembers the record, to add to"
            " them, end or settle them without reading it; forgetting costs that read.",
        ),
    ] = 10_000
    settle_delay_ms: Annotated[
        int,
        Meta(ge=0, description="How long a sweep leaves an ended transaction to the process that ended it."),
    ] = 5_000
    past_runs_max: Annotated[
        int, Meta(ge=1, description="How many past runs of an application are remembered, and so refused.")
    ] = 100
    committed_batches_max: Annotated[
        int, Meta(ge=1, description="How many committed batches of an application are remembered.")
    ] = 100


class BufferOptions(Options, frozen=True, kw_only=True):
    """Options of the transaction buffer."""

    check_every_append: Annotated[
        bool,
        Meta(
            description="Read the transaction's state before every append, so that a send on an ended transaction is"
            " refused at once. False saves that read: such a send is then refused at the latest by the commit."
        ),
    ] = True
    plan_wait_ms_max: Annotated[
        int, Meta(ge=0, description="How long a plan waits for a range that this process cannot read to its end yet.")
    ] = 30_000
    intents_max: Annotated[
        int,
        Meta(ge=1, description="How many writers a process remembers to have announced; forgetting costs a record."),
    ] = 10_000
    outcomes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Of how many branches a process remembers for each segment how they ended; forgetting costs a"
            " look when their entries are read again.",
        ),
    ] = 10_000
    headers_together_max: Annotated[
        int, Meta(ge=1, description="How many transactions are looked up at the same time.")
    ] = 16
    open_presumed_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long a process that was told of an entry as soon as it came takes its transaction for open"
            " without reading that, where the store would tell of its end at once, too.",
        ),
    ] = 2
    ahead_entries_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many entries a process holds for those who wait, read while it finds out whether they may"
            " be.",
        ),
    ] = 100
    ahead_bytes_max: Annotated[
        int, Meta(ge=1, description="The same in bytes; a single larger entry is held all the same.")
    ] = 256 * 1024


class PendingAckOptions(Options, frozen=True, kw_only=True):
    """Options of the pending-ack store."""

    acks_per_record_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many acknowledged positions one record holds at most, and how many of those that come at"
            " the same time are written together.",
        ),
    ] = 1_000
    confirmed_records_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many confirmed records a process remembers; repeating one that it does not remember is"
            " judged anew.",
        ),
    ] = 10_000
