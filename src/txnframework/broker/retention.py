"""Retention: how much of a segment is kept, and the removal of the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txnframework.broker.batch_history import replayed_from
from txnframework.broker.cursors import cursor_on
from txnframework.broker.segments import SegmentVisit
from txnframework.config import RetentionSection
from txnframework.environment import Environment
from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model import paths, records
from txnframework.model.cursor import Cursor
from txnframework.model.layout import Layout
from txnframework.model.ledger import LedgerSummary
from txnframework.model.positions import Position

LEDGERS_MAX = 1_000
"""The most ledgers of one segment that one round examines."""
STEPS_MAX = 100
"""The most bounded steps of trimming that one round takes in one segment."""


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """
    The facts about a segment that determine which ledgers are trimmed.

    ``ledgers``: the first ledgers that are left. ``readable``: everything up to this position is decided.
    ``acknowledged``: every subscription has acknowledged everything up to this position; None: there is no
    subscription. ``replayed``: a restarted pipeline may read again after this position; None: there is no pipeline.
    ``compacted``: readers of compacted messages continue in the segment after this position; None: the segment was not
    compacted.
    """

    now_ms: int
    ledgers: tuple[LedgerSummary, ...]
    readable: Position
    acknowledged: Position | None = None
    replayed: Position | None = None
    compacted: Position | None = None


def keeps_everything(rule: RetentionSection) -> bool:
    """Return whether nothing is ever trimmed."""
    return rule.time_ms < 0 and rule.bytes < 0 and rule.backlog_time_ms < 0


def counts_time(rule: RetentionSection) -> bool:
    """Return whether ledgers are removed by age, so that an open ledger has to be closed at some point."""
    return rule.time_ms >= 0 or rule.backlog_time_ms >= 0


def first_to_keep(facts: SegmentFacts, rule: RetentionSection) -> int:
    """
    Return the first ledger that is kept; the ledgers before it are removed.

    A ledger is removed if every subscription has acknowledged all of it, no pipeline may replay it, and a limit
    applies. The limits: the ledger is older than ``time_ms``, or the later acknowledged ledgers hold at least
    ``bytes``. Only ``backlog_time_ms`` overrides cursors and replays, and no limit overrides undecided entries. The
    last ledger is kept: it is the open one, or ledgers that were not examined follow it.
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
    Return the position up to which everything in the remaining ledgers is acknowledged.

    It may be after the mark-delete position: positions alone do not show that the last entry of one ledger and the
    first entry of the next are neighbours.
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


class Trimmer:
    """
    Removes messages that are no longer needed, in any number of processes: no step relies on exclusive access.

    The facts may change before the ledgers are removed. A subscription that is created meanwhile begins at the first
    message that is left. A seek back to acknowledged messages finds only those that are left, like any later seek:
    trimmed messages were released when the cursor was read. The buffer itself checks again for undecided entries.
    """

    def __init__(
        self,
        store: IMetadataStore,
        visit: SegmentVisit,
        stores_outside_segment: Callable[[str], bool],
        environment: Environment,
    ) -> None:
        self._store = store
        self._visit = visit
        self._stores_outside_segment = stores_outside_segment
        self._environment = environment

    async def trim(self, layout: Layout, rule: RetentionSection) -> None:
        """
        Trim every segment of a topic; a segment whose change is under way is trimmed later.

        If everything is kept, only the data that buffers store outside their segments is trimmed.
        """
        keeps_all = keeps_everything(rule)
        if keeps_all and not layout.families:
            return
        for segment_id in layout.made():
            if not keeps_all:
                await self._trim(layout, segment_id, rule)
            elif self._stores_outside_segment(str(layout.name_of(segment_id))):
                await self._trim_beside(str(layout.name_of(segment_id)))

    async def _trim_beside(self, name: str) -> None:
        """
        Let a buffer trim the data that it stores outside the segment.

        The segment itself keeps everything.
        """
        async with self._visit(name) as opened:
            (first,) = await opened.ledger.ledgers(-1, 1)
            for _ in range(STEPS_MAX):
                if not (await opened.buffer.trim(first.ledger_id)).left:
                    return

    async def _trim(self, layout: Layout, segment_id: int, rule: RetentionSection) -> None:
        name = str(layout.name_of(segment_id))
        # Read the cursors first: the history holds a range before its cursor passes it. So a history that is read after
        # a cursor holds every batch that moved the cursor.
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
                swept = await opened.buffer.trim(below)  # also if no ledger is removed: abort records may be waiting
                (left,) = await opened.ledger.ledgers(-1, 1)
                if not swept.left and left.ledger_id in (below, ledgers[0].ledger_id):
                    return
                ledgers = (left,)

    async def _roll(self, ledger: IManagedLedger, age_ms: int) -> None:
        """Close the open ledger if its first entry is at least ``age_ms`` old; later appends go to the next ledger."""
        tail = await ledger.tail()
        before = await ledger.find_time(self._environment.now_ms() - age_ms + 1)
        if not tail.sealed and before >= Position(tail.open_ledger_id, 0):
            await ledger.roll()

    async def _replayed(self, layout: Layout, segment: str) -> Position | None:
        """Return the position of a segment after which a pipeline may read again; None: nowhere."""
        starts = []
        for subscription in layout.subscriptions:
            record = await self._store.get(paths.subscription_key(str(layout.topic), subscription))
            if record is not None:
                starts.append(replayed_from(records.decode(records.SubscriptionRecord, record), segment))
        return min((start for start in starts if start is not None), default=None)

    async def _compacted(self, segment: str) -> Position | None:
        """Return the position up to which a segment was compacted; None: it was not compacted."""
        record = await self._store.get(paths.compacted_key(segment))
        found = records.CompactedRecord() if record is None else records.decode(records.CompactedRecord, record)
        return Position.parse(found.upto) if found.ledger else None
