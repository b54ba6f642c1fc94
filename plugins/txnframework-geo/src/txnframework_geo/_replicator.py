"""The loop of a replication: from one consistent cut of the source to the next, one transaction of the target each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from txnframework.broker import first_completed
from txnframework.client import Client
from txnframework.errors import (
    BacklogQuotaExceeded,
    Closed,
    EndTransactionTimeout,
    InvalidInput,
    InvalidTransactionState,
    LeaseLost,
    OutcomeUnknown,
    SubscriptionNotFound,
    TransactionConflict,
    TransactionHasFailedOperations,
    TransactionNotFound,
    TxnFrameworkError,
    Unavailable,
)
from txnframework.model.names import check_new_name
from txnframework.runtime.backoff import Backoff
from txnframework_geo._hold import Hold
from txnframework_geo._metrics import ReplicationMetrics
from txnframework_geo._origins import headers_of, leaves
from txnframework_geo._progress import Progress
from txnframework_geo._segments import SourceTopics
from txnframework_geo._source import Cut, Source
from txnframework_geo._target import Target
from txnframework_geo._values import Replication, Stage, Step

RETRIED = (
    BacklogQuotaExceeded,
    Closed,
    EndTransactionTimeout,
    InvalidTransactionState,
    LeaseLost,
    OutcomeUnknown,
    SubscriptionNotFound,
    TransactionConflict,
    TransactionHasFailedOperations,
    TransactionNotFound,
    Unavailable,
)
"""After these, the replication continues from the progress that the target has: what it had begun is repeated."""

LAG_AGE_MS_MAX = 10_000
"""How often the lag is recorded while nothing can be copied."""

RETRY_DELAY_MS = 100
RETRY_DELAY_MS_MAX = 10_000

SENT_EVERY = 500
"""After how many messages of a transaction ``on_sent`` is called."""


async def _go_on(stage: Stage) -> None:
    """Do nothing."""


class Replicator:
    """
    Replicates topics of ``source`` to ``target``. Any number of processes may run the same replication; one works.

    :param reached: is awaited after each stage; tests stop the replicator there.
    :param on_sent: is called from time to time, with the number of messages that the open transaction has.
    :raises InvalidInput: the topics cannot be replicated so.
    """

    def __init__(
        self,
        source: Client,
        target: Client,
        replication: Replication,
        *,
        reached: Callable[[Stage], Awaitable[None]] = _go_on,
        on_sent: Callable[[int], None] = lambda _: None,
    ) -> None:
        if not replication.topics:
            raise InvalidInput("name at least one topic to replicate")
        check_new_name(f"geo-{replication.name}", "replication name")
        identities = [one.host.metadata.identity for one in (source, target)]
        if identities[0] == identities[1]:
            raise InvalidInput("source and target are the same deployment: name two configurations")
        self._source_client = source
        self._target_client = target
        self._replication = replication
        self._topics = tuple(dict.fromkeys(replication.topics))
        self._reached = reached
        self._on_sent = on_sent
        self._metrics = ReplicationMetrics(target.host.metrics, replication.name)
        self._identity = identities[0]
        self._hold = Hold(source, SourceTopics(source, self._topics), f"geo-{replication.name}-{identities[1]}")
        self._source = Source(source, self._topics, self._hold, replication.messages_min, replication.messages_max)
        self._new_target()  # raises what cannot work at all

    async def run(
        self,
        *,
        once: bool = False,
        on_step: Callable[[Step], None] = lambda _: None,
        on_retry: Callable[[TxnFrameworkError], None] = lambda _: None,
    ) -> None:
        """
        Replicate until the caller is cancelled.

        :param once: return when the target has everything that could be copied at one time after the start.
        :param on_step: is called after each transaction of the target.
        :param on_retry: is called with an error after which the replication continues from the stored progress.
        :raises InvalidInput: the replication cannot be continued; the text says why.
        :raises TopicNotFound: a topic of the source does not exist.
        :raises UnknownFormat: a later release wrote the progress.
        """
        backoff = Backoff(self._target_client.host.environment, RETRY_DELAY_MS, RETRY_DELAY_MS_MAX)
        failures = 0

        def note(step: Step) -> None:
            nonlocal failures
            failures = self._source.halvings = 0
            self._metrics.note(step)
            on_step(step)

        while True:
            try:
                await self._continue(once, note)
            except RETRIED as error:
                if self._source_client.host.closing or self._target_client.host.closing:
                    raise
                failures += 1
                self._source.halvings = failures
                on_retry(error)
                await backoff.pause(failures)
            else:
                return

    async def lag(self) -> tuple[int, int]:
        """
        Return how many messages the target does not have, and for how many ms the oldest of them has been stored.

        Messages of open transactions are not counted.

        :raises SubscriptionNotFound: nothing was replicated under this name yet.
        """
        return await self._hold.lag()

    def _new_target(self) -> Target:
        return Target(self._target_client, self._topics, self._replication.name)

    async def _continue(self, once: bool, on_step: Callable[[Step], None]) -> None:
        """Continue from the progress that the target has."""
        source = self._source
        segments = await source.active_segments()  # raises if a topic does not exist, before anything is created
        async with self._new_target() as target:
            await target.join()
            stored = await target.stored()
            if stored is not None:
                stored.require_same(self._replication.name, self._identity, self._names)
                await source.require_lives(stored)
            await self._hold.create()
            await target.prepare(segments)
            progress = await target.take((stored or await self._begin(target)).step)
            progress.require_same(self._replication.name, self._identity, self._names)
            await self._reached(Stage.TAKEN)
            # A process that died after its commit has not told the source.
            await self._hold.release(progress)
            await self._follow(target, progress, once, on_step)

    async def _begin(self, target: Target) -> Progress:
        """
        Store the first progress, and return the latest one.

        If this process was paused before, others may have begun, and have copied much. So the latest progress is read
        again: that which this process stores may be a late copy, from which nothing may be continued.
        """
        try:
            lives, starts = await self._hold.beginning(target.progress_topic)
        except InvalidInput:
            stored = await target.stored()
            if stored is None:
                raise
            return stored
        await target.begin(Progress(0, self._identity, self._names, lives, starts))
        stored = await target.stored()
        if stored is None:  # it was stored before, and was removed since
            raise Unavailable(
                f"the progress in {target.progress_topic} was removed: if this error stays, delete the topic"
            )
        return stored

    async def _follow(self, target: Target, progress: Progress, once: bool, on_step: Callable[[Step], None]) -> None:
        source = self._source
        goal = await source.readable() if once else {}
        while True:
            if once and all(progress.reaches(segment, end) for segment, end in goal.items()):
                return
            cut = await source.next_cut(progress)
            await self._reached(Stage.READ)
            if not cut.moves(progress):
                if once:
                    return
                await self._wait(cut)
                continue
            copied, kept, following = await self._copy(target, progress, cut)
            await self._reached(Stage.COMMITTED)
            progress = await target.take(following.step)
            await self._hold.release(progress)
            await self._reached(Stage.RELEASED)
            on_step(Step(following.step, copied, kept, *await self._hold.lag()))

    async def _wait(self, cut: Cut) -> None:
        """Wait until more can be copied, but not so long that the reported lag would be old."""
        environment = self._target_client.host.environment
        await first_completed(self._source.changed(cut), environment.sleep_until(environment.now_ms() + LAG_AGE_MS_MAX))
        self._metrics.note_lag(*await self._hold.lag())

    async def _copy(self, target: Target, progress: Progress, cut: Cut) -> tuple[int, int, Progress]:
        """
        Copy everything between the progress and the cut in one transaction of the target.

        If this process dies before the commit, the transaction aborts. If it dies after the commit, the target has the
        next progress, and nothing is copied twice.
        """
        copied = kept = 0
        following = Progress(progress.step + 1, self._identity, self._names, cut.lives, cut.ends, cut.late)
        async with target.transaction() as txn:
            async for topic, found in self._source.messages(progress, cut):
                if not leaves(found.message, target.identity, self._replication.forward):
                    kept += 1
                    continue
                copied += 1
                headers = headers_of(found.message, self._identity, found.segment, found.position, found.producer)
                await target.send(topic, found.message.value, found.message.key, headers, txn)
                if copied % SENT_EVERY == 0:
                    self._on_sent(copied)
            await target.flush()
            await self._reached(Stage.SENT)
            await target.replace(following, txn)
            await self._reached(Stage.REPLACED)
        return copied, kept, following

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(map(str, self._topics))
