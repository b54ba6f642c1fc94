"""
Reading of one segment's entries: ahead of the announced position, and with the decision which entries are aborted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from txnframework.errors import TxnFrameworkError
from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model.entries import EntryView
from txnframework.model.ids import METADATA_FAMILY, Branch
from txnframework.model.ledger import LedgerEntry
from txnframework.model.positions import EntryRange, Limit, Position
from txnframework.plugin import AbortRetention, foreign_data
from txnframework_metadata.buffer.abort_records import aborted_branches, all_aborted_branches
from txnframework_metadata.buffer.visibility import Intent, KnownOutcomes

BranchedEntry = tuple[LedgerEntry, Branch | None]

OWN_FAMILY = frozenset({METADATA_FAMILY})

_END_OF_EVERYTHING = Position((1 << 63) - 1, (1 << 63) - 1)


def branched(
    entries: Iterable[LedgerEntry], segment: str, families: frozenset[str] = OWN_FAMILY
) -> tuple[BranchedEntry, ...]:
    """
    Return entries with the branches that wrote them; ``families``: those whose outcomes are known here.

    :raises ConfigurationError: an entry belongs to a transaction of another family; here it would count as committed.
    """
    found = tuple((entry, EntryView(entry.data, entry.position, segment).branch) for entry in entries)
    for entry, branch in found:
        if branch is not None and branch.txn_id.family not in families:
            what = f"entry {entry.position} of a transaction of the {branch.txn_id.family} family"
            raise foreign_data(segment, what, "plugins of that family")
    return found


@dataclass(frozen=True, slots=True)
class HeldEntries:
    """
    All entries after ``after`` up to the last one held.

    ``begun_ms``: the time at which reading them began. Abort records that were needed at that time are kept for
    ``abort_retention_ms`` after it.
    """

    after: Position
    entries: tuple[BranchedEntry, ...]
    begun_ms: int

    def behind(self, after: Position) -> HeldEntries | None:
        """
        Return the held entries after a position.

        None means that there are none, or that entries before them may be missing.
        """
        left = tuple(held for held in self.entries if held[0].position > after)
        return HeldEntries(after, left, self.begun_ms) if left and self.after <= after else None

    def page(self, entries: EntryRange, limit: Limit) -> HeldEntries | None:
        """Return the first entries of a range; None if the held entries do not include its beginning."""
        if entries.after < self.after:
            return None
        page: list[BranchedEntry] = []
        size = 0
        for held in self.entries:
            if entries.after < held[0].position <= entries.upto:
                size += len(held[0].data)
                if page and (len(page) >= limit.items or size > limit.bytes):
                    break
                page.append(held)
        return HeldEntries(entries.after, tuple(page), self.begun_ms) if page else None


class ReadAhead:
    """
    Holds a bounded number of entries after the announced position, for callers that wait for them.

    Nothing is decided about these entries here. They are judged when they are fetched, as if they were read then. The
    abort records of old entries may be gone by that time, so the time of reading is kept with them.
    """

    def __init__(
        self,
        segment: str,
        ledger: IManagedLedger,
        retention: AbortRetention,
        limit: Limit,
        families: frozenset[str] = OWN_FAMILY,
    ) -> None:
        self.families = families
        """The families whose outcomes are known here."""
        self._segment = segment
        self._ledger = ledger
        self._retention = retention
        self._limit = limit
        self._held: HeldEntries | None = None

    async def read_on(self, after: Position) -> None:
        """
        Hold the entries after a position, as far as the bounds allow.

        An entry that cannot be read is left to the fetch.
        """
        held = None if self._held is None else self._held.behind(after)
        if held is None:
            held = HeldEntries(after, (), self._retention.monotonic_ms())
        self._held = held
        items = self._limit.items - len(held.entries)
        size = self._limit.bytes - sum(len(entry.data) for entry, _ in held.entries)
        if items <= 0 or size <= 0:
            return
        last = held.entries[-1][0].position if held.entries else after
        try:
            found = await self._ledger.read(EntryRange(last, _END_OF_EVERYTHING), Limit(items, size))
            more = branched(found, self._segment, self.families)
        except TxnFrameworkError:
            return
        if self._held is held:
            self._held = HeldEntries(held.after, held.entries + more, held.begun_ms)

    def take(self, after: Position, last: Position, came: Iterable[LedgerEntry]) -> None:
        """
        Also hold entries directly after ``last``, as far as the bounds allow.

        Nothing changes unless all entries from ``after`` to ``last`` are held.
        """
        held = None if self._held is None else self._held.behind(after)
        if held is None and last <= after:
            held = HeldEntries(after, (), self._retention.monotonic_ms())
        if held is None or (held.entries and held.entries[-1][0].position != last):
            return
        entries = held.entries + branched(came, self._segment, self.families)
        if len(entries) <= self._limit.items and sum(len(entry.data) for entry, _ in entries) <= self._limit.bytes:
            self._held = HeldEntries(held.after, entries, held.begun_ms)

    def page(self, entries: EntryRange, limit: Limit) -> HeldEntries | None:
        """Return the first entries of a range, or None if they are not held."""
        return None if self._held is None else self._held.page(entries, limit)

    def branches(self) -> list[Branch]:
        """Return the branches that wrote the held entries, each once, in the order of the entries."""
        held = () if self._held is None else self._held.entries
        return list(dict.fromkeys(branch for _, branch in held if branch is not None))

    def written(self, after: Position, upto: Position) -> list[Intent] | None:
        """
        Return an intent for each branch that wrote entries after ``after`` up to ``upto``, just before its first entry.

        None is returned if not all of those entries are held.
        """
        if after >= upto:
            return []
        held = self._held
        if held is None or held.after > after or not held.entries or held.entries[-1][0].position < upto:
            return None
        found: dict[tuple[int, Branch], Intent] = {}
        before = after
        for position, branch in ((entry.position, branch) for entry, branch in held.entries):
            if after < position <= upto:
                if branch is not None:
                    found.setdefault((position.ledger_id, branch), Intent(branch, position.ledger_id, before))
                before = position
        return list(found.values())

    def drop(self) -> None:
        """Drop all held entries; the next request reads again."""
        self._held = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """
    A page of entries with their branches.

    ``aborted``: the branches of announced entries that do not count. ``upto``: the end of the page.
    """

    entries: tuple[BranchedEntry, ...]
    aborted: frozenset[Branch]
    upto: Position


class EntryReader:
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
        ahead: ReadAhead,
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
            if branch is not None and not branch.is_control and entry.position <= announced:
                written.setdefault(entry.position.ledger_id, set()).add(branch)
        aborted = await self._judge(written, entries, held.begun_ms)
        return Fetched(held.entries, aborted, held.entries[-1][0].position if held.entries else entries.upto)

    async def _read(self, entries: EntryRange, limit: Limit) -> HeldEntries:
        """Read the first entries of a range."""
        begun_ms = self._retention.monotonic_ms()
        found = await self._ledger.read(entries, limit)
        return HeldEntries(entries.after, branched(found, self._segment, self._ahead.families), begun_ms)

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
