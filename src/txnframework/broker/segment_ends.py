"""
Checks that no record of the metadata store names a position beyond the end of its segment.

If one does, the ledger store lost its end: it was restored from a backup, or failed over to a standby that lagged
behind. New messages would get positions that are acknowledged already, and would never be delivered. Records are read
before the end, which only grows. So a healthy pair of stores, in use as it may be, is never refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from txnframework.broker.coordination import scan_records
from txnframework.broker.cursors import StoredCursor
from txnframework.errors import LedgerNotFound, lost_end, lost_segment
from txnframework.interfaces import ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.model import index_keys, layout, paths, records
from txnframework.model.cursor import Cursor, from_record, reached_by
from txnframework.model.indexes import (
    ACKS_BY_SEGMENT_SUBSCRIPTION,
    WRITES_BY_SEGMENT,
    abort_bound,
    aborts_beyond,
)
from txnframework.model.layout import Layout
from txnframework.model.names import TOPIC_DOMAINS
from txnframework.model.positions import EARLIEST, Position
from txnframework.runtime.concurrency import for_each

SEGMENTS_TOGETHER_MAX = 16
"""The most segments that are checked at the same time."""


@dataclass(frozen=True, slots=True, order=True)
class NamedPosition:
    """A position of a segment that a record of the metadata store names; ``by``: the record, and what it says."""

    position: Position
    by: str


async def verify_cursor(cursor: StoredCursor, ledger: IManagedLedger) -> None:
    """
    Refuse a cursor that is beyond the end of its segment.

    :raises StoreMismatch: the ledger store is older.
    """
    found = await cursor.read()
    if found is not None:
        await _require_end(ledger, [_named_by(cursor.subscription, found)])


async def verify_segment(store: IMetadataStore, ledger: IManagedLedger, layout: Layout | None) -> None:
    """
    Refuse a segment that ends before an acknowledgment of it, or before a ledger that was trimmed.

    ``layout``: that of its topic, read before; it says where the cursors begin that are not created yet. Announced
    writes and abort records are left to the buffer, which checks them when it recovers.

    :raises StoreMismatch: the ledger store is older.
    """
    await _require_end(ledger, await _passed(store, ledger.name, layout))


async def positions_beyond_end(
    store: IMetadataStore, ledger: IManagedLedger, layout: Layout | None
) -> tuple[list[NamedPosition], Position]:
    """Return the positions for which ``verify_segment`` refuses a segment, and its end, which was read after them."""
    named = await _passed(store, ledger.name, layout)
    end = (await ledger.tail()).end
    return sorted({one for one in named if one.position > end}), end


async def verify_all_segments(store: IMetadataStore, ledgers: ILedgerStore) -> None:
    """
    Refuse ledgers of which one is missing, or ends before any position that a record names.

    It takes some calls for each segment of every topic.

    :raises StoreMismatch: the ledger store is older.
    """
    for domain in TOPIC_DOMAINS:
        async for record in scan_records(store, paths.topics_range(domain=domain)):
            topic = paths.topic_of(record.key.path)
            found = layout.from_record(topic, records.decode(records.TopicRecord, record))
            if found.deleted or found.migration is not None:
                continue  # a topic that has migrated has a record under its new name

            async def verify(segment_id: int, found: Layout = found) -> None:
                await _verify_whole(store, ledgers, found, segment_id)

            await for_each(found.made(), verify, SEGMENTS_TOGETHER_MAX)


async def _verify_whole(store: IMetadataStore, ledgers: ILedgerStore, found: Layout, segment_id: int) -> None:
    name = str(found.name_of(segment_id))
    try:
        ledger = await ledgers.open(name)
        try:
            named = await _acknowledged_or_trimmed(store, name) + await _announced(store, ledger)
            await _require_end(ledger, [*named, *_starts(found, name)])
        finally:
            await ledger.close()
    except LedgerNotFound as error:
        # Its topic may have been deleted since its record was read. That is decided before any ledger is deleted.
        record = await store.get(paths.topic_key(found.topic))
        now = None if record is None else layout.from_record(found.topic, records.decode(records.TopicRecord, record))
        if now is not None and is_there(now, found, segment_id):
            raise lost_segment(name) from error


def is_there(now: Layout, before: Layout, segment_id: int) -> bool:
    """Return whether a segment had a ledger from ``before`` until ``now``, by two layouts of its topic."""
    layouts = (before, now)
    return (now.topic, now.life) == (before.topic, before.life) and not any(
        one.deleted or one.migration is not None or segment_id not in one.made() for one in layouts
    )


async def _require_end(ledger: IManagedLedger, named: Iterable[NamedPosition]) -> None:
    """Raise StoreMismatch if the furthest of some positions, which were read before, is beyond the ledger's end."""
    furthest = max(named, default=None)
    if furthest is None:
        return
    end = (await ledger.tail()).end
    if furthest.position > end:
        raise lost_end(f"{furthest.by} {furthest.position}", ledger.name, end)


# -- what the records name ----------------------------------------------------------------------------


async def _passed(store: IMetadataStore, segment: str, layout: Layout | None) -> list[NamedPosition]:
    named = await _acknowledged_or_trimmed(store, segment)
    return [*named, *([] if layout is None else _starts(layout, segment))]


async def _acknowledged_or_trimmed(store: IMetadataStore, segment: str) -> list[NamedPosition]:
    (cursors, acks, trimmed) = await asyncio.gather(
        _cursors(store, segment), _acks(store, segment), store.get(paths.trimmed_key(segment))
    )
    named = [_named_by(subscription, cursor) for subscription, cursor in cursors.items()]
    for subscription, incarnation, position in acks:
        # Those of another incarnation have no effect, also after a restore.
        if subscription in cursors and cursors[subscription].incarnation == incarnation:
            named.append(_acknowledged(subscription, position))
    if trimmed is not None:
        document = records.decode(records.TrimmedRecord, trimmed)
        first_left = Position(max(document.ledger, document.collected), -1)
        named.append(NamedPosition(first_left, "retention has trimmed the ledgers before"))
    return named


async def _announced(store: IMetadataStore, ledger: IManagedLedger) -> list[NamedPosition]:
    """Return the positions that announced writes, abort records and the compaction of a segment name."""
    segment = ledger.name
    before = (await ledger.tail()).end
    named = []
    async for record in scan_records(store, index_keys.prefix_range(WRITES_BY_SEGMENT, segment)):
        operation = records.decode_operation(record)
        if isinstance(operation, records.WriteOperation) and operation.segment == segment:
            after = max(Position.parse(operation.after), Position(operation.ledger, -1))
            named.append(NamedPosition(after, "a transaction announced a write after"))
    # Only an abort record beyond this end can be beyond the end that is read afterwards.
    async for record in scan_records(store, aborts_beyond(segment, before)):
        _, ledger_id, _, _ = paths.abort_record_of(record.key.path)
        bound = abort_bound(ledger_id, records.decode(records.AbortRecord, record))
        named.append(NamedPosition(bound, "a transaction was aborted that wrote after"))
    compacted = await store.get(paths.compacted_key(segment))
    if compacted is not None:
        upto = Position.parse(records.decode(records.CompactedRecord, compacted).upto)
        named.append(NamedPosition(upto, "messages are compacted up to"))
    return named


async def _cursors(store: IMetadataStore, segment: str) -> dict[str, Cursor]:
    return {
        paths.cursor_of(record.key.path)[1]: from_record(records.decode(records.CursorRecord, record))
        async for record in scan_records(store, paths.cursors_range(segment))
    }


async def _acks(store: IMetadataStore, segment: str) -> list[tuple[str, int, Position]]:
    """Return subscription, incarnation and furthest entry of the acknowledgments that are not in the cursors yet."""
    found = []
    async for record in scan_records(store, index_keys.prefix_range(ACKS_BY_SEGMENT_SUBSCRIPTION, segment)):
        operation = records.decode_operation(record)
        if isinstance(operation, records.AckOperation) and operation.segment == segment:
            furthest = max((Position.parse(ack.position).entry for ack in operation.acks), default=EARLIEST)
            found.append((operation.subscription, operation.incarnation, furthest))
    return found


def _named_by(subscription: str, cursor: Cursor) -> NamedPosition:
    return _acknowledged(subscription, reached_by(cursor).entry)


def _acknowledged(subscription: str, position: Position) -> NamedPosition:
    return NamedPosition(position, f"subscription {subscription} has acknowledged")


def _starts(layout: Layout, name: str) -> list[NamedPosition]:
    """Return where the subscriptions begin whose cursors are not created yet."""
    return [
        NamedPosition(starts[segment_id].entry, f"subscription {subscription} begins after")
        for subscription, starts in layout.starting.items()
        for segment_id in starts
        if segment_id in layout.segments and str(layout.name_of(segment_id)) == name
    ]
