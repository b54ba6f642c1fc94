"""Topics: creation and layout changes."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from txnframework.broker.coordination import ATTEMPTS_MAX
from txnframework.broker.topics.deletion import TopicDeletion
from txnframework.broker.topics.layouts import StoredLayouts, may_be_completed, too_many_conflicts
from txnframework.broker.topics.migration import TopicMigrations
from txnframework.broker.topics.subscriptions import Start, SubscriptionChanges
from txnframework.errors import (
    InvalidName,
    LedgerNotFound,
    TopicExists,
    TopicNotFound,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import ILedgerStore, IMetadataStore, ITransactionCoordinator, IWatch
from txnframework.model import paths, records
from txnframework.model.layout import Layout, from_record
from txnframework.model.layout_changes import (
    create_layout,
    finish_change,
    has_change,
    plan_merge,
    plan_split,
    planned_changes,
    with_next_id,
)
from txnframework.model.metadata import Expect, KeyRange, Record
from txnframework.model.names import INTERNAL_PREFIX, TOPIC_DOMAINS, SegmentName, TopicName, check_new_topic

if TYPE_CHECKING:
    from txnframework.broker.segments import OpenSegment


LIST_ITEMS_MAX = 1_000


class Topics:
    """
    Creates topics and changes their layouts; any process may call every method, and repeat it after any failure.

    A change is planned by compare-and-set of the layout. Then the children and their cursors are created, then the
    parents are sealed. Then the change is marked as done by compare-and-set. A crash leaves a plan, which
    ``finish_changes`` carries out in any process. It never leaves a sealed segment without children.
    """

    def __init__(
        self,
        store: IMetadataStore,
        ledgers: ILedgerStore,
        segment: Callable[[str], Awaitable[OpenSegment]],
        coordinator: Callable[[str], Awaitable[ITransactionCoordinator | None]],
        release: Callable[[str, int | None], Awaitable[None]],
        migrations: TopicMigrations,
    ) -> None:
        self.migrations = migrations
        self._store = store
        self._ledgers = ledgers
        self._segment = segment
        self._layouts = StoredLayouts(store)
        self._subscriptions = SubscriptionChanges(store, self._layouts, segment, migrations.finish)
        self.deletion = TopicDeletion(store, ledgers, self._layouts, self._subscriptions, coordinator, release)

    async def create(self, topic: TopicName, segments: int = 1) -> Layout:
        """
        Create a topic of ``segments`` segments; a persistent topic has one.

        :raises InvalidInput: the name is reserved for internal topics or breaks a rule for new names, or a persistent
            topic was requested with several segments.
        :raises TopicExists: the topic exists.
        :raises OutcomeUnknown: the topic may have been created.
        """
        if topic.internal:
            raise InvalidName(str(topic), f"names that begin with {INTERNAL_PREFIX!r} are reserved for internal topics")
        # Not read again: if the topic is deleted after this, its ledger must not become the ledger of the new topic.
        before = await self.deletion.finish(topic)
        if before is not None and (not before[0].deleted or await self.migrations.is_reserved(before[0])):
            raise TopicExists(str(topic))
        check_new_topic(topic)
        layout = create_layout(topic, segments, None if before is None else before[0])
        # Ledgers first: a crash here leaves empty ledgers that the next attempt finds, not a topic without ledgers.
        for segment_id in layout.segments:
            await (await self._ledgers.create(str(layout.name_of(segment_id)))).close()
        try:
            await self._layouts.put(layout, Expect.ABSENT if before is None else before[1])
        except VersionMismatch as error:
            await self._withdraw(layout)
            raise TopicExists(str(topic)) from error
        return layout

    async def delete(self, topic: TopicName, *, force: bool = False, life: int | None = None) -> None:
        """
        Delete a topic with its messages, its subscriptions and the records of transactions in it.

        ``life``: delete only this life of the topic; a later one is unaffected.

        :raises TopicInUse: ``force`` is not set, and the topic has subscriptions or open transactions took part in it.
        :raises TopicNotFound: the topic does not exist, and nothing is left of a deleted one.
        :raises OutcomeUnknown: the topic is deleted, or may be, and a part of it may be left; a repeated call removes
            it.
        """
        await self.deletion.delete(topic, force=force, life=life)

    async def delete_all(self, tenant: str, namespace: str, *, force: bool = False) -> None:
        """
        Delete every topic of a namespace, after a check that none is in use; errors are those of ``delete``.

        If the call fails, the topics that it deleted stay deleted; repeat it.

        :raises OutcomeUnknown: some of the topics are deleted, or may be.
        """
        names = await self.list(tenant, namespace)
        for name in () if force else names:
            with contextlib.suppress(TopicNotFound):  # another process deleted it meanwhile, as below
                await self.deletion.require_unused(await self.layout(name))
        for number, name in enumerate(names):
            try:
                await self.delete(name, force=force)
            except TopicNotFound:
                continue
            except Unavailable as error:
                if not number:
                    raise
                raise may_be_completed(f"{number} of {len(names)} topics are deleted", error) from error

    async def layout(self, topic: TopicName) -> Layout:
        """
        Return the current layout.

        :raises TopicNotFound: the topic does not exist.
        """
        return (await self._layouts.load(topic))[0]

    async def current_name(self, name: TopicName | SegmentName) -> TopicName | SegmentName:
        """Return the name of the topic that a topic has become, or the same name if it has not migrated."""
        if isinstance(name, SegmentName):
            return name
        found = await self._layouts.find(name)
        return name if found is None else found[0].moved_to or name

    async def list(
        self, tenant: str | None = None, namespace: str | None = None, domain: str | None = None
    ) -> tuple[TopicName, ...]:
        """
        Return the names of all topics, of a tenant, or of one of its namespaces, in order, without internal ones.

        ``domain``: only topics of this domain, ``topic`` or ``persistent``.
        """
        found: list[TopicName] = []
        for one in TOPIC_DOMAINS if domain is None else (domain,):
            left: KeyRange | None = paths.topics_range(tenant, namespace, one)
            while left is not None:
                page = await self._store.scan(left, LIST_ITEMS_MAX)
                found.extend(layout.topic for record in page.records if (layout := _listed(record)) is not None)
                left = page.resume if isinstance(page.resume, KeyRange) else None
        return tuple(found)

    async def page(
        self,
        topics_max: int,
        after: TopicName | None = None,
        namespace: tuple[str, str] | None = None,
        domain: str | None = None,
    ) -> tuple[Layout, ...]:
        """
        Return the layouts of the first topics behind ``after``, in the order of ``list``; a shorter page is the last.

        ``namespace``: only topics of this tenant and namespace. ``domain``: only topics of this domain.
        """
        found: list[Layout] = []
        tenant, name = namespace or (None, None)
        domains: tuple[str, ...] = TOPIC_DOMAINS if domain is None else (domain,)
        if after is not None:
            domains = tuple(one for one in domains if one >= after.domain)
        for one in domains:
            whole = paths.topics_range(tenant, name, one)
            left: KeyRange | None = whole
            if after is not None and one == after.domain:
                left = paths.behind(paths.topic_key(after), whole)
            while left is not None and len(found) < topics_max:
                page = await self._store.scan(left, topics_max - len(found))
                found += [layout for record in page.records if (layout := _listed(record)) is not None]
                left = page.resume if isinstance(page.resume, KeyRange) else None
        return tuple(found)

    async def watch(self, topic: TopicName) -> IWatch:
        """Return an armed watch on the layout."""
        return await self._store.watch(paths.topic_key(topic))

    async def split(self, topic: TopicName, segment_id: int) -> tuple[int, ...]:
        """
        Split an active segment in the middle of its hash range; return the ids of the children.

        :raises LayoutConflict: the segment is not active or holds only one hash value, or the topic is persistent.
        """
        return await self._change(topic, (segment_id,), lambda layout: plan_split(layout, segment_id))

    async def merge(self, topic: TopicName, segment_id: int, other_id: int) -> tuple[int, ...]:
        """
        Merge two active segments; return the id of the child.

        :raises LayoutConflict: a segment is not active, the segments are not neighbours, or the topic is persistent.
        """
        return await self._change(
            topic, (segment_id, other_id), lambda layout: plan_merge(layout, segment_id, other_id)
        )

    async def finish_changes(self, topic: TopicName) -> Layout:
        """
        Carry out every planned change, and a decided migration; return the layout after the changes.

        After a migration it is that of the new topic.
        """
        made: set[str] = set()
        try:
            for _ in range(ATTEMPTS_MAX):
                layout, version = await self._layouts.load(topic)
                if layout.is_migrating:
                    await self.migrations.finish(layout.topic)
                    continue
                changes = planned_changes(layout)
                if not changes:
                    return layout
                await self._carry_out(layout, changes[0], made)
                # A subscription that was created in the meantime changed the layout. Then this write is refused, and
                # the next round creates its cursors.
                await self._layouts.put_if(finish_change(layout, changes[0]), version)
        except TopicNotFound:
            # The topic was deleted meanwhile: the children may have been made after the deletion had passed them.
            for name in made:
                await self._ledgers.delete(name, None)  # a name that never returns
            raise
        raise too_many_conflicts(topic, ATTEMPTS_MAX)

    async def subscribe(self, topic: TopicName, name: str, start: Start = "latest") -> None:
        """
        Create a subscription, or the missing parts of one: its record, its cursors, its name in the layout.

        An existing subscription is unchanged. ``latest`` begins after all messages that are readable now, on every
        segment.

        :raises TopicNotFound: the topic does not exist.
        """
        await self._subscriptions.subscribe(topic, name, start)

    async def unsubscribe(self, topic: TopicName, name: str) -> None:
        """
        Delete a subscription; its cursors stay as tombstones, so that its acknowledgments cannot affect a later life.

        A call that is repeated after a failure completes the deletion, but may also delete a subscription that was
        created again in the meantime. A caller that retries therefore uses ``unlist`` and ``tombstone`` separately.

        :raises SubscriptionNotFound: the subscription does not exist.
        """
        await self.unlist(topic, name)
        await self.tombstone(topic, name)

    async def unlist(self, topic: TopicName, name: str) -> None:
        """
        Unlist a subscription, which ends its life; the name may be used again immediately.

        :raises SubscriptionNotFound: the subscription does not exist.
        :raises OutcomeUnknown: the subscription may be unlisted.
        """
        await self._subscriptions.unlist(topic, name)

    async def tombstone(self, topic: TopicName, name: str) -> None:
        """
        Write the tombstones of a subscription whose life has ended, unless another life has begun; may be repeated.
        """
        layout, _ = await self._layouts.load(topic)
        await self._subscriptions.tombstone(layout, name)

    # -- single steps ---------------------------------------------------------------------------------

    async def _withdraw(self, layout: Layout) -> None:
        """
        Delete the ledgers of a layout that lost against another process's layout, except ledgers that both name.

        A split of the other layout may need such a name later, and find the ledger. So its ids are skipped in the other
        layout first: afterwards no new segment can get one of them.
        """
        if layout.name_returns:
            return  # the same name in either layout
        for _ in range(ATTEMPTS_MAX):
            found = await self._layouts.find(layout.topic)
            if found is None:
                return
            made, version = found
            if made.next_id < layout.next_id:
                await self._layouts.put_if(with_next_id(made, layout.next_id), version)
                continue
            kept = {made.name_of(segment_id) for segment_id in made.segments}
            for segment_id in layout.segments:
                if layout.name_of(segment_id) not in kept:
                    await self._ledgers.delete(str(layout.name_of(segment_id)), None)
            return
        raise too_many_conflicts(layout.topic, ATTEMPTS_MAX)

    async def _change(
        self, topic: TopicName, parents: tuple[int, ...], plan: Callable[[Layout], Layout]
    ) -> tuple[int, ...]:
        """
        Plan a change and carry it out; return the ids of the children.

        They are those of the plan: another process may have removed the parents by the time this one returns.

        :raises OutcomeUnknown: the change is planned, or may be; any process that notices the plan carries it out.
        """
        planned: Layout | None = None
        try:
            for _ in range(ATTEMPTS_MAX):
                layout, version = await self._layouts.load(topic)
                if layout.is_migrating:
                    await self.migrations.finish(layout.topic)
                    continue
                # The reply to the plan may have been lost: then the plan is stored, and another process may have
                # carried it out.
                is_stored = planned is not None and has_change(layout, planned, parents)
                if planned is None or not is_stored:
                    wanted = plan(layout)
                    is_stored = await self._layouts.put_if(wanted, version)
                    planned = wanted
                if is_stored:
                    await self.finish_changes(topic)
                    return planned.segments[parents[0]].children
        except Unavailable as error:
            if planned is None:
                raise
            raise may_be_completed(f"a change of the segments of {topic} may be planned", error) from error
        raise too_many_conflicts(topic, ATTEMPTS_MAX)

    async def _carry_out(self, layout: Layout, parents: tuple[int, ...], made: set[str]) -> None:
        """Create the children of a planned change, add their names to ``made``, and seal the parents."""
        children = layout.segments[parents[0]].children
        made.update(str(layout.name_of(child)) for child in children)
        await self._make_children(layout, children)
        try:
            for parent in parents:
                opened = await self._segment(str(layout.name_of(parent)))
                # The last ledger of a segment is never trimmed, so it should be empty. What is appended before the seal
                # stays with it.
                await opened.ledger.roll()
                await opened.ledger.seal()
        except LedgerNotFound:
            await self._layouts.load(layout.topic)  # raises if the topic was deleted
            raise

    async def _make_children(self, layout: Layout, children: tuple[int, ...]) -> None:
        """Create ledgers and cursors of segments that accept no writes yet."""
        for child in children:
            name = str(layout.name_of(child))
            await (await self._ledgers.create(name)).close()
            await self._subscriptions.make_cursors(layout, child)


def _listed(record: Record) -> Layout | None:
    """Return the layout of a topic; None if the topic is internal or deleted, or has migrated."""
    topic = paths.topic_of(record.key.path)
    document = records.decode(records.TopicRecord, record)
    if document.deleted or topic.internal:
        return None
    layout = from_record(topic, document)
    return None if layout.moved_to is not None else layout
