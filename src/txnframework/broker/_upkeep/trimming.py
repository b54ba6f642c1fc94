"""Trimming the segments of a topic as far as its subscriptions and the retention rule allow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from txnframework.broker._cursors.history import replayed_from
from txnframework.broker._cursors.stored import cursor_on
from txnframework.broker._serving.segments import OpenSegment
from txnframework.broker._upkeep.retention import Facts, counts_time, done_through, first_to_keep, keeps_everything
from txnframework.config import RetentionSection
from txnframework.environment import Environment
from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model import paths, records
from txnframework.model.layout import Layout
from txnframework.model.positions import Position

Visit = Callable[[str], AbstractAsyncContextManager[OpenSegment]]

LEDGERS_MAX = 1_000
"""How many ledgers of one segment one round looks at."""
STEPS_MAX = 100
"""How many bounded steps of trimming one round takes in one segment."""


class Trimming:
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
            facts = Facts(self._environment.now_ms(), ledgers, readable, acknowledged, replayed, compacted)
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
