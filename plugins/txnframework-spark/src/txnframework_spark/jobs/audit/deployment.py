"""What an audit reads: every ledger of a deployment, in pieces, with the ends that were read first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from txnframework.broker import CompactionResult, Host, positions_beyond_end
from txnframework.errors import LedgerNotFound
from txnframework.interfaces import IManagedLedger, IPlannableBuffer
from txnframework.model.layout import Layout
from txnframework.model.ledger import LedgerSummary
from txnframework.model.names import SEGMENT, TopicName
from txnframework.model.positions import EARLIEST, Position
from txnframework_spark.jobs.audit.report import AuditFinding

PAGE: Final = 100
_OPENED_AT_A_TIME: Final = 16
_COMPACTED: Final = "compacted:"


@dataclass(frozen=True, slots=True)
class Piece:
    """
    Entries ``first`` to ``last`` of ledger ``ledger_id`` of the managed ledger ``name``.

    ``readable``, of a segment: the position up to which everything is decided; None: not known. ``copy_of``, of a
    compacted ledger: the segment that it belongs to.
    """

    name: str
    ledger_id: int
    first: int
    last: int
    readable: Position | None = None
    copy_of: str = ""

    @property
    def after(self) -> Position:
        """The position before its first entry."""
        return Position(self.ledger_id, self.first - 1)

    @property
    def upto(self) -> Position:
        """The position of its last entry."""
        return Position(self.ledger_id, self.last)

    @property
    def is_segment(self) -> bool:
        """Whether its entries are those of a segment of a scalable topic."""
        return self.name.startswith(f"{SEGMENT}://")


@dataclass(slots=True)
class Deployment:
    """
    Everything that is audited, as it was when the audit began.

    ``ledgers`` by managed ledger and ledger id, ``ends`` the last position of each segment, ``kept`` the compactions,
    ``beyond`` what records name beyond the ends of segments.
    """

    layouts: list[Layout] = field(default_factory=list)
    ledgers: dict[tuple[str, int], LedgerSummary] = field(default_factory=dict)
    readable: dict[str, Position | None] = field(default_factory=dict)
    ends: dict[str, Position] = field(default_factory=dict)
    kept: dict[str, CompactionResult] = field(default_factory=dict)
    beyond: list[AuditFinding] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """The number of messages to read, copies included."""
        return sum(one.messages for one in self.ledgers.values())

    def lacks_copy(self, segment: str) -> bool:
        """Whether a part of the compacted copy of a segment was not found."""
        return not set(self.kept[segment].ledgers) <= {name for name, _ in self.ledgers}

    def first_ledger(self, name: str) -> int:
        """Return the first ledger of a managed ledger that is left."""
        return min(ledger for found, ledger in self.ledgers if found == name)

    def has_older_ledger(self, name: str, ledger_id: int) -> bool:
        """Whether a managed ledger has a ledger that is older than this one."""
        return any(found == name and ledger < ledger_id for found, ledger in self.ledgers)


async def load_deployment(host: Host) -> Deployment:
    """
    Return what there is to audit.

    Compactions are read before the ends of their segments, and these before the numbers of entries. So whatever a
    position names is among the entries that are read, although other processes go on.
    """
    found = Deployment()
    after: TopicName | None = None
    while page := await host.topics.page(PAGE, after):
        found.layouts += page
        after = page[-1].topic
    owners = {str(layout.name_of(number)): layout for layout in found.layouts for number in layout.made()}
    limit = asyncio.Semaphore(_OPENED_AT_A_TIME)

    async def load(name: str) -> None:
        async with limit:
            if name.startswith(f"{SEGMENT}://"):
                await _load_segment(host, name, owners.get(name), found)
            else:
                await _load_ledger(host, name, found)

    names = [name async for name in _names(host)]
    # A compacted ledger that no record names is what a killed compaction left: it is not read by any consumer.
    first = [name for name in names if not name.startswith(_COMPACTED)]
    await asyncio.gather(*map(load, first))
    copies = {name for one in found.kept.values() for name in one.ledgers}
    await asyncio.gather(*map(load, sorted(copies)))
    return found


async def _names(host: Host) -> AsyncIterator[str]:
    after = ""
    while names := await host.ledgers.list_names("", after, PAGE):
        for name in names:
            yield name
        after = names[-1]


async def _load_segment(host: Host, name: str, owner: Layout | None, found: Deployment) -> None:
    try:
        kept = await host.compaction.attempts.result(name)
        async with host.segments.visit(name, may_have_lost_end=True) as opened:
            plannable = IPlannableBuffer.providedBy(opened.buffer)
            readable = max(EARLIEST, await opened.buffer.max_read_position()) if plannable else None
            await _load_summaries(opened.ledger, name, found)
            found.readable[name] = readable
            found.ends[name] = (await opened.ledger.tail()).last_confirmed
            beyond, end = await positions_beyond_end(host.metadata, opened.ledger, owner)
            for one in beyond:
                at, detail = one.position, f"{one.by} {one.position}, beyond the end {end}"
                found.beyond.append(AuditFinding("cursor-beyond-end", name, at.ledger_id, at.entry_id, detail=detail))
    except LedgerNotFound:  # deleted since the listing
        return
    if kept is not None:
        found.kept[name] = kept


async def check_ledgers(host: Host, deployment: Deployment) -> list[AuditFinding]:
    """
    Return the segments and compacted copies that records name and that are not stored.

    Ledgers are made before a record names them, and a topic is marked as deleted before its ledgers are removed. So a
    record that is unchanged after the listing names ledgers that must be there.
    """
    stored = {name for name, _ in deployment.ledgers}
    found = []
    for layout in deployment.layouts:
        for name in (str(layout.name_of(number)) for number in layout.made()):
            if name not in stored and not await host.topics.deletion.is_deleted(name, layout.life):
                found.append(AuditFinding("missing-ledger", name, detail=f"it is a segment of {layout.topic}"))
    for segment in await unchanged_copies(host, deployment):
        for name in set(deployment.kept[segment].ledgers) - stored:
            found.append(AuditFinding("missing-ledger", name, detail=f"it is a compacted copy of {segment}"))
    return found


async def unchanged_copies(host: Host, deployment: Deployment) -> set[str]:
    """Return the segments whose compaction is still the one that was loaded."""
    return {
        segment for segment, kept in deployment.kept.items() if await host.compaction.attempts.result(segment) == kept
    }


async def _load_ledger(host: Host, name: str, found: Deployment) -> None:
    try:
        ledger = await host.ledgers.open(name)
    except LedgerNotFound:
        return
    try:
        await _load_summaries(ledger, name, found)
    finally:
        await ledger.close()


async def _load_summaries(ledger: IManagedLedger, name: str, found: Deployment) -> None:
    last = -1
    while summaries := await ledger.ledgers(last, PAGE):
        for one in summaries:
            found.ledgers[name, one.ledger_id] = one
        last = summaries[-1].ledger_id


def cut(deployment: Deployment, messages_max: int) -> tuple[Piece, ...]:
    """Return the pieces of a deployment, each of about ``messages_max`` messages, in the order of ledgers."""
    copies = {name: segment for segment, one in deployment.kept.items() for name in one.ledgers}
    pieces: list[Piece] = []
    for (name, ledger_id), summary in sorted(deployment.ledgers.items()):
        step = -(-summary.entries // max(1, -(-summary.messages // messages_max))) or 1
        for first in range(0, summary.entries, step):
            last = min(first + step, summary.entries) - 1
            readable, copy_of = deployment.readable.get(name), copies.get(name, "")
            pieces.append(Piece(name, ledger_id, first, last, readable, copy_of))
    return tuple(pieces)
