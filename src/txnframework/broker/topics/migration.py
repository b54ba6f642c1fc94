"""
Migration of a topic between the families while it is used: ``persistent://`` to ``topic://``.

The topic's segment stays where it is. It is sealed, and becomes the first segment of the new topic, which reads it by
abort records. A new child takes the writes, so producers and consumers follow as after a split. The steps, each of
which may be repeated:

1. *Plan* in the old topic's record, and reserve the new name.
2. *Record*: store abort records for what is decided in the topic, while it is used. The metadata family has them.
3. *Decide* by compare-and-set of the plan. Before this, the plan can be withdrawn; afterwards any process finishes it.
4. *Seal* the segment and the pending acknowledgments. From here on, writers wait.
5. *Settle*: abort the transactions that are open in them, store the missing abort records, apply held acknowledgments.
6. Store the new topic's record, then refer to it in the old record. Writers continue.

A crash before the decision leaves a plan, which changes nothing for users. A crash after it leaves a decided migration,
which is finished by the first process that meets it: a producer that finds the segment sealed, a consumer or reader
that is opened, or maintenance. Two processes may do so at the same time: every step stores facts that stay true.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from txnframework.broker.coordination import ATTEMPTS_MAX
from txnframework.broker.segment_cache import SegmentCache
from txnframework.broker.topics.layouts import StoredLayouts, too_many_conflicts
from txnframework.broker.topics.migration_completion import MigrationCompletion
from txnframework.broker.topics.migration_outcomes import transactions_in
from txnframework.environment import Environment
from txnframework.errors import (
    MigrationRefused,
    OutcomeUnknown,
    TopicExists,
    TopicNotFound,
    VersionMismatch,
)
from txnframework.interfaces import (
    ILedgerStore,
    IMetadataStore,
    ITransactionCoordinator,
)
from txnframework.model import migration_changes as changes
from txnframework.model.ids import TxnID
from txnframework.model.layout import Layout
from txnframework.model.metadata import Expect, Expected
from txnframework.model.names import PERSISTENT, TOPIC, TopicName, check_new_topic
from txnframework.model.positions import EARLIEST, EntryRange, Position
from txnframework.model.topic_migration import MigrationStep
from txnframework.runtime.concurrency import KeyedLock
from txnframework.runtime.tasks import first_completed

LEFT_ENTRIES_MAX = 1_000
"""The most entries whose outcomes are left for the time in which writers wait."""
ROUNDS_MAX = 100
COUNTED_MAX = 1 << 62

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, what is done of it, and what it has in all (0: unknown)."""


@dataclass(frozen=True, slots=True)
class MigrationFacts:
    """
    A topic and its migration, as an operator sees it; ``refused``: why the migration cannot begin, or empty.

    ``step``: None if no migration is planned. ``planned_ms``: when it was planned, in ms since 1970.
    """

    topic: str
    to: str
    step: MigrationStep | None
    messages: int = 0
    subscriptions: tuple[str, ...] = ()
    open_transactions: int = 0
    planned_ms: int | None = None
    refused: str = ""


class TopicMigrations:
    """
    Plans, carries out and withdraws migrations; any process may call every method, and repeat it after any failure.

    ``coordinator`` returns the coordinator of a topic. ``refusal`` says why the plugins of two topics do not allow a
    migration, or returns an empty text. ``finish_deletion`` removes what is left of a deleted topic.
    """

    def __init__(
        self,
        store: IMetadataStore,
        ledgers: ILedgerStore,
        environment: Environment,
        segments: SegmentCache,
        coordinator: Callable[[str], Awaitable[ITransactionCoordinator | None]],
        refusal: Callable[[TopicName, TopicName], str],
        finish_deletion: Callable[[TopicName], Awaitable[object]],
    ) -> None:
        self._environment = environment
        self._segments = segments
        self._coordinator = coordinator
        self._refusal = refusal
        self._finish_deletion = finish_deletion
        self._layouts = StoredLayouts(store)
        self._completion = MigrationCompletion(store, ledgers, segments, coordinator)
        self._finishing: KeyedLock[TopicName] = KeyedLock()

    async def describe(self, topic: TopicName, to: TopicName) -> MigrationFacts:
        """
        Return what a migration would find now, or the state of one; changes nothing.

        :raises TopicNotFound: the topic does not exist.
        """
        layout, _ = await self._found(topic)
        migration = layout.migration
        if migration is not None and migration.step is not MigrationStep.PLANNED:
            return MigrationFacts(str(topic), str(migration.to), migration.step, planned_ms=migration.at_ms)
        messages = 0
        for segment_id in layout.made():
            ledger = (await self._segments.segment(str(layout.name_of(segment_id)), layout.life)).ledger
            upto = (await ledger.tail()).last_confirmed
            messages += (await ledger.count(EntryRange(EARLIEST, upto), COUNTED_MAX)).messages
        coordinator = await self._coordinator(str(topic))
        involved = () if coordinator is None else await transactions_in(coordinator, _names(layout))
        return MigrationFacts(
            str(topic),
            str(to),
            None if migration is None else migration.step,
            messages,
            layout.subscriptions,
            len(involved),
            None if migration is None else migration.at_ms,
            await self._refused(layout, to),
        )

    async def migrate(
        self, topic: TopicName, to: TopicName, wait_ms: int = 0, progress: Progress = lambda *_: None
    ) -> None:
        """
        Migrate a topic, or continue its migration; return when it is done.

        ``wait_ms``: how long to wait for open transactions before the segment is sealed. Those that are open then are
        aborted.

        :raises MigrationRefused: the names, the plugins or the segments do not allow it, or another migration of it is
            planned.
        :raises TopicExists: a topic has the new name.
        :raises TopicNotFound: the topic does not exist.
        """
        if await self.plan(topic, to):
            upto = await self._record(topic, progress)
            if wait_ms and await self._wait(topic, wait_ms, progress):
                upto = await self._record(topic, progress, upto)
            await self._decide(topic, to, upto, progress)
        progress("seal", 0, 0)
        await self.finish(topic)

    async def plan(self, topic: TopicName, to: TopicName) -> bool:
        """
        Plan a migration and reserve the new name; return False if it is decided or done already.

        Errors are those of ``migrate``.
        """
        for _ in range(ATTEMPTS_MAX):
            layout, version = await self._found(topic)
            migration = layout.migration
            if migration is not None and migration.step is not MigrationStep.PLANNED and migration.to == to:
                return False
            if refused := await self._refused(layout, to):
                raise MigrationRefused(str(topic), refused)
            found = await self._layouts.find(to)
            if found is not None and not await self._is_free(found[0], topic):
                raise TopicExists(str(to))
            if migration is None:
                await self._layouts.put_if(changes.planned(layout, to, self._environment.now_ms()), version)
                continue
            await self._reserve(layout, to)
            return True
        raise too_many_conflicts(topic, ATTEMPTS_MAX)

    async def withdraw(self, topic: TopicName) -> bool:
        """
        Withdraw a planned migration and release the reserved name; return False if there is none.

        Abort records that were stored for it stay: they are true, and the present family does not read them.

        :raises MigrationRefused: the migration is decided; finish it.
        """
        for _ in range(ATTEMPTS_MAX):
            layout, version = await self._found(topic)
            migration = layout.migration
            if migration is None:
                return False
            if migration.step is MigrationStep.DONE:
                raise MigrationRefused(str(topic), f"it has become {migration.to}, and does not return")
            if migration.step is MigrationStep.DECIDED:
                raise MigrationRefused(str(topic), "the migration is decided, and can only be finished")
            # Read before the plan is withdrawn: the reservation of a later plan has another version, and stays.
            reservation = await self._layouts.find(migration.to)
            if await self._layouts.put_if(changes.withdrawn(layout), version):
                await self._release(topic, reservation)
                return True
        raise too_many_conflicts(topic, ATTEMPTS_MAX)

    async def is_reserved(self, layout: Layout) -> bool:
        """Return whether the name of a deleted topic is reserved for a migration that is planned or decided."""
        origin = layout.reserved_for
        found = None if origin is None else await self._layouts.find(origin)
        migration = None if found is None else found[0].migration
        return migration is not None and migration.to == layout.topic

    async def finish(self, topic: TopicName) -> None:
        """Carry out the rest of a decided migration; do nothing if there is none."""
        async with self._finishing.hold(topic):  # one call does the work for all in this process
            for _ in range(ATTEMPTS_MAX):
                found = await self._layouts.find(topic)
                if found is None or not found[0].is_migrating:
                    return
                layout, version = found
                assert layout.migration is not None
                target = await self._layouts.find(layout.migration.to)
                if target is not None and target[0].continues(layout):
                    await self._layouts.put_if(changes.done(layout), version)
                else:
                    await self._completion.carry_out(layout, target)
        raise too_many_conflicts(topic, ATTEMPTS_MAX)

    # -- before the decision --------------------------------------------------------------------------

    async def _found(self, topic: TopicName) -> tuple[Layout, int]:
        found = await self._layouts.find(topic)
        if found is None or found[0].deleted:
            raise TopicNotFound(str(topic), deleted=found is not None)
        return found

    async def _refused(self, layout: Layout, to: TopicName) -> str:
        topic = layout.topic
        if (topic.domain, to.domain) != (PERSISTENT, TOPIC):
            return f"a {PERSISTENT}:// topic migrates to a {TOPIC}:// topic; for anything else, copy to a new topic"
        if (topic.tenant, topic.namespace) != (to.tenant, to.namespace):
            return f"{to} is in another namespace"
        if topic.internal or to.internal:
            return "names that begin with '__' are reserved for internal topics"
        migration = layout.migration
        if migration is not None and migration.step is not MigrationStep.PLANNED:
            return f"it has migrated, or is about to: to {migration.to}"
        if migration is not None and migration.to != to:
            return f"its migration to {migration.to} is planned; roll it back first"
        check_new_topic(to)
        return self._refusal(topic, to)

    async def _reserve(self, layout: Layout, to: TopicName) -> None:
        """
        Reserve the new name.

        The reservation is written again if it is there: a process that is about to create a topic of this name read the
        former one before the migration was planned, and is then refused.
        """
        topic = layout.topic
        for _ in range(ATTEMPTS_MAX):
            found = await self._layouts.find(to)
            before, expected = (None, Expect.ABSENT) if found is None else found
            if before is not None and not await self._is_free(before, topic):
                await self.withdraw(topic)
                raise TopicExists(str(to))
            if before is not None and before.segments:
                await self._finish_deletion(to)  # the new topic's record would not name what is left of it
                continue
            if await self._put_if(changes.reserved(to, topic, before), expected):
                return
        raise too_many_conflicts(to, ATTEMPTS_MAX)

    async def _release(self, topic: TopicName, found: tuple[Layout, int] | None) -> None:
        """Release a reserved name. A reservation that is left after a crash reserves nothing: see ``is_reserved``."""
        if found is not None and found[0].reserved_for == topic:
            await self._layouts.put_if(changes.released(found[0]), found[1])

    async def _record(self, topic: TopicName, progress: Progress, after: Position = EARLIEST) -> Position:
        """
        Store abort records until few entries are left; return the position up to which they are complete.

        The position is stored with the first round, so that a later attempt does not read everything again.
        """
        layout, version = await self._found(topic)
        active = layout.active()
        if not active:
            return after  # another process has finished the migration
        opened = await self._segments.segment(str(layout.name_of(active[0].id)), layout.life)
        recorder = await self._completion.recorder(topic, opened)
        upto = after if layout.migration is None else max(after, layout.migration.recorded)
        for number in range(ROUNDS_MAX):
            tail = await opened.ledger.tail()
            total = (await opened.ledger.count(EntryRange(upto, tail.last_confirmed), COUNTED_MAX)).messages
            read = 0

            def count(entries: int, total: int = total) -> None:
                nonlocal read
                read += entries
                progress("record outcomes", min(read, total), total)

            upto = await recorder.record_decided(upto, count)
            if number == 0 and layout.migration is not None:
                await self._layouts.put_if(changes.recorded(layout, upto), version)
            if read <= LEFT_ENTRIES_MAX:
                break
        return upto

    async def _wait(self, topic: TopicName, wait_ms: int, progress: Progress) -> bool:
        """
        Wait until the transactions that take part in the topic have ended, at most ``wait_ms``.

        Return whether there were any.
        """
        coordinator = await self._coordinator(str(topic))
        names = _names((await self._found(topic))[0])
        waiting = frozenset[TxnID]() if coordinator is None else await transactions_in(coordinator, names)
        if coordinator is None or not waiting:
            return False
        deadline_ms, total = self._environment.now_ms() + wait_ms, len(waiting)
        left: frozenset[TxnID] = waiting

        async def wait() -> None:
            nonlocal left
            while left:
                progress("wait for open transactions", total - len(left), total)
                left -= (await coordinator.watch_ended(left)).keys()

        await first_completed(wait(), self._environment.sleep_until(deadline_ms))
        return True

    async def _decide(self, topic: TopicName, to: TopicName, upto: Position, progress: Progress) -> None:
        for _ in range(ATTEMPTS_MAX):
            layout, version = await self._found(topic)
            if layout.migration is None or layout.migration.to != to:
                raise MigrationRefused(str(topic), "its migration was withdrawn meanwhile")
            if layout.migration.step is not MigrationStep.PLANNED:
                return
            # Again, now that the plan was read: a process that is about to use the name has read it before this plan,
            # and is refused. Nothing else can reserve it while the plan is stored, so the decided migration has it.
            await self._reserve(layout, to)
            progress("decide", 0, 0)
            await self._layouts.put_if(changes.decided(layout, upto), version)
        raise too_many_conflicts(topic, ATTEMPTS_MAX)

    async def _is_free(self, target: Layout, topic: TopicName) -> bool:
        """
        Return whether a topic may get the name of ``target``, which is deleted then.

        A name that is reserved for another topic's migration is not free: that one may be decided at any time.
        """
        return target.deleted and (target.reserved_for in (None, topic) or not await self.is_reserved(target))

    async def _put_if(self, layout: Layout, expected: Expected) -> bool:
        try:
            await self._layouts.put(layout, expected)
        except (VersionMismatch, OutcomeUnknown):
            return False
        return True


def _names(layout: Layout) -> frozenset[str]:
    return frozenset(str(layout.name_of(segment_id)) for segment_id in layout.segments)
