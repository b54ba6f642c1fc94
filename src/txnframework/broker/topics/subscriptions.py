"""Creation and deletion of subscriptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

from txnframework.broker.coordination import ATTEMPTS_MAX, expected_version, update_record
from txnframework.broker.cursors import StoredCursor
from txnframework.broker.topics.layouts import StoredLayouts, too_many_conflicts
from txnframework.errors import OutcomeUnknown, SubscriptionNotFound, Unavailable, VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model import paths, records
from txnframework.model.indexes import subscription_indexes
from txnframework.model.layout import Layout, Segment, SegmentState
from txnframework.model.layout_changes import begun, with_subscription, without_subscription
from txnframework.model.metadata import Expect, Put, Record
from txnframework.model.names import TopicName, check_new_name
from txnframework.model.positions import EARLIEST, Position
from txnframework.runtime.concurrency import for_each

if TYPE_CHECKING:
    from txnframework.broker.segments import OpenSegment


TOGETHER_MAX = 64
"""The most segments whose records are written or read at the same time."""

Start = Literal["earliest", "latest"]


class SubscriptionChanges:
    """
    Creates and deletes subscriptions, each by one compare-and-set of the layout, which lists the existing ones.

    A life begins when the name is listed, together with its start on each segment. The first process that needs its
    cursors and its record creates them afterwards. A life ends when the name is unlisted, and its cursors and its
    record become tombstones afterwards. A process that creates or deletes one reads it, then reads the list, then
    writes it only if it has not changed. Records of an earlier life are written again before the name is listed. So a
    process that was paused can affect only the life that it read.
    """

    def __init__(
        self,
        store: IMetadataStore,
        layouts: StoredLayouts,
        segment: Callable[[str], Awaitable[OpenSegment]],
        finish_migration: Callable[[TopicName], Awaitable[None]],
    ) -> None:
        self._finish_migration = finish_migration
        self._store = store
        self._layouts = layouts
        self._segment = segment

    async def subscribe(self, topic: TopicName, name: str, start: Start) -> None:
        """Create a subscription, or complete one that another process began to create; an existing one is unchanged."""
        for _ in range(ATTEMPTS_MAX):
            layout, version = await self._layouts.load(topic)
            if layout.is_migrating:
                await self._finish_migration(layout.topic)
                continue
            if name not in layout.subscriptions:
                check_new_name(name, "subscription name")
                await self.tombstone(layout, name)
                await self._layouts.put_if(with_subscription(layout, name, await self._starts(layout, start)), version)
            elif name not in layout.starting or await self._finish(layout, version, name):
                return
        raise too_many_conflicts(topic, ATTEMPTS_MAX)

    async def unlist(self, topic: TopicName, name: str) -> None:
        """
        Unlist a subscription, which ends its life; ``tombstone`` handles its records.

        :raises SubscriptionNotFound: the subscription does not exist, and no record of an earlier life remains.
        :raises OutcomeUnknown: the subscription may be unlisted; a repeated call may delete a subscription
            that was created again since.
        """
        layout, version = await self._layouts.load(topic)
        record = await self._store.get(paths.subscription_key(str(layout.topic), name))
        if name not in layout.subscriptions and (record is None or _decoded(record).deleted):
            raise SubscriptionNotFound(str(topic), name)
        for _ in range(ATTEMPTS_MAX):
            if layout.is_migrating:
                await self._finish_migration(layout.topic)
                layout, version = await self._layouts.load(topic)
                continue
            if name not in layout.subscriptions:
                return
            before, unknown = version, None
            try:
                await self._layouts.put(without_subscription(layout, name), version)
            except VersionMismatch:
                pass
            except OutcomeUnknown as error:
                unknown = error
            else:
                return  # if the name is listed again from now on, that is the next life
            try:
                layout, version = await self._layouts.load(topic)
            except Unavailable as error:
                if unknown is None:
                    raise
                raise OutcomeUnknown(f"{unknown}; then {error}") from unknown
            if unknown is not None and name in layout.subscriptions and version != before:
                raise OutcomeUnknown(
                    f"subscription {name} of {topic} may have been deleted and created again"
                ) from unknown
        raise too_many_conflicts(topic, ATTEMPTS_MAX)

    async def make_cursors(self, layout: Layout, segment_id: int) -> None:
        """Create the cursors of the listed subscriptions on a segment; they begin at its first entry."""
        for name in layout.subscriptions:
            await self._make_cursor(layout, segment_id, name)

    async def tombstone(self, layout: Layout, name: str) -> None:
        """Write the tombstones of a subscription that is not listed; its record is last and marks completion."""

        async def end(segment_id: int) -> None:
            await StoredCursor(self._store, str(layout.topic), str(layout.name_of(segment_id)), name).give_up()
            # After the tombstone: its incarnation makes counts void that a dispatch of this life writes from now on.
            counts = paths.delivery_counts_key(str(layout.name_of(segment_id)), name)
            await self._store.delete(counts, Expect.ANY)

        await for_each(tuple(layout.segments), end, TOGETHER_MAX)
        key = paths.subscription_key(str(layout.topic), name)

        async def replaced(record: Record | None) -> Put | None:
            if await self._listed(layout.topic, name):
                return None
            after = records.SubscriptionRecord() if record is None else _decoded(record)
            after.deleted, after.registrations, after.history = True, [], []
            return Put(key, records.encode(after), expected_version(record), subscription_indexes(after))

        await update_record(self._store, key, replaced)

    # -- single steps ---------------------------------------------------------------------------------

    async def _starts(self, layout: Layout, start: Start) -> dict[int, Position]:
        """Return the positions after which a new subscription begins."""
        if start == "earliest":
            return {}
        found: dict[int, Position] = {}

        async def find(segment: Segment) -> None:
            found[segment.id] = await self._end_of(layout, segment)

        await for_each(layout.in_order(), find, TOGETHER_MAX)
        return dict(sorted(found.items()))

    async def _end_of(self, layout: Layout, segment: Segment) -> Position:
        """Return the position up to which a segment may be read now."""
        if segment not in layout.active() and segment.state is not SegmentState.REPLACED:
            return EARLIEST  # a planned child is empty, and may have no ledger
        opened = await self._segment(str(layout.name_of(segment.id)))
        return await opened.buffer.max_read_position()

    async def _finish(self, layout: Layout, version: int, name: str) -> bool:
        """Create the missing records of a listed subscription; return False if the layout must be read again."""
        missing: list[int] = []

        async def make(segment_id: int) -> None:
            if not missing and not await self._make_cursor(layout, segment_id, name):
                missing.append(segment_id)

        await for_each(tuple(layout.segments), make, TOGETHER_MAX)
        if missing:
            return False
        await self._make_record(layout.topic, name)
        return await self._layouts.put_if(begun(layout, name), version)

    async def _make_cursor(self, layout: Layout, segment_id: int, name: str) -> bool:
        """Create the cursor unless it exists; return False if the subscription was deleted in the meantime."""
        try:
            await StoredCursor(self._store, str(layout.topic), str(layout.name_of(segment_id)), name).load()
        except SubscriptionNotFound:
            return False
        return True

    async def _make_record(self, topic: TopicName, name: str) -> None:
        key = paths.subscription_key(str(topic), name)

        async def make(record: Record | None) -> Put | None:
            after = records.SubscriptionRecord(deleted=True) if record is None else _decoded(record)
            if not after.deleted or not await self._listed(topic, name):
                return None
            after.deleted = False
            return Put(key, records.encode(after), expected_version(record), subscription_indexes(after))

        await update_record(self._store, key, make)

    async def _listed(self, topic: TopicName, name: str) -> bool:
        found = await self._layouts.find(topic)
        return found is not None and not found[0].deleted and name in found[0].subscriptions


def _decoded(record: Record) -> records.SubscriptionRecord:
    return records.decode(records.SubscriptionRecord, record)
