"""Trimming the ledgers of one segment, and the abort records that are no longer needed."""

from __future__ import annotations

from msgspec.structs import replace

from txnframework.config import TransactionsSection
from txnframework.environment import Environment
from txnframework.errors import VersionMismatch
from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model.ids import Branch
from txnframework.model.metadata import Expect, Expected, Put
from txnframework.model.paths import abort_records_range, trimmed_key
from txnframework.model.records import TrimmedRecord, decode, encode
from txnframework.model.transactions import SweepResult
from txnframework_metadata.options import BufferOptions


class LedgerTrimmer:
    """
    Trims ledgers, and the abort records of ledgers that were removed at least ``abort_retention_ms`` ago.

    A process that fetched an entry before its ledger was removed can therefore still find out that the entry is
    aborted.

    One record stores which ledgers are removed, and since when, so that any process can continue, however short it
    lives. The record is written when abort records start to wait, and again when they are collected. A ledger removed
    while others wait starts its own wait when those are done, so its abort records stay for up to twice the time. The
    record is kept afterwards, and stores up to which ledger abort records were collected.
    """

    def __init__(
        self,
        segment: str,
        ledger: IManagedLedger,
        store: IMetadataStore,
        environment: Environment,
        transactions: TransactionsSection,
        options: BufferOptions,
    ) -> None:
        self._segment = segment
        self._ledger = ledger
        self._store = store
        self._environment = environment
        # Add the clock skew: the process that wrote the record may use another clock.
        self._kept_ms = transactions.abort_retention_ms + transactions.max_clock_skew_ms
        self._options = options
        self._key = trimmed_key(segment)

    async def trim(self, below_ledger_id: int, aborted: frozenset[Branch]) -> SweepResult:
        """Trim below a ledger; everything there is decided, and ``aborted`` are the branches that do not count."""
        first = await self._ledger.trim(below_ledger_id, aborted)
        # Read the time after the ledgers are removed, never before.
        now_ms = self._environment.now_ms()
        try:
            return await self._collect(first, now_ms)
        except VersionMismatch:
            return SweepResult(0, 1, now_ms)  # another process is collecting them

    async def _collect(self, first: int, now_ms: int) -> SweepResult:
        """Delete a page of abort records whose wait is over; note since when others wait."""
        found = await self._store.get(self._key)
        noted = TrimmedRecord(ledger=0, at_ms=0) if found is None else decode(TrimmedRecord, found)
        version: Expected = Expect.ABSENT if found is None else found.version
        done = 0
        if noted.ledger:
            due_ms = noted.at_ms + self._kept_ms
            if due_ms > now_ms:
                return SweepResult(0, 0, due_ms)
            below = min(first, noted.ledger)
            if below > noted.collected:
                # Note this before they are deleted; otherwise no record would show that they were.
                noted = replace(noted, collected=below)
                version = await self._store.put(Put(self._key, encode(noted), version))
            done, more = await self._delete_below(below)
            if more:
                return SweepResult(done, 1, now_ms)
        waiting = await self._any_below(first)
        if waiting or noted.ledger:
            since = replace(noted, ledger=first, at_ms=now_ms) if waiting else replace(noted, ledger=0, at_ms=0)
            await self._store.put(Put(self._key, encode(since), version))
        return SweepResult(done, 0, now_ms + self._kept_ms if waiting else None)

    async def _any_below(self, ledger_id: int) -> bool:
        page = await self._store.scan(abort_records_range(self._segment, 0, ledger_id), 1)
        return bool(page.records)

    async def _delete_below(self, ledger_id: int) -> tuple[int, bool]:
        """Delete a page of abort records of ledgers before this one; return how many, and whether there are more."""
        page = await self._store.scan(abort_records_range(self._segment, 0, ledger_id), self._options.page_records)
        for record in page.records:
            await self._store.delete(record.key, Expect.ANY)
        return len(page.records), page.resume is not None
