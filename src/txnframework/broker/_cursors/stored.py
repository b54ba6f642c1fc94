"""The durable cursor of one subscription on one segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from zope.interface import implementer

from txnframework.broker._agreement.cas import change, version_of
from txnframework.broker._cursors.gaps import Gaps
from txnframework.broker._cursors.history import with_processed
from txnframework.broker._cursors.own_writes import OwnWrites
from txnframework.errors import SubscriptionNotFound
from txnframework.interfaces import ICursor, IManagedLedger, IMetadataStore
from txnframework.model import paths, records
from txnframework.model.acks import Ack, ProcessedRange
from txnframework.model.cursor import Cursor, beginning_after, from_record, to_record, unite
from txnframework.model.indexes import subscription_indexes
from txnframework.model.layout import Layout
from txnframework.model.metadata import Key, Put, Record
from txnframework.model.names import parse_name, segment_id_of
from txnframework.model.positions import EARLIEST, Position

FIRST_INCARNATION = 1

Update = Callable[[Cursor | None], Cursor | None]


@implementer(ICursor)
class StoredCursor:
    """
    The cursor record and the part of the subscription record that must be written before it.

    It keeps nothing in memory that counts: every change reads, unites and compares, so any number of processes may have
    one. ``own_writes`` only saves looks at what this process wrote itself. With the segment's ``ledger``, its mark also
    moves from the end of one ledger into the next.
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
        """Where the record stands, for a watch."""
        return self._key

    async def load(self) -> Cursor:
        """
        Return it as it is now.

        Where the topic lists the subscription and its cursor was not made yet, it is made: where the list says, or
        else, on a segment that came later, before the first entry.

        :raises SubscriptionNotFound: there is no such subscription, or it was given up.
        """
        cursor = await self.read()
        if cursor is None or cursor.tombstone:
            await self._begin()
            cursor = await self.read()
        if cursor is None or cursor.tombstone:
            raise SubscriptionNotFound(self.topic, self.subscription)
        return cursor

    async def read(self) -> Cursor | None:
        """Return what is recorded, tombstones included, None if nothing is; makes nothing."""
        record = await self._store.get(self._key)
        return None if record is None else _decoded(record)

    async def seek(self, to: Position) -> Cursor:
        """
        Begin a new incarnation with exactly what stands up to ``to`` done; acks of the old one have no effect any more.

        ``to`` is an entry, or a message that is not the last one of its batch.

        :raises SubscriptionNotFound: there is no such subscription, or it was given up.
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
        Leave a tombstone, unless the topic lists the subscription (again): its next life is none of our business.

        A cursor that begins later goes on with its versions and incarnations. The tombstone is written in any case,
        over another one too: whoever was about to make a cursor of the life that is over is refused then.
        """

        async def bury(record: Record | None) -> Put | None:
            if await self._starts_at() is not None:
                return None
            if record is None:
                return self._write(record, Cursor(FIRST_INCARNATION - 1, EARLIEST, tombstone=True))
            return self._write(record, replace(_decoded(record), deleted=(), partial={}, tombstone=True))

        await change(self._store, self._key, bury)

    async def apply(self, incarnation: int, acks: tuple[Ack, ...], processed: ProcessedRange | None) -> bool:
        """
        Unite ``acks`` with the cursor; return False, changing nothing, if it has another incarnation or is gone.

        A crash between history and cursor leaves a history that names a range ahead of the cursor. Whoever settles
        the acknowledgment again, which is still recorded, finds the entry there and moves the cursor.
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
        Make the cursor of a subscription that the topic lists, unless it is there.

        The cursor is read before the list, and ``give_up`` always writes: a list that was read before the
        subscription was given up makes nothing after it.
        """

        async def begin(record: Record | None) -> Put | None:
            buried = None if record is None else _decoded(record)
            if buried is not None and not buried.tombstone:
                return None
            at = await self._starts_at()
            if at is None:
                return None
            return self._write(record, Cursor(FIRST_INCARNATION if buried is None else buried.incarnation + 1, at))

        await change(self._store, self._key, begin)

    async def _update(self, update: Update, *, own: bool = True) -> None:
        """Change it; not as ``own`` where a dispatch of this process has to look at what it does not expect."""

        async def decide(record: Record | None) -> Put | None:
            after = update(None if record is None else _decoded(record))
            if after is None:
                return None
            put = self._write(record, await self._gaps.closed(after))
            if own:
                self.own_writes.replacing(None if record is None else record.value, put.value)
            return put

        await change(self._store, self._key, decide)

    def _write(self, record: Record | None, cursor: Cursor) -> Put:
        return Put(self._key, records.encode(to_record(cursor)), version_of(record))

    async def _remember(self, processed: ProcessedRange) -> None:
        """Write the range into the subscription's history."""
        key = paths.subscription_key(self.topic, self.subscription)

        async def decide(record: Record | None) -> Put | None:
            before = records.SubscriptionRecord() if record is None else _subscription(record)
            after = with_processed(before, self.segment, processed)
            if after is None:
                return None
            return Put(key, records.encode(after), version_of(record), subscription_indexes(after))

        await change(self._store, key, decide)

    async def _starts_at(self) -> Position | None:
        """Return where a cursor begins that was not made yet; None: the topic does not list the subscription."""
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
    """Return how far a subscription that the layout lists is on a segment; one that is being made: where it begins."""
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
