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
        Meta(ge=1, description="How many transaction ids a process reserves together; unused ids are lost."),
    ] = 1_000
    participants_together_max: Annotated[
        int,
        Meta(
            ge=1,
            description="At how many segments and subscriptions a transaction is settled concurrently.",
        ),
    ] = 16
    begun_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many transactions that a process began or ended it remembers. It uses remembered ones"
            " without a read. A forgotten transaction costs a read.",
        ),
    ] = 10_000
    settle_delay_ms: Annotated[
        int,
        Meta(ge=0, description="How long a sweep waits for the process that ended a transaction to settle it."),
    ] = 5_000
    past_runs_max: Annotated[
        int, Meta(ge=1, description="How many past runs of an application are remembered, and therefore refused.")
    ] = 100
    committed_batches_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many committed batches of an application are remembered, or fewer if they read many"
            " segments.",
        ),
    ] = 100


class BufferOptions(Options, frozen=True, kw_only=True):
    """Options of the transaction buffer."""

    check_every_append: Annotated[
        bool,
        Meta(
            description="Read the transaction's state before every append, so that a send in an ended transaction is"
            " refused immediately. False saves this read; such a send is then refused by the commit at the latest."
            " After a commit by another process, it is refused in either case."
        ),
    ] = True
    plan_wait_ms_max: Annotated[
        int, Meta(ge=0, description="How long a plan waits for a range that this process cannot read completely yet.")
    ] = 30_000
    intents_max: Annotated[
        int,
        Meta(ge=1, description="How many announced writers a process remembers; a forgotten one costs a record."),
    ] = 10_000
    outcomes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many outcomes of branches a process remembers for each segment. A forgotten outcome costs"
            " a read when entries of the branch are read again.",
        ),
    ] = 10_000
    headers_together_max: Annotated[
        int, Meta(ge=1, description="How many transactions are looked up concurrently.")
    ] = 16
    open_presumed_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long a process assumes, without a read, that the transaction of an entry is open. This"
            " applies to entries that a watch reported, on stores whose watches also report the end of a transaction.",
        ),
    ] = 2
    ahead_entries_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many entries a process reads ahead for waiting callers, before it knows whether the"
            " entries are readable.",
        ),
    ] = 100
    ahead_bytes_max: Annotated[
        int, Meta(ge=1, description="The same bound in bytes; a single larger entry is held nevertheless.")
    ] = 256 * 1024


class PendingAckOptions(Options, frozen=True, kw_only=True):
    """Options of the pending-ack store."""

    acks_per_record_max: Annotated[
        int,
        Meta(
            ge=1,
            description="The most acknowledged positions in one record, and the most that concurrent calls write"
            " together.",
        ),
    ] = 1_000
    confirmed_records_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many confirmed records a process remembers; a repeated acknowledgment that it does not"
            " remember is checked again.",
        ),
    ] = 10_000
