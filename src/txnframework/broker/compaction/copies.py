"""Distributed compaction: a plan, and copies made by many processes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from txnframework.broker.compaction.attempts import CompactionResult, continued_from
from txnframework.broker.compaction.messages import CommitTimes, Order, readable_end
from txnframework.broker.segments import OpenSegment
from txnframework.errors import CommitOrderUnknown, CompactedInOtherOrder, EntryTrimmed, InvalidInput
from txnframework.interfaces import ILedgerStore, IManagedLedger, IPlannableBuffer
from txnframework.model.compacted import decode_compacted, encode_whole
from txnframework.model.entries import EntryView
from txnframework.model.ids import Branch
from txnframework.model.ledger import LedgerEntry
from txnframework.model.positions import EARLIEST, EntryRange, Limit, Position

EVERYTHING = "everything"
"""The compactor that keeps every message that counts."""

PAGE = Limit(100)


@dataclass(frozen=True, slots=True)
class CopyRange:
    """Entries of ``ledger`` to be copied, which hold ``messages``; ``compacted``: an earlier compaction kept them."""

    ledger: str
    after: Position
    upto: Position
    messages: int
    compacted: bool = False


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """
    The ranges to copy, so that every message that counts up to ``upto`` is kept.

    ``ranges`` are in the order of positions, and entries of ``aborted`` branches in them do not count. Both stay valid
    for as long as the data exists.
    """

    segment: str
    order: Order
    upto: Position
    ranges: tuple[CopyRange, ...]
    aborted: frozenset[Branch]


@dataclass(frozen=True, slots=True)
class Copied:
    """An entry as it is to be written, its position in its segment, and its time if copies are to be sorted."""

    time_ms: int
    position: Position
    data: bytes
    messages: int


async def plan_copies(
    opened: OpenSegment, ledgers: ILedgerStore, earlier: CompactionResult | None, order: Order, messages_max: int
) -> CopyPlan:
    """
    Return the ranges of a segment to copy, each of about ``messages_max`` messages.

    In the order of positions, the plan continues an earlier compaction in that order. Otherwise it starts over.

    :raises CommitOrderUnknown: the first messages were trimmed.
    :raises CompactedInOtherOrder: the first messages were trimmed, and the earlier compaction was in the order of
        commits.
    :raises InvalidInput: the segment's buffer cannot say what counts without reading the messages itself.
    """
    buffer = opened.buffer
    if not IPlannableBuffer.providedBy(buffer):
        raise InvalidInput(
            f"{opened.name} can only be compacted in one process, as its buffer cannot be read from the ledger alone;"
            " use 'txnframework topic compact'"
        )
    upto = await readable_end(opened, EARLIEST if earlier is None else earlier.upto)
    ranges: list[CopyRange] = []
    after = EARLIEST
    if (going_on := continued_from(earlier, order)) is not None:
        for name in going_on.ledgers:
            kept = await ledgers.open(name)
            try:
                end = (await kept.tail()).last_confirmed
                ranges += await _cut(kept, EARLIEST, end, messages_max, compacted=True)
            finally:
                await kept.close()
        after = going_on.upto
    if upto <= after:
        return CopyPlan(opened.name, order, max(upto, after), tuple(ranges), frozenset())
    try:
        plan = await buffer.plan(after, upto)
    except EntryTrimmed as error:
        if order == "commit":
            raise CommitOrderUnknown(opened.name, "its first messages were trimmed") from error
        if earlier is not None and going_on is None:
            raise CompactedInOtherOrder(opened.name) from error
        (left,) = await opened.ledger.ledgers(-1, 1)
        after = Position(left.ledger_id, -1)
        plan = await buffer.plan(after, upto)
    ranges += await _cut(opened.ledger, after, upto, messages_max, compacted=False)
    return CopyPlan(opened.name, order, upto, tuple(ranges), plan.aborted)


async def _cut(
    ledger: IManagedLedger, after: Position, upto: Position, messages_max: int, compacted: bool
) -> list[CopyRange]:
    found: list[CopyRange] = []
    while after < upto:
        counted = await ledger.count(EntryRange(after, upto), messages_max)
        if counted.upto <= after:
            break
        found.append(CopyRange(ledger.name, after, counted.upto, counted.messages, compacted))
        after = counted.upto
    return found


async def copies(
    ledgers: ILedgerStore, planned: CopyRange, aborted: frozenset[Branch], times: CommitTimes | None
) -> AsyncGenerator[Copied, None]:
    """
    Return the entries of a range that count, in the order of positions. ``times`` None: the copies are not sorted.

    :raises CommitOrderUnknown: an outcome is not kept any more.
    :raises EntryTrimmed: entries of the range were trimmed since it was planned.
    :raises LedgerNotFound: the segment was deleted, or a later attempt has finished.
    """
    ledger = await ledgers.open(planned.ledger)
    try:
        after = planned.after
        while after < planned.upto:
            page = await ledger.read(EntryRange(after, planned.upto), PAGE)
            if not page:
                return
            after = page[-1].position
            for entry in page:
                if planned.compacted:
                    yield _kept_before(entry, ledger.name)
                    continue
                view = EntryView(entry.data, entry.position, ledger.name)
                if view.branch is None or not (view.branch in aborted or view.branch.is_control):
                    time_ms = 0 if times is None else await times.of(view)
                    data = encode_whole(entry.data, entry.position, view.count)
                    yield Copied(time_ms, entry.position, data, view.count)
    finally:
        await ledger.close()


def _kept_before(entry: LedgerEntry, ledger: str) -> Copied:
    kept = decode_compacted(entry.data, entry.position, ledger)
    return Copied(0, kept.position, bytes(entry.data), len(kept.messages))
