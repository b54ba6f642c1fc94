"""Fetching entries of one segment, and determining which of them are aborted."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model.ids import Branch
from txnframework.model.positions import EntryRange, Limit, Position
from txnframework.plugin import AbortRetention
from txnframework_metadata.buffer.aborted import KnownOutcomes
from txnframework_metadata.buffer.ahead import Ahead, BranchedEntry, HeldEntries, branched
from txnframework_metadata.buffer.outcomes import aborted_branches, all_aborted_branches


@dataclass(frozen=True, slots=True)
class Fetched:
    """
    A page of entries with their branches.

    ``aborted``: the branches of announced entries that do not count. ``upto``: the end of the page.
    """

    entries: tuple[BranchedEntry, ...]
    aborted: frozenset[Branch]
    upto: Position


class Fetching:
    """
    Determines at the fetch which announced entries are aborted.

    The branch of every announced entry has ended. It is aborted if the last reading of the segment found it aborted, or
    if its abort record is stored; otherwise it counts.

    Abort records are looked up only for the branches of fetched entries, so old ones cost nothing. They outlive their
    ledgers by ``abort_retention_ms``. A fetch that takes longer to judge raises EntryTrimmed if its ledger is gone.
    """

    def __init__(
        self,
        segment: str,
        ledger: IManagedLedger,
        ahead: Ahead,
        store: IMetadataStore,
        outcomes: KnownOutcomes,
        retention: AbortRetention,
        page_records: int,
    ) -> None:
        self._segment = segment
        self._ledger = ledger
        self._ahead = ahead
        self._store = store
        self._outcomes = outcomes
        self._retention = retention
        self._page_records = page_records

    async def fetch(self, entries: EntryRange, announced: Position, limit: Limit) -> Fetched:
        """
        Return the first entries of a range; those up to ``announced`` are judged.

        :raises EntryTrimmed: entries of the range were trimmed.
        """
        held = self._ahead.page(entries, limit) or await self._read(entries, limit)
        written: dict[int, set[Branch]] = {}
        for entry, branch in held.entries:
            if branch is not None and entry.position <= announced:
                written.setdefault(entry.position.ledger_id, set()).add(branch)
        aborted = await self._judge(written, entries, held.begun_ms)
        return Fetched(held.entries, aborted, held.entries[-1][0].position if held.entries else entries.upto)

    async def _read(self, entries: EntryRange, limit: Limit) -> HeldEntries:
        """Read the first entries of a range."""
        begun_ms = self._retention.now_ms()
        found = await self._ledger.read(entries, limit)
        return HeldEntries(entries.after, branched(found, self._segment), begun_ms)

    async def aborted_between(self, first: int, last: int) -> frozenset[Branch]:
        """Return all branches that are aborted in the ledgers from ``first`` to ``last``."""
        # In this order, for the reason given in ``_judge``.
        unsettled = self._outcomes.unsettled_between(first, last)
        found = await all_aborted_branches(self._store, self._segment, first, last, self._page_records)
        return unsettled | found

    async def require_there(self, entries: EntryRange) -> None:
        """Raise EntryTrimmed if entries of a range were trimmed."""
        if entries.after < entries.upto:
            await self._ledger.read(entries, Limit(1, 1))

    async def require_there_since(self, entries: EntryRange, begun_ms: int) -> None:
        """
        Raise EntryTrimmed if the range was trimmed and its abort records may be gone too.

        :param begun_ms: the time at which reading or planning the range began.
        """
        if self._retention.is_over(begun_ms):
            await self.require_there(entries)

    async def _judge(
        self, written: Mapping[int, AbstractSet[Branch]], entries: EntryRange, begun_ms: int
    ) -> frozenset[Branch]:
        """
        Return the aborted branches among ``written``.

        :param written: by ledger, the branches with announced entries in a range just fetched.
        """
        aborted: set[Branch] = set()
        unknown: dict[int, list[Branch]] = {}
        # Check the last reading first. An operation that is settled during the lookup is missing from the next reading,
        # and the lookup may have missed its abort record.
        for ledger_id, branches in written.items():
            for branch in branches:
                known = self._outcomes.is_aborted(branch, ledger_id)
                if known is None:
                    unknown.setdefault(ledger_id, []).append(branch)
                elif known:
                    aborted.add(branch)
        if not unknown:
            return frozenset(aborted)
        looked_up = [
            (asked, await aborted_branches(self._store, self._segment, ledger_id, asked, self._page_records))
            for ledger_id, asked in unknown.items()
        ]
        await self.require_there_since(entries, begun_ms)
        for asked, found in looked_up:
            self._outcomes.note(asked, aborted=False)
            self._outcomes.note(found, aborted=True)
            aborted |= found
        return frozenset(aborted)
