"""Periodic rounds over all topics: trimming, and completion of interrupted changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from txnframework.broker.coordination import Holder, wait_until_free
from txnframework.broker.retention import keeps_everything
from txnframework.config import Config
from txnframework.environment import Environment
from txnframework.errors import LeaseHeld, TxnFrameworkError
from txnframework.interfaces import ILease, IMetadataStore
from txnframework.model import paths, records
from txnframework.model.metadata import KeyRange, Record
from txnframework.model.names import TOPIC_DOMAINS, TopicName
from txnframework.runtime.tasks import BackgroundTask, first_completed

_LOG = logging.getLogger(__name__)

PAGE_TOPICS = 10

MaintainTopic = Callable[[TopicName, records.TopicRecord], Awaitable[None]]


class Maintenance:
    """
    Maintains the topics: each round handles some of them, and the next round continues after them.

    A lease elects the process that does it. Without the lease several processes would do the same work, which is
    harmless. Processes that trim and processes that do not trim elect one process each.
    """

    def __init__(
        self, store: IMetadataStore, environment: Environment, config: Config, process: str, maintain: MaintainTopic
    ) -> None:
        self._store = store
        self._environment = environment
        self._interval_ms = config.retention.interval_ms
        self._segments_max = config.retention.segments_max
        rules = [config.retention, *map(config.retention_of, config.namespaces)]
        # A process that is configured to keep everything must not stop another one from trimming.
        self._lease = "upkeep" if all(map(keeps_everything, rules)) else "upkeep with trimming"
        self._process = process
        self._maintain = maintain
        self._left: list[KeyRange] = []
        self._held: ILease | None = None
        # Set while this process may hold the lease: it acquired the lease, or the outcome of acquiring it is unknown.
        self._own = asyncio.Event()
        self._work = BackgroundTask(self._run)

    def start(self) -> None:
        """Start the rounds; a second call does nothing."""
        self._work.start()

    async def stop(self) -> None:
        """Stop; a running round is cancelled, which is safe at any point."""
        await self._work.stop()

    async def round(self) -> None:
        """
        Maintain some topics, if no other process does.

        A topic that fails with an error of the framework is retried in a later round, and does not affect other topics.
        Any other exception is a defect and ends the round; in the background it goes to the loop's exception handler.
        """
        self._own.set()
        try:
            # Each round acquires the lease, also if this process holds it. An ``Election`` would be too late for a
            # short-lived process that calls ``round`` itself.
            holder = Holder("", self._process, self._store.session)
            self._held = await self._store.acquire_lease(self._lease, str(holder))
        except LeaseHeld:
            self._own.clear()
            return
        self._left = self._left or [paths.topics_range(domain=domain) for domain in TOPIC_DOMAINS]
        seen = 0
        while self._left and seen < self._segments_max:
            page = await self._store.scan(self._left.pop(0), PAGE_TOPICS)
            if isinstance(page.resume, KeyRange):
                self._left.insert(0, page.resume)
            for record in page.records:
                seen += await self._try(record)

    async def all_topics(self) -> None:
        """Maintain all topics that no round has reached yet, if no other process does."""
        await self.round()
        while self._left:
            await self.round()
        if self._held is not None and not self._work.started:
            # This process may live long without another call, so the lease is released for other processes.
            with suppress(TxnFrameworkError):  # otherwise the lease ends with the session
                await self._held.release()
            self._held = None

    async def _try(self, record: Record) -> int:
        """Maintain one topic; return the number of its segments, at least 1."""
        try:
            document = records.decode(records.TopicRecord, record)
            await self._maintain(paths.topic_of(record.key.path), document)
        except TxnFrameworkError as error:
            _LOG.warning("maintenance of %s failed: %s", record.key.path, error)
            return 1
        return max(1, len(document.segments))

    async def _run(self) -> None:
        while True:
            await self._environment.sleep_until(self._environment.now_ms() + self._interval_ms)
            try:
                await self._until_its_turn()
                await self.round()
            except TxnFrameworkError as error:
                _LOG.warning("a maintenance round failed, the next one tries again: %s", error)
            except Exception as error:
                report = {"message": "a maintenance round failed; the next one tries again", "exception": error}
                asyncio.get_running_loop().call_exception_handler(report)

    async def _until_its_turn(self) -> None:
        """Wait while another process is elected: each failed attempt to acquire the lease would cost a write."""
        if not self._own.is_set():
            await first_completed(wait_until_free(self._store, paths.lease_key(self._lease)), self._own.wait())
