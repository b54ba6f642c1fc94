"""The part of a migration after its decision, which any process may carry out and repeat; see ``migration``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from txnframework.broker.segment_cache import SegmentCache
from txnframework.broker.segments import OpenSegment
from txnframework.broker.topics.layouts import StoredLayouts
from txnframework.broker.topics.migration_outcomes import OutcomeRecorder
from txnframework.errors import LayoutConflict, MigrationRefused
from txnframework.interfaces import ILedgerStore, IMetadataStore, ISealablePendingAcks, ITransactionCoordinator
from txnframework.model import migration_changes as changes
from txnframework.model.ids import TxnID
from txnframework.model.layout import Layout
from txnframework.model.names import TopicName


class MigrationCompletion:
    """Seals the segment and the acknowledgments of a topic, ends what is open in them, and stores the new topic."""

    def __init__(
        self,
        store: IMetadataStore,
        ledgers: ILedgerStore,
        segments: SegmentCache,
        coordinator: Callable[[str], Awaitable[ITransactionCoordinator | None]],
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._segments = segments
        self._coordinator = coordinator
        self._layouts = StoredLayouts(store)

    async def carry_out(self, layout: Layout, reservation: tuple[Layout, int] | None) -> None:
        """Do everything up to the new topic's record; until then, the segment is read as before."""
        topic, migration = layout.topic, layout.migration
        assert migration is not None
        if reservation is None or reservation[0].reserved_for != topic:
            raise LayoutConflict(str(migration.to), f"the name was reserved for the migration of {topic}")
        opened = await self._segments.segment(str(topic), layout.life)
        if not opened.is_of(layout.life):
            return  # another process has finished the migration
        last_ledger = (await opened.ledger.seal()).open_ledger_id
        recorder = await self.recorder(topic, opened)
        while True:
            # The acknowledgments are sealed before the holds are read, and read again after the transactions have
            # ended. The list of subscriptions does not change any more.
            holders = set()
            for name in layout.subscriptions:
                held = await self._sealed_holders(layout, name)
                if held is None:
                    return
                holders |= held
            if await recorder.settle(migration.recorded, holders) and not holders:
                break
        # Read again after the seal: a family is listed before its first entry.
        current = await self._layouts.find(topic)
        if current is None or not current[0].is_migrating:
            return
        after = changes.migrated(current[0], reservation[0], last_ledger)
        for child in after.active():
            await (await self._ledgers.create(str(after.name_of(child.id)))).close()
        await self._layouts.put_if(after, reservation[1])

    async def _sealed_holders(self, layout: Layout, name: str) -> set[TxnID] | None:
        """Return the open transactions that hold acknowledgments; None: another process has finished the migration."""
        topic = layout.topic
        subscription = await self._segments.subscription(str(topic), name, str(topic), layout.life)
        pending = subscription.pending_acks
        # A process that was paused finds what a later life opened, whose acknowledgments must not be sealed for this
        # one.
        is_present = (subscription.topic, subscription.life) == (str(topic), layout.life)
        if is_present and ISealablePendingAcks.providedBy(pending):
            return set((await pending.seal()).open)
        current = await self._layouts.find(topic)
        if current is not None and current[0].is_migrating and current[0].life == layout.life:
            raise MigrationRefused(str(topic), f"the acknowledgments of {name} are served by other plugins")
        return None

    async def recorder(self, topic: TopicName, opened: OpenSegment) -> OutcomeRecorder:
        """
        Return a recorder of outcomes in a segment of a topic.

        :raises MigrationRefused: the plugins of the topic's domain are not installed.
        """
        coordinator = await self._coordinator(str(topic))
        if coordinator is None:
            raise MigrationRefused(str(topic), "the plugins of its domain are not installed")
        return OutcomeRecorder(self._store, opened, coordinator)
