"""Deletion of topics with all their records and ledgers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from txnframework.broker.coordination import ATTEMPTS_MAX
from txnframework.broker.topics.layouts import StoredLayouts, may_be_completed, too_many_conflicts
from txnframework.errors import LedgerNotFound, TopicInUse, TopicNotFound, TransactionNotFound, Unavailable
from txnframework.interfaces import ILedgerStore, IMetadataStore, ITransactionCoordinator
from txnframework.model import paths
from txnframework.model.ids import TxnID
from txnframework.model.layout import Layout
from txnframework.model.layout_changes import deleted, ended_at, removed
from txnframework.model.metadata import Expect, KeyRange
from txnframework.model.migration_changes import done, ended
from txnframework.model.names import TopicName, parse_name, segment_id_of
from txnframework.model.positions import Limit
from txnframework.model.transactions import OpenQuery

if TYPE_CHECKING:
    from txnframework.broker.topics.subscriptions import SubscriptionChanges


PAGE = Limit(100)
SCAN_ITEMS_MAX = 500
NO_LEDGER = -1
"""Lower than every ledger id."""


class TopicDeletion:
    """
    Deletes topics.

    The decision is one compare-and-set of the layout. Any process may do the steps that follow, and repeat them after
    any failure.

    The layout record stays, marked as deleted, and names the rest until all is removed. Then it keeps the
    next segment id, so that a later topic of this name has other segments, ledgers and cursors. A process that still
    holds an object of the former topic cannot affect the later one. Records of its subscriptions stay, emptied, for the
    same reason as after unsubscribing: their versions must not start over.

    A persistent topic's segment has the topic's own name in every life. So the removal by name is bounded by the last
    ledger, which the mark names before anything is removed. A process that is paused during the removal, and continues
    after the topic was made again, finds only higher ledgers there.
    """

    def __init__(
        self,
        store: IMetadataStore,
        ledgers: ILedgerStore,
        layouts: StoredLayouts,
        subscriptions: SubscriptionChanges,
        coordinator: Callable[[str], Awaitable[ITransactionCoordinator | None]],
        release: Callable[[str, int | None], Awaitable[None]],
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._layouts = layouts
        self._subscriptions = subscriptions
        self._coordinator = coordinator
        self._release = release

    async def delete(self, topic: TopicName, *, force: bool, life: int | None = None) -> None:
        """
        Delete a topic; a call that is repeated after a failure completes the deletion.

        Use of the topic that begins between the check and the decision ends with the topic, as with ``force``.
        ``life``: delete only this life of the topic; if there is a later one, this one was deleted, and nothing is
        done.

        :raises TopicInUse: ``force`` is not set, and the topic has subscriptions or open transactions took part in it.
        :raises TopicNotFound: the topic does not exist, and nothing is left of a deleted one.
        :raises OutcomeUnknown: the topic is deleted, or may be, and a part of it may be left.
        """
        decided = False
        try:
            for _ in range(ATTEMPTS_MAX):
                found = await self._layouts.find(topic)
                moved_to = None if found is None else found[0].moved_to
                if moved_to is not None:
                    topic, life = moved_to, None
                    continue
                if found is not None and life not in (None, found[0].life):
                    return
                if found is None or (found[0].deleted and not found[0].segments and not decided):
                    raise TopicNotFound(str(topic), deleted=found is not None)
                layout, version = found
                life = layout.life
                if layout.deleted:
                    decided = True
                    await self.finish(topic)
                    return
                _require_no_migration(layout)
                await self._finish_migration(layout)
                if not force:
                    await self.require_unused(layout)
                await self._layouts.put_if(deleted(layout), version)
                decided = True  # perhaps: if the reply was lost, the next read shows the outcome
        except Unavailable as error:
            if not decided:
                raise
            raise may_be_completed(f"topic {topic} is deleted, or may be", error) from error
        raise too_many_conflicts(topic, ATTEMPTS_MAX)

    async def require_unused(self, layout: Layout) -> None:
        """Raise TopicInUse if the topic has subscriptions, or if open transactions took part in it."""
        topic = str(layout.topic)
        if layout.subscriptions:
            raise TopicInUse(topic, f"it has the subscriptions {', '.join(layout.subscriptions)}")
        names = {str(layout.name_of(segment_id)) for segment_id in layout.segments}
        coordinator = await self._coordinator(topic)
        if coordinator is None:
            return
        page = await coordinator.list_open(OpenQuery(limit=PAGE))
        while page:
            for transaction in page:
                if names & await _segments_of(coordinator, transaction.txn_id):
                    raise TopicInUse(topic, f"transaction {transaction.txn_id}, which is open, took part in it")
            if len(page) < PAGE.items:
                return
            page = await coordinator.list_open(OpenQuery(after=page[-1].txn_id, limit=PAGE))

    async def finish(self, topic: TopicName) -> tuple[Layout, int] | None:
        """
        Remove the rest of a deleted topic; do nothing if nothing is left or the topic exists.

        Return the layout and its version, as last read: of the topic that exists, or of the deleted one of which
        nothing is left; None: there was never a topic of this name.
        """
        for _ in range(ATTEMPTS_MAX):
            found = await self._layouts.find(topic)
            if found is None or not found[0].deleted or not found[0].segments:
                return found
            layout, version = found
            if layout.name_returns and layout.last_ledger is None:
                last = await self._last_ledger(layout, version)
                if last is not None:
                    await self._layouts.put_if(ended_at(layout, last), version)
                continue
            await self._remove(layout)
            await self._release_former(layout)
            await self._layouts.put_if(removed(layout), version)
        raise too_many_conflicts(topic, ATTEMPTS_MAX)

    async def _finish_migration(self, layout: Layout) -> None:
        """
        Refer to a topic in the record of the topic that it migrated from, unless that is done.

        Otherwise the migration would be carried out again after the deletion, without the segment.
        """
        for _ in range(ATTEMPTS_MAX):
            found = None if layout.origin is None else await self._layouts.find(layout.origin.topic)
            if found is None or not found[0].is_migrating or not layout.continues(found[0]):
                return
            await self._layouts.put_if(done(found[0]), found[1])
        raise too_many_conflicts(layout.topic, ATTEMPTS_MAX)

    async def _release_former(self, layout: Layout) -> None:
        """Mark the topic that had become this one, if there is one, as deleted, so that its name can be used again."""
        origin = layout.origin
        for _ in range(ATTEMPTS_MAX):
            found = None if origin is None else await self._layouts.find(origin.topic)
            if found is None or found[0].moved_to is None or not layout.continues(found[0]):
                return
            await self._layouts.put_if(ended(found[0], layout), found[1])
        raise too_many_conflicts(layout.topic, ATTEMPTS_MAX)

    async def life(self, topic: TopicName) -> int | None:
        """Return how many topics have had this name, including the current one; None: there was never one."""
        found = await self._layouts.find(topic)
        return None if found is None else found[0].life

    async def is_deleted(self, segment: str, life: int | None = None) -> bool:
        """
        Return whether a segment was deleted and cannot return; False also if its topic was never known.

        ``life``: the life of the topic that the segment belongs to; True also if the topic has another life now, and
        has not migrated since that one.
        """
        name = parse_name(segment)
        layout = await self._layouts.owner(name.topic)
        if layout is None:
            return False
        if layout.moved_to is not None:
            return True  # the topic that it had become was deleted
        if life is not None and life not in layout.lives:
            return True
        return layout.deleted or (segment_id_of(name) < layout.next_id and not layout.has(name))

    # -- removing -------------------------------------------------------------------------------------

    async def _last_ledger(self, layout: Layout, version: int) -> int | None:
        """Seal the segment of a deleted topic and return its last ledger id; None: the layout must be read again."""
        try:
            ledger = await self._ledgers.open(str(layout.topic))
        except LedgerNotFound:
            return NO_LEDGER  # removed by another process, which has changed the mark; or lost
        try:
            # The mark is unchanged after opening, so the opened segment belongs to this life: the segment of the next
            # life is created later.
            found = await self._layouts.find(layout.topic)
            return (await ledger.seal()).open_ledger_id if found is not None and found[1] == version else None
        except LedgerNotFound:
            return None
        finally:
            await ledger.close()

    async def _remove(self, layout: Layout) -> None:
        coordinators = [await self._coordinator(str(one)) for one in layout.names]
        for segment_id in layout.segments:
            name = str(layout.name_of(segment_id))
            # The ledger first: afterwards no process appends or reads there, and no outcome is recorded for it any
            # more.
            last = self._bound(layout, segment_id)
            await self._ledgers.delete(name, last)
            for one in coordinators:
                if one is not None:
                    await one.forget_segment(name, last)
            await self._release(name, last)
        for subscription in await self._subscription_names(layout):
            await self._subscriptions.tombstone(layout, subscription)
        for segment_id in layout.segments:
            name = str(layout.name_of(segment_id))
            # A persistent topic's name may return, and its segment has the same name. So its cursors stay as
            # tombstones: a process that still holds acknowledgments of this life cannot affect the next one.
            if not isinstance(layout.name_of(segment_id), TopicName):
                await self._delete_cursors(name)

    @staticmethod
    def _bound(layout: Layout, segment_id: int) -> int | None:
        """Return the last ledger id to delete of a segment; None: its name never returns."""
        if not isinstance(layout.name_of(segment_id), TopicName):
            return None
        return layout.origin.last_ledger if layout.origin is not None else layout.last_ledger

    async def _subscription_names(self, layout: Layout) -> tuple[str, ...]:
        """Return the names of all subscriptions that may have records left."""
        names = set(layout.subscriptions)
        left: object = paths.subscriptions_range(str(layout.topic))
        while isinstance(left, KeyRange):
            page = await self._store.scan(left, SCAN_ITEMS_MAX)
            names.update(paths.subscription_of(record.key.path)[1] for record in page.records)
            left = page.resume
        return tuple(sorted(names))

    async def _delete_cursors(self, segment: str) -> None:
        """Delete the cursors of a segment whose name never returns."""
        left: object = paths.cursors_range(segment)
        while isinstance(left, KeyRange):
            page = await self._store.scan(left, SCAN_ITEMS_MAX)
            for record in page.records:
                await self._store.delete(record.key, Expect.ANY)
            left = page.resume


def _require_no_migration(layout: Layout) -> None:
    """Raise TopicInUse while the topic migrates: its segment and cursors are about to belong to another topic."""
    if layout.migration is not None:
        reason = f"it migrates to {layout.migration.to}"
        raise TopicInUse(str(layout.topic), reason, "finish the migration or take it back")


async def _segments_of(coordinator: ITransactionCoordinator, txn_id: TxnID) -> frozenset[str]:
    """Return the segments in which an open transaction took part; none if the transaction is not known any more."""
    try:
        described = await coordinator.describe(txn_id)
    except TransactionNotFound:
        return frozenset()
    return frozenset(participant.segment for participant in described.participants)
