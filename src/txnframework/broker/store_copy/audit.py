"""The comparison of two deployments by counts and hashes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from txnframework.broker.store_copy.digests import (
    Digest,
    LedgerDigest,
    RecordDigests,
    digest_ledger,
    digest_records,
    names_of,
)
from txnframework.broker.store_copy.pairs import CopyablePair

CopyProgress = Callable[[str, int, int | None], None]
"""Receives the step, how many items of it are done, and how many there are; None: that is not known."""

DIFFERENCES_MAX = 1_000
"""The most differences that a report names."""
COMPARE_RECORDS, COMPARE_ENTRIES = "comparing records", "comparing entries"


@dataclass(frozen=True, slots=True)
class ComparedItem:
    """
    Two digests of the same thing, such as the entries of a ledger, or the records of a family.

    ``what``: ``shape``, ``entries``, ``sequences``, ``records`` or ``index``. ``name``: the ledger, family or index.
    """

    what: str
    name: str
    source: Digest
    target: Digest

    @property
    def differs(self) -> bool:
        """Whether the two differ, or one of them is damaged."""
        return self.source != self.target or self.source.error is not None


@dataclass(slots=True)
class AuditReport:
    """
    The result of a comparison: what was compared, and the first differences; ``differing`` counts all of them.
    """

    ledgers: int = 0
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    sequences: int = 0
    records: int = 0
    index_entries: int = 0
    differing: int = 0
    differences: list[ComparedItem] = field(default_factory=list)

    def add(self, line: ComparedItem) -> None:
        """Note a line if it is a difference."""
        if line.differs:
            self.differing += 1
            if len(self.differences) < DIFFERENCES_MAX:
                self.differences.append(line)


class Audit:
    """
    Compares everything in two deployments; both must be at rest.

    ``entries_total``: the number of entries, for the progress.
    """

    def __init__(
        self,
        source: CopyablePair,
        target: CopyablePair,
        progress: CopyProgress = lambda *_: None,
        entries_total: int | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._entries_total = entries_total
        self._done = 0

    async def run(self) -> AuditReport:
        """Compare all ledgers and all records; with a shared ledger store, only the records."""
        report = AuditReport()
        if self._source.ledgers is not self._target.ledgers:
            async for name in self._names():
                await self._compare_ledger(name, report)
        await self._compare_records(report)
        return report

    async def _names(self) -> AsyncIterator[str]:
        """Yield the names of the managed ledgers of both stores, in order."""
        sides = [names_of(pair.ledgers) for pair in (self._source, self._target)]
        heads = [await anext(side, None) for side in sides]
        while any(head is not None for head in heads):
            name = min(head for head in heads if head is not None)
            yield name
            for at, side in enumerate(sides):
                if heads[at] == name:
                    heads[at] = await anext(side, None)

    async def _compare_ledger(self, name: str, report: AuditReport) -> None:
        source, target = await asyncio.gather(
            digest_ledger(self._source.ledgers, name, self._advance), digest_ledger(self._target.ledgers, name)
        )
        report.ledgers += 1
        _count(report, source)
        for what in ("shape", "entries", "sequences"):
            report.add(ComparedItem(what, name, getattr(source, what), getattr(target, what)))

    async def _compare_records(self, report: AuditReport) -> None:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._progress(COMPARE_RECORDS, done, None)

        source, target = await asyncio.gather(
            digest_records(self._source.metadata, advance), digest_records(self._target.metadata)
        )
        report.records += sum(one.count for one in source.families.values())
        report.index_entries += sum(one.count for one in source.indexes.values())
        for what, digests in (("records", _families), ("index", _indexes)):
            of_source, of_target = digests(source), digests(target)
            for name in sorted(of_source.keys() | of_target.keys()):
                absent = Digest(0, "")
                report.add(ComparedItem(what, name, of_source.get(name, absent), of_target.get(name, absent)))

    def _advance(self, count: int) -> None:
        self._done += count
        self._progress(COMPARE_ENTRIES, self._done, self._entries_total)


def _count(report: AuditReport, ledger: LedgerDigest) -> None:
    report.entries += ledger.entries.count
    report.messages += ledger.messages
    report.bytes += ledger.bytes
    report.sequences += ledger.sequences.count


def _families(digests: RecordDigests) -> dict[str, Digest]:
    return digests.families


def _indexes(digests: RecordDigests) -> dict[str, Digest]:
    return digests.indexes
