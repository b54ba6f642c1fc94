"""Entries of one segment that are read while it is determined whether they may be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txnframework.errors import TxnFrameworkError
from txnframework.interfaces import IManagedLedger
from txnframework.model.entries import EntryView
from txnframework.model.ids import METADATA_FAMILY, Branch
from txnframework.model.ledger import LedgerEntry
from txnframework.model.positions import EntryRange, Limit, Position
from txnframework.plugin import AbortRetention, foreign_data
from txnframework_metadata.buffer.visibility import Intent

BranchedEntry = tuple[LedgerEntry, Branch | None]

_END_OF_EVERYTHING = Position((1 << 63) - 1, (1 << 63) - 1)


def branched(entries: Iterable[LedgerEntry], segment: str) -> tuple[BranchedEntry, ...]:
    """
    Return entries with the branches that wrote them.

    :raises ConfigurationError: an entry belongs to a transaction of another family; here it would count as committed.
    """
    found = tuple((entry, EntryView(entry.data, entry.position, segment).branch) for entry in entries)
    for entry, branch in found:
        if branch is not None and branch.txn_id.family != METADATA_FAMILY:
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


class Ahead:
    """
    Holds a bounded number of entries after the announced position, for callers that wait for them.

    Nothing is decided about these entries here. They are judged when they are fetched, as if they were read then. The
    abort records of old entries may be gone by that time, so the time of reading is kept with them.
    """

    def __init__(self, segment: str, ledger: IManagedLedger, retention: AbortRetention, limit: Limit) -> None:
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
            held = HeldEntries(after, (), self._retention.now_ms())
        self._held = held
        items = self._limit.items - len(held.entries)
        size = self._limit.bytes - sum(len(entry.data) for entry, _ in held.entries)
        if items <= 0 or size <= 0:
            return
        last = held.entries[-1][0].position if held.entries else after
        try:
            found = await self._ledger.read(EntryRange(last, _END_OF_EVERYTHING), Limit(items, size))
            more = branched(found, self._segment)
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
            held = HeldEntries(after, (), self._retention.now_ms())
        if held is None or (held.entries and held.entries[-1][0].position != last):
            return
        entries = held.entries + branched(came, self._segment)
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
