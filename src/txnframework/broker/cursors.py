"""Durable cursors: the acknowledged messages of a subscription on a segment, and the batches that acknowledged them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
from zope.interface import implementer

from txnframework.broker.coordination import expected_version, update_record
from txnframework.errors import SubscriptionNotFound, TxnFrameworkError
from txnframework.interfaces import ICursor, IManagedLedger, IMetadataStore
from txnframework.model import paths, records
from txnframework.model.acks import Ack, ProcessedRange
from txnframework.model.cursor import Cursor, advance, beginning_after, from_record, to_record, unite
from txnframework.model.indexes import subscription_indexes
from txnframework.model.layout import Layout
from txnframework.model.metadata import Key, Put, Record
from txnframework.model.names import parse_name, segment_id_of
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.records import HistoryDocument, SubscriptionRecord

LEDGERS_MAX = 100
"""The most ledgers that are read for one gap."""

HISTORY_BATCHES_MAX = 100
"""The most batches that the history of a subscription holds."""
REPLAYED_BATCHES = 2
"""The number of last batches whose messages are kept."""
FIRST_INCARNATION = 1
Update = Callable[[Cursor | None], Cursor | None]


class Gaps:
    """
    Moves the mark-delete position of a cursor across the gap between two ledgers, where no entry can be.

    Positions alone do not show whether an entry lies between the last entry of one ledger and the first entry of
    another. The ledgers do. Without them the mark-delete position of a subscription would never pass the first gap.
    """

    def __init__(self, ledger: IManagedLedger | None) -> None:
        self._ledger = ledger
        # The last gap in which an unacknowledged entry was found; closed ledgers do not change.
        self._open: tuple[Position, Position] | None = None

    async def closed(self, cursor: Cursor) -> Cursor:
        """
        Return the cursor with its mark-delete position moved as far as the ledgers allow; unchanged if they cannot be
        read.
        """
        while cursor.deleted and self._may_touch(cursor.mark_delete, cursor.deleted[0][0]):
            try:
                touches = await self._touches(cursor.mark_delete, cursor.deleted[0][0])
            except TxnFrameworkError:
                return cursor  # the longer form with ranges has the same meaning; a later write moves the mark
            if not touches:
                self._open = cursor.mark_delete, cursor.deleted[0][0]
                return cursor
            cursor = advance(cursor, cursor.deleted[0][1])
        return cursor

    def _may_touch(self, mark: Position, first: Position) -> bool:
        return first.entry_id == 0 and first.ledger_id > mark.ledger_id and (mark, first) != self._open

    async def _touches(self, mark: Position, first: Position) -> bool:
        """
        Return whether no ledger holds an entry between the mark-delete position and the first entry of a later ledger.
        """
        if self._ledger is None:
            return False
        for summary in await self._ledger.ledgers(mark.ledger_id - 1, LEDGERS_MAX):
            if summary.ledger_id >= first.ledger_id:
                return True
            if summary.entries and summary.last > mark:
                return False
        return False


def with_processed(record: SubscriptionRecord, segment: str, processed: ProcessedRange) -> SubscriptionRecord | None:
    """
    Return the record with ``processed`` of ``segment`` in its history, without the oldest batches; None: unchanged.
    """
    entry = HistoryDocument(
        segment=segment,
        query=processed.query,
        batch=processed.batch,
        start=str(processed.start),
        end=str(processed.end),
    )
    if entry in record.history:
        return None
    # A batch that was planned again replaces its earlier range on the same segment.
    others = [old for old in record.history if not (_same_batch(old, entry) and old.segment == segment)]
    history = [*others, entry]
    # Sorted by query in order of appearance, then by batch. So a batch that is settled again later does not count as
    # new.
    queries = list(dict.fromkeys(old.query for old in history))
    batches = sorted({(queries.index(old.query), old.batch) for old in history})[-HISTORY_BATCHES_MAX:]
    kept = [old for old in history if (queries.index(old.query), old.batch) in set(batches)]
    return None if kept == record.history else msgspec.structs.replace(record, history=kept)


def replayed_from(record: SubscriptionRecord, segment: str) -> Position | None:
    """
    Return the position of a segment after which a restarted pipeline may read again; None: nowhere.

    This is where the last batches begin: a batch may be acknowledged although the pipeline has not recorded it.
    """
    queries = list(dict.fromkeys(old.query for old in record.history))
    last = sorted({(queries.index(old.query), old.batch) for old in record.history})[-REPLAYED_BATCHES:]
    starts = [
        Position.parse(old.start)
        for old in record.history
        if old.segment == segment and (queries.index(old.query), old.batch) in last
    ]
    return min(starts, default=None)


def _same_batch(one: HistoryDocument, other: HistoryDocument) -> bool:
    return one.query == other.query and one.batch == other.batch


class OwnWrites:
    """
    Detects whether a record holds only writes of this process since this process last read it.

    Each write names the value that it replaces, and the compare-and-set enforces that. If each write replaced the one
    before it, no other process has written in between.
    """

    def __init__(self) -> None:
        self._last: bytes | None = None
        self._others_wrote = True

    def replacing(self, before: bytes | None, after: bytes) -> None:
        """Note that ``after`` is about to replace the stored value ``before``."""
        if before is None or before != self._last:
            self._others_wrote = True
        self._last = after

    def begin_read(self) -> None:
        """Note that the record is about to be read for changes by other processes."""
        self._others_wrote = False

    def are_all(self, stored: bytes | None) -> bool:
        """Return whether no other process has written since, if ``stored`` is the stored value."""
        return not self._others_wrote and stored is not None and stored == self._last


@implementer(ICursor)
class StoredCursor:
    """
    The cursor record, and the part of the subscription record that must be written before it.

    A stored cursor keeps no authoritative state in memory: each change reads the record, merges its own
    acknowledgments, and writes with compare-and-set. So any number of processes may have one. ``own_writes`` only
    avoids a read after a write of this process. With the segment's ``ledger``, the mark-delete position also moves from
    the end of one ledger into the next.
    """

    def __init__(
        self,
        store: IMetadataStore,
        topic: str,
        segment: str,
        subscription: str,
        ledger: IManagedLedger | None = None,
    ) -> None:
        self.topic = topic
        self.segment = segment
        self.subscription = subscription
        self._store = store
        self._key = paths.cursor_key(segment, subscription)
        self._gaps = Gaps(ledger)
        self.own_writes = OwnWrites()

    @property
    def key(self) -> Key:
        """The key of the cursor record, for a watch."""
        return self._key

    async def load(self) -> Cursor:
        """
        Return the current cursor.

        If the topic lists the subscription and its cursor does not exist yet, the cursor is created. It starts at the
        position in the list, or, on a segment that was made later, before the first entry.

        :raises SubscriptionNotFound: the subscription does not exist or was deleted.
        """
        cursor = await self.read()
        if cursor is None or cursor.tombstone:
            await self._begin()
            cursor = await self.read()
        if cursor is None or cursor.tombstone:
            raise SubscriptionNotFound(self.topic, self.subscription)
        return cursor

    async def read(self) -> Cursor | None:
        """
        Return the stored cursor, including a tombstone, or None.

        No cursor is created.
        """
        record = await self._store.get(self._key)
        return None if record is None else _decoded(record)

    async def seek(self, to: Position) -> Cursor:
        """
        Begin a new incarnation in which exactly the messages up to ``to`` are acknowledged.

        Acknowledgments of the old incarnation have no effect any more. ``to`` is an entry, or a message that is not the
        last one of its batch.

        :raises SubscriptionNotFound: the subscription does not exist or was deleted.
        """
        before = await self.load()
        sought = beginning_after(before.incarnation + 1, to)

        def move(cursor: Cursor | None) -> Cursor | None:
            nonlocal sought
            if cursor is None or cursor.tombstone:
                raise SubscriptionNotFound(self.topic, self.subscription)
            if cursor == sought:  # the outcome was unknown, and it was applied
                return None
            sought = beginning_after(cursor.incarnation + 1, to)
            return sought

        await self._update(move, own=False)
        return sought

    async def give_up(self) -> None:
        """
        Write a tombstone, unless the topic lists the subscription (again): a recreated subscription is unaffected.

        A cursor that begins later continues the versions and incarnations. The tombstone is always written, also over
        another tombstone. So a process that is about to create a cursor of the deleted life is refused.
        """

        async def replaced(record: Record | None) -> Put | None:
            if await self._starts_at() is not None:
                return None
            if record is None:
                return self._write(record, Cursor(FIRST_INCARNATION - 1, EARLIEST, tombstone=True))
            return self._write(record, replace(_decoded(record), deleted=(), partial={}, tombstone=True))

        await update_record(self._store, self._key, replaced)

    async def apply(self, incarnation: int, acks: tuple[Ack, ...], processed: ProcessedRange | None) -> bool:
        """
        Unite ``acks`` with the cursor; return False and change nothing if it has another incarnation or was deleted.

        A crash between the writes of history and cursor leaves a history that names a range ahead of the cursor. The
        acknowledgment is still recorded. The process that settles it again finds the history entry and moves the
        cursor.
        """
        if processed is not None:
            found = await self.read()
            if not _lives(found, incarnation):
                return False
            await self._remember(processed)
        applied = True

        def move(cursor: Cursor | None) -> Cursor | None:
            nonlocal applied
            applied = _lives(cursor, incarnation)
            if cursor is None or not applied:
                return None
            united = unite(cursor, acks)
            return None if united == cursor else united

        await self._update(move)
        return applied

    async def _begin(self) -> None:
        """
        Create the cursor of a subscription that the topic lists, unless it exists.

        The cursor is read before the list, and ``give_up`` always writes. So a list that was read before the
        subscription was deleted creates no cursor after the deletion.
        """

        async def begin(record: Record | None) -> Put | None:
            former = None if record is None else _decoded(record)
            if former is not None and not former.tombstone:
                return None
            at = await self._starts_at()
            if at is None:
                return None
            return self._write(record, Cursor(FIRST_INCARNATION if former is None else former.incarnation + 1, at))

        await update_record(self._store, self._key, begin)

    async def _update(self, update: Update, *, own: bool = True) -> None:
        """
        Change the cursor; ``own`` is False if a dispatch of this process must read the change, because it does not
        expect it.
        """

        async def decide(record: Record | None) -> Put | None:
            after = update(None if record is None else _decoded(record))
            if after is None:
                return None
            put = self._write(record, await self._gaps.closed(after))
            if own:
                self.own_writes.replacing(None if record is None else record.value, put.value)
            return put

        await update_record(self._store, self._key, decide)

    def _write(self, record: Record | None, cursor: Cursor) -> Put:
        return Put(self._key, records.encode(to_record(cursor)), expected_version(record))

    async def _remember(self, processed: ProcessedRange) -> None:
        """Add the range to the subscription's history."""
        key = paths.subscription_key(self.topic, self.subscription)

        async def decide(record: Record | None) -> Put | None:
            before = records.SubscriptionRecord() if record is None else _subscription(record)
            after = with_processed(before, self.segment, processed)
            if after is None:
                return None
            return Put(key, records.encode(after), expected_version(record), subscription_indexes(after))

        await update_record(self._store, key, decide)

    async def _starts_at(self) -> Position | None:
        """Return the position at which a new cursor begins; None: the topic does not list the subscription."""
        segment = parse_name(self.segment)
        record = await self._store.get(paths.topic_key(segment.topic))
        if record is None:
            return None
        topic = records.decode(records.TopicRecord, record)
        if topic.deleted or self.subscription not in topic.subscriptions:
            return None
        at = topic.starting.get(self.subscription, {}).get(segment_id_of(segment))
        return EARLIEST if at is None else Position.parse(at).entry


async def cursor_on(store: IMetadataStore, layout: Layout, segment_id: int, subscription: str) -> Cursor:
    """Return the cursor of a listed subscription on a segment; if it is not created yet, the cursor at its start."""
    name = str(layout.name_of(segment_id))
    cursor = await StoredCursor(store, str(layout.topic), name, subscription).read()
    if cursor is None or cursor.tombstone:
        incarnation = FIRST_INCARNATION if cursor is None else cursor.incarnation + 1
        return Cursor(incarnation, layout.starting.get(subscription, {}).get(segment_id, EARLIEST))
    return cursor


def _lives(cursor: Cursor | None, incarnation: int) -> bool:
    return cursor is not None and not cursor.tombstone and cursor.incarnation == incarnation


def _decoded(record: Record) -> Cursor:
    return from_record(records.decode(records.CursorRecord, record))


def _subscription(record: Record) -> records.SubscriptionRecord:
    return records.decode(records.SubscriptionRecord, record)
