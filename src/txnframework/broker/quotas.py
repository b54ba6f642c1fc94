"""Quotas of backlogs: producers are refused while a subscription of their topic is too far behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from logging import INFO, WARNING
from weakref import WeakValueDictionary

from txnframework.broker.backlog import Backlog, BacklogSize
from txnframework.broker.events import Event, log_event
from txnframework.config import BacklogQuotaSection, Config
from txnframework.environment import Environment
from txnframework.errors import BacklogQuotaExceeded, TxnFrameworkError
from txnframework.model.layout import Layout
from txnframework.model.names import TopicName
from txnframework.runtime.deadline import Deadline
from txnframework.runtime.tasks import start_task


class TopicQuota:
    """
    The quota of one topic, for the producers of this process.

    The backlogs are measured by a send, at most once in each interval. So all producers together may exceed the quota
    by what they send within an interval, and are accepted again at most an interval after consumers have caught up.
    """

    def __init__(
        self,
        topic: TopicName,
        quota: BacklogQuotaSection,
        measure: Callable[[], Awaitable[dict[str, BacklogSize]]],
        environment: Environment,
        process: str,
    ) -> None:
        self._topic = topic
        self._process = process
        self._quota = quota
        self._measure = measure
        self._environment = environment
        self._next: Deadline | None = None
        self._measuring: asyncio.Future[None] | None = None
        # The subscription that exceeds the quota, and how far it is behind.
        self._exceeded: tuple[str, BacklogSize] | None = None

    async def require_room(self) -> None:
        """
        Return if the producers may send.

        :raises BacklogQuotaExceeded: a subscription is too far behind.
        """
        if self._next is None or not self._next.left_ms:
            if self._measuring is None:
                self._measuring = start_task(self._look())
            # Shared by the producers: a cancelled send does not end the measurement of the others.
            await asyncio.shield(self._measuring)
        if self._exceeded is not None:
            name, size = self._exceeded
            bounds = (self._quota.messages, self._quota.bytes)
            raise BacklogQuotaExceeded(str(self._topic), name, (size.messages, size.bytes), bounds)

    async def _look(self) -> None:
        try:
            # A measurement that fails changes nothing: the send itself finds out what is wrong.
            with suppress(TxnFrameworkError):
                before, self._exceeded = self._exceeded, exceeding(await self._measure(), self._quota)
                self._report(before)
            self._next = Deadline(self._environment, self._quota.interval_ms)
        finally:
            self._measuring = None

    def _report(self, before: tuple[str, BacklogSize] | None) -> None:
        """Log once that producers are refused, and once that they are accepted again."""
        topic, process = str(self._topic), self._process
        if self._exceeded is not None and before is None:
            name, size = self._exceeded
            sentence = f"{process} refuses producers of {topic}: subscription {name} is {size.messages} messages behind"
            log_event(WARNING, Event.PRODUCERS_REFUSED, sentence, topic=topic, subscription=name, process=process)
        elif self._exceeded is None and before is not None:
            sentence = f"{process} accepts producers of {topic} again: subscription {before[0]} has caught up"
            facts = {"topic": topic, "subscription": before[0], "process": process}
            log_event(INFO, Event.PRODUCERS_ACCEPTED, sentence, **facts)


def exceeding(backlogs: dict[str, BacklogSize], quota: BacklogQuotaSection) -> tuple[str, BacklogSize] | None:
    """Return the first subscription, by name, whose backlog has reached a bound, with its backlog."""
    for name, size in sorted(backlogs.items()):
        if 0 <= quota.messages <= size.messages or 0 <= quota.bytes <= size.bytes:
            return name, size
    return None


class BacklogQuotas:
    """The quotas of a host's topics; the producers of a topic share one."""

    def __init__(
        self,
        config: Config,
        backlog: Backlog,
        layout: Callable[[TopicName], Awaitable[Layout]],
        environment: Environment,
        process: str,
    ) -> None:
        self._process = process
        self._config = config
        self._backlog = backlog
        self._layout = layout
        self._environment = environment
        self._quotas: WeakValueDictionary[TopicName, TopicQuota] = WeakValueDictionary()

    def of(self, topic: TopicName) -> TopicQuota | None:
        """Return the quota of a topic; None: it has none."""
        bounds = self._config.backlog_quota_of(f"{topic.tenant}/{topic.namespace}")
        if bounds.messages < 0 and bounds.bytes < 0:
            return None
        found = self._quotas.get(topic)
        if found is None:

            async def measure() -> dict[str, BacklogSize]:
                return await self._backlog.sizes(await self._layout(topic))

            found = self._quotas[topic] = TopicQuota(topic, bounds, measure, self._environment, self._process)
        return found
