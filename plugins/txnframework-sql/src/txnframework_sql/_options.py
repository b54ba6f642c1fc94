"""What can be set for a store, with the defaults."""

from __future__ import annotations

from typing import Annotated

import msgspec

_Positive = Annotated[int, msgspec.Meta(ge=1)]


class DatabaseOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    What both stores can set.

    ``lock_timeout_ms``: how long a write waits for the writers of other processes before it raises Unavailable.
    ``group_max``: how many waiting writes share one commit at most. ``queue_max``: how many operations of one store
    are under way at most; further ones wait their turn. ``poll_ms``: how often a waiting watch asks whether another
    process has committed. ``share_connection``: let the stores of this process that name one file use one connection,
    so that their writes share commits instead of waiting for each other.
    """

    lock_timeout_ms: _Positive = 10_000
    group_max: _Positive = 512
    queue_max: _Positive = 4_096
    poll_ms: _Positive = 20
    share_connection: bool = True


class MetadataOptions(DatabaseOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``session_ttl_ms``: how long a lease outlives its holder's last heartbeat; one comes every third of it."""

    session_ttl_ms: Annotated[int, msgspec.Meta(ge=30)] = 6_000


class LedgerOptions(DatabaseOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    What ledgers can set besides.

    ``ledger_entries_max``, ``ledger_bytes_max``: the append that reaches one of them closes its ledger.
    ``deduplication_window``: how many sequences of each producer are remembered at least.
    ``producer_idle_ms``: a producer that was silent for so long may be forgotten when ledgers are trimmed.
    ``trim_entries_max``: after how many entries one call of ``trim`` stops (ledgers are dropped whole).
    """

    ledger_entries_max: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)] = 50_000
    ledger_bytes_max: _Positive = 256 * 1024 * 1024
    deduplication_window: _Positive = 10_000
    producer_idle_ms: _Positive = 7 * 24 * 3_600_000
    trim_entries_max: _Positive = 10_000
