"""Retention: how much of a segment is kept, and the removal of the rest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from txnframework.broker._serving.segments import OpenSegment
from txnframework.broker.cursors import cursor_on, replayed_from
from txnframework.config import RetentionSection
from txnframework.environment import Environment
from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model import paths, records
from txnframework.model.cursor import Cursor
from txnframework.model.layout import Layout
from txnframework.model.ledger import LedgerSummary
from txnframework.model.positions import Position


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """
    What is known of a segment.

    ``ledgers``: the first ones that are left. ``readable``: everything up to it is decided. ``acknowledged``: every
    subscription is done with everything up to it; None: there is no subscription. ``replayed``: a pipeline that starts
    again may read anew what stands behind it; None: there is none. ``compacted``: readers of what was compacted go on
    behind it; None: nothing was.
    """

    now_ms: int
    ledgers: tuple[LedgerSummary, ...]
    readable: Position
    acknowledged: Position | None = None
    replayed: Position | None = None
    compacted: Position | None = None


def keeps_everything(rule: RetentionSection) -> bool:
    """Whether nothing is ever trimmed."""
    return rule.time_ms < 0 and rule.bytes < 0 and rule.backlog_time_ms < 0


def counts_time(rule: RetentionSection) -> bool:
    """Whether ledgers go by their age, so that an open one has to be closed some day."""
    return rule.time_ms >= 0 or rule.backlog_time_ms >= 0


def first_to_keep(facts: SegmentFacts, rule: RetentionSection) -> int:
    """
    Return the first ledger that stays; those below go.

    A ledger goes when every subscription is done with all of it, no pipeline may replay it, and one of the limits says
    so: it is older than ``time_ms``, or what remains of acknowledged ledgers holds ``bytes`` without it. Only
    ``backlog_time_ms`` passes cursors and what is kept for replays, and nothing passes what is undecided. The last
    ledger stays: it is the open one, or others that were not looked at stand behind it.
    """
    bounds = (facts.readable, facts.acknowledged, facts.replayed, facts.compacted)
    done = min(bound for bound in bounds if bound is not None)
    kept_bytes = sum(ledger.bytes for ledger in facts.ledgers if ledger.last <= done)
    *closed, last = facts.ledgers
    for ledger in closed:
        age_ms = max(0, facts.now_ms - ledger.appended_ms)
        is_done = ledger.last <= done
        expired = 0 <= rule.time_ms <= age_ms
        exceeds = 0 <= rule.bytes <= kept_bytes - ledger.bytes
        given_up = 0 <= rule.backlog_time_ms <= age_ms
        if ledger.last > facts.readable or not (given_up or (is_done and (expired or exceeds))):
            return ledger.ledger_id
        if is_done:
            kept_bytes -= ledger.bytes
    return last.ledger_id


def done_through(cursor: Cursor, ledgers: tuple[LedgerSummary, ...]) -> Position:
    """
    Return up to where everything is acknowledged, of the ledgers that are left.

    That may be beyond the mark: from their positions alone nobody can tell that the last entry of one ledger and the
    first one of the next are neighbours.
    """
    mark = cursor.mark_delete
    for first, last in cursor.deleted:
        following = _entry_after(mark, ledgers)
        if following is None or following < first:
            return mark
        mark = last
    return mark


def _entry_after(position: Position, ledgers: tuple[LedgerSummary, ...]) -> Position | None:
    for ledger in ledgers:
        entry_id = position.entry_id + 1 if ledger.ledger_id == position.ledger_id else 0
        if ledger.ledger_id >= position.ledger_id and entry_id < ledger.entries:
            return Position(ledger.ledger_id, entry_id)
    return None


Visit = Callable[[str], AbstractAsyncContextManager[OpenSegment]]

LEDGERS_MAX = 1_000
"""How many ledgers of one segment one round looks at."""
STEPS_MAX = 100
"""How many bounded steps of trimming one round takes in one segment."""


class Trimmer:
    """
    Removes what nobody needs any more, in any process and any number of them: nothing here relies on being alone.

    What is looked up may have changed before the ledgers go. A subscription that is made meanwhile begins at what is
    left; a seek back to what had been acknowledged goes, like any later one, to what is left of it: what is trimmed
    was given up when its cursor was read. The buffer itself looks again at what is undecided.
    """

    def __init__(
        self, store: IMetadataStore, visit: Visit, keeps_beside: Callable[[str], bool], environment: Environment
    ) -> None:
        self._store = store
        self._visit = visit
        self._keeps_beside = keeps_beside
        self._environment = environment

    async def trim(self, layout: Layout, rule: RetentionSection) -> None:
        """
        Trim every segment of a topic; one whose change is under way has its turn later.

        Where everything is kept, only what buffers have beside segments that transactions were used on.
        """
        keeps_all = keeps_everything(rule)
        if keeps_all and not layout.families:
            return
        for segment_id in layout.made():
            if not keeps_all:
                await self._trim(layout, segment_id, rule)
            elif self._keeps_beside(str(layout.name_of(segment_id))):
                await self._trim_beside(str(layout.name_of(segment_id)))

    async def _trim_beside(self, name: str) -> None:
        """Let a buffer tidy what it keeps elsewhere, and let the segment keep all that it has."""
        async with self._visit(name) as opened:
            (first,) = await opened.ledger.ledgers(-1, 1)
            for _ in range(STEPS_MAX):
                if not (await opened.buffer.trim(first.ledger_id)).left:
                    return

    async def _trim(self, layout: Layout, segment_id: int, rule: RetentionSection) -> None:
        name = str(layout.name_of(segment_id))
        # The cursors first: a range is remembered before its cursor passes it, so what is read after a cursor knows of
        # every batch that moved it.
        cursors = [await cursor_on(self._store, layout, segment_id, one) for one in layout.subscriptions]
        replayed = await self._replayed(layout, name)
        compacted = await self._compacted(name)
        async with self._visit(name) as opened:
            if counts_time(rule):
                await self._roll(opened.ledger, rule.ledger_age_ms)
            readable = await opened.buffer.max_read_position()
            ledgers = await opened.ledger.ledgers(-1, LEDGERS_MAX)
            acknowledged = min((done_through(cursor, ledgers) for cursor in cursors), default=None)
            facts = SegmentFacts(self._environment.now_ms(), ledgers, readable, acknowledged, replayed, compacted)
            below = first_to_keep(facts, rule)
            for _ in range(STEPS_MAX):
                swept = await opened.buffer.trim(below)  # also where nothing is to go: abort records may be waiting
                (left,) = await opened.ledger.ledgers(-1, 1)
                if not swept.left and left.ledger_id in (below, ledgers[0].ledger_id):
                    return
                ledgers = (left,)

    async def _roll(self, ledger: IManagedLedger, age_ms: int) -> None:
        """Close the open ledger if its first entry is so old; who is about to append goes on in the next one."""
        tail = await ledger.tail()
        before = await ledger.find_time(self._environment.now_ms() - age_ms + 1)
        if not tail.sealed and before >= Position(tail.open_ledger_id, 0):
            await ledger.roll()

    async def _replayed(self, layout: Layout, segment: str) -> Position | None:
        """Return after which position of a segment some pipeline may read anew; None: nowhere."""
        starts = []
        for subscription in layout.subscriptions:
            record = await self._store.get(paths.subscription_key(str(layout.topic), subscription))
            if record is not None:
                starts.append(replayed_from(records.decode(records.SubscriptionRecord, record), segment))
        return min((start for start in starts if start is not None), default=None)

    async def _compacted(self, segment: str) -> Position | None:
        """Return up to where a segment was compacted; None: it was not."""
        record = await self._store.get(paths.compacted_key(segment))
        found = records.CompactedRecord() if record is None else records.decode(records.CompactedRecord, record)
        return Position.parse(found.upto) if found.ledger else None
