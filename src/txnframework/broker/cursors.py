"""Durable cursors: the acknowledged messages of a subscription on a segment, and the batches that acknowledged them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from zope.interface import implementer

from txnframework.broker.coordination import expected_version, update_record
from txnframework.broker.histories import Histories
from txnframework.broker.topics.layouts import StoredLayouts
from txnframework.errors import SubscriptionNotFound, TxnFrameworkError
from txnframework.interfaces import ICursor, IManagedLedger, IMetadataStore
from txnframework.model import paths, records
from txnframework.model.acks import Ack, ProcessedRange
from txnframework.model.cursor import BranchAcks, Cursor, CursorMove, advance, from_record, moved, to_record, unite
from txnframework.model.entry_ranges import EntryRanges
from txnframework.model.ids import METADATA_FAMILY
from txnframework.model.layout import Layout
from txnframework.model.metadata import Key, Put, Record
from txnframework.model.names import parse_name, segment_id_of
from txnframework.model.partial_entries import PartialEntries
from txnframework.model.positions import EARLIEST, Position

FIRST_INCARNATION = 1
Update = Callable[[Cursor | None], Cursor | None]


class OwnWrites:
    """
    Detects whether a record holds only writes of this process since this process last read it.

    Each write names the value that it replaces, and the compare-and-set enforces that. If each write replaced the one
    before it, no other process has written in between.
    """

    def __init__(self) -> None:
        self._last: bytes | None = None
        self._before: bytes | None = None
        self._others_wrote = True

    def replacing(self, before: bytes | None, after: bytes) -> None:
        """Note that ``after`` is about to replace the stored value ``before``."""
        if before is None or before != self._last:
            self._others_wrote = True
        self._before, self._last = before, after

    def begin_read(self) -> None:
        """Note that the record is about to be read for changes by other processes."""
        self._others_wrote = False

    def are_all(self, stored: bytes | None) -> bool:
        """
        Return whether no other process has written since, if ``stored`` is the stored value.

        A value never comes back, so the one before the last write is stored only while this write is under way.
        """
        return not self._others_wrote and stored is not None and stored in (self._last, self._before)


LEDGERS_MAX = 100
"""The most ledgers that are read for one gap."""


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
        while cursor.deleted and self._may_touch(cursor.mark_delete, cursor.deleted.first[0]):
            try:
                touches = await self._touches(cursor.mark_delete, cursor.deleted.first[0])
            except TxnFrameworkError:
                return cursor  # the longer form with ranges has the same meaning; a later write moves the mark
            if not touches:
                self._open = cursor.mark_delete, cursor.deleted.first[0]
                return cursor
            cursor = advance(cursor, cursor.deleted.first[1])
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


@implementer(ICursor)
class StoredCursor:
    """
    The cursor record, and the part of the subscription record that must be written before it.

    A stored cursor keeps no authoritative state in memory: each change reads the record, merges its own
    acknowledgments, and writes with compare-and-set. So any number of processes may have one. ``own_writes`` only
    avoids a read after a write of this process. ``plan`` starts from the record as this process last read it, and the
    compare-and-set refuses an older one. With the segment's ``ledger``, the mark-delete position also moves from the
    end of one ledger into the next. Cursors with the same ``histories`` write the history of their subscription
    together.
    """

    def __init__(
        self,
        store: IMetadataStore,
        topic: str,
        segment: str,
        subscription: str,
        ledger: IManagedLedger | None = None,
        histories: Histories | None = None,
    ) -> None:
        self.topic = topic
        self.segment = segment
        self.subscription = subscription
        self._store = store
        self._key = paths.cursor_key(segment, subscription)
        self._gaps = Gaps(ledger)
        self._histories = Histories(store) if histories is None else histories
        self.own_writes = OwnWrites()
        self.on_move: Callable[[CursorMove], None] | None = None
        """Called after the cursor has moved together with the commit of a transaction."""
        self._known: Record | None = None
        # The value that was decoded or encoded last, and its cursor: most changes begin with what the one before wrote.
        self._decoded_last: tuple[bytes, Cursor] | None = None
        self._is_planning = False

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
        before = self._known
        record = await self._store.get(self._key)
        if self._known is before:  # otherwise this record may be older than what was written meanwhile
            self._known = record
        return None if record is None else self._decode(record)

    async def plan(self, incarnation: int, parts: tuple[BranchAcks, ...]) -> CursorMove | None:
        """Return the compare-and-set that unites acknowledgments with the cursor as this process knows it, or None."""
        known = self._known
        if known is None or self._is_planning:
            return None
        before = self._decode(known)
        after = unite(before, (ack for _, acks in parts for ack in acks)) if _lives(before, incarnation) else before
        if after == before:
            return None
        # One plan at a time: a second one would expect the same version, and would be refused.
        self._is_planning = True
        try:
            put = self._write(known, await self._gaps.closed(after))
        except BaseException:
            self._is_planning = False
            raise
        self.own_writes.replacing(known.value, put.value)
        return CursorMove(put, incarnation, parts, before)

    async def finish(self, move: CursorMove, written: Record | None) -> None:
        """Note whether a planned move was written; without it the cursor must be read before it is planned again."""
        self._is_planning = False
        self._known = written
        if written is not None and self.on_move is not None:
            self.on_move(move)

    async def seek(self, to: Position) -> Cursor:
        """
        Begin a new incarnation in which exactly the messages up to ``to`` are acknowledged.

        Acknowledgments of the old incarnation have no effect any more. ``to`` is an entry, or a message that is not the
        last one of its batch.

        :raises SubscriptionNotFound: the subscription does not exist or was deleted.
        """
        before = await self.load()
        sought = moved(before, to)

        def move(cursor: Cursor | None) -> Cursor | None:
            nonlocal sought
            if cursor is None or cursor.tombstone:
                raise SubscriptionNotFound(self.topic, self.subscription)
            if cursor == sought:  # the outcome was unknown, and it was applied
                return None
            sought = moved(cursor, to)
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
            if await self._listing() is not None:
                return None
            if record is None:
                return self._write(record, Cursor(FIRST_INCARNATION - 1, EARLIEST, tombstone=True))
            return self._write(
                record, replace(self._decode(record), deleted=EntryRanges(), partial=PartialEntries(), tombstone=True)
            )

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
            await self._histories.add(self.topic, self.subscription, self.segment, processed)
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
            former = None if record is None else self._decode(record)
            if former is not None and not former.tombstone:
                return None
            layout = await self._listing()
            if layout is None:
                return None
            return self._write(
                record, begun_in(layout, segment_id_of(parse_name(self.segment)), self.subscription, former)
            )

        await update_record(self._store, self._key, begin)

    async def _update(self, update: Update, *, own: bool = True) -> None:
        """
        Change the cursor; ``own`` is False if a dispatch of this process must read the change, because it does not
        expect it.
        """

        async def decide(record: Record | None) -> Put | None:
            after = update(None if record is None else self._decode(record))
            if after is None:
                return None
            put = self._write(record, await self._gaps.closed(after))
            if own:
                self.own_writes.replacing(None if record is None else record.value, put.value)
            return put

        written = await update_record(self._store, self._key, decide)
        if written is not None:
            self._known = written  # a plan that is under way is refused, and is read again after it

    def _decode(self, record: Record) -> Cursor:
        """Return the cursor of a record, which need not be decoded if it was the last one."""
        if self._decoded_last is None or self._decoded_last[0] != record.value:
            self._decoded_last = record.value, from_record(records.decode(records.CursorRecord, record))
        return self._decoded_last[1]

    def _write(self, record: Record | None, cursor: Cursor) -> Put:
        value = records.encode(to_record(cursor))
        self._decoded_last = value, cursor
        return Put(self._key, value, expected_version(record))

    async def _listing(self) -> Layout | None:
        """Return the layout that lists the subscription, of the topic to which the segment belongs by now, or None."""
        layout = await StoredLayouts(self._store).owner(parse_name(self.segment).topic)
        return None if layout is None or layout.deleted or self.subscription not in layout.subscriptions else layout


def begun_in(layout: Layout, segment_id: int, subscription: str, former: Cursor | None) -> Cursor:
    """
    Return the first cursor of a listed subscription on a segment; ``former``: the tombstone of an earlier life of it.

    On a segment from before a migration it is limited to the topic's family: a process that does not know of the
    migration may have a pending-ack store that was not sealed, because the subscription was not listed then.
    """
    at = layout.starting.get(subscription, {}).get(segment_id, EARLIEST).entry
    begun = Cursor(FIRST_INCARNATION if former is None else former.incarnation + 1, at)
    return replace(begun, family=METADATA_FAMILY) if layout.is_adopted(segment_id) else begun


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
