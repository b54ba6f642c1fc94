"""What the console remembers of topics, so that many views cost few reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from txnframework.client import Client, FamilyStatus, TopicDescription
from txnframework.environment import Environment
from txnframework.errors import NotFound
from txnframework.model.layout import Layout
from txnframework.model.names import TopicName
from txnframework.runtime.tasks import start_task
from txnframework_console.remembered import Remembered, read_exception

PAGE_TOPICS = 200
"""The topics that are listed at a time: decoding a page keeps the console from answering."""
FRESH_MS = 1_000
"""How long the description of a topic is used before it is read again."""
RATE_MS = 10_000
"""The shortest time over which a rate is measured, once that much time has been watched."""
CONCURRENT_READS = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """
    The description of a topic at one time.

    ``earlier_ms`` and ``earlier_messages``: an earlier time, and how many messages were stored then; None: this is the
    first sample.
    """

    at_ms: int
    topic: TopicDescription
    earlier_ms: int | None = None
    earlier_messages: int = 0

    @property
    def messages(self) -> int:
        """The number of stored messages."""
        return sum(one.messages for one in self.topic.segments)

    @property
    def undecided(self) -> int:
        """The number of messages that wait for an open transaction."""
        return sum(one.undecided for one in self.topic.segments)

    @property
    def messages_per_s(self) -> float | None:
        """How many messages were stored in each second since the earlier time; None: not known yet."""
        if self.earlier_ms is None or self.at_ms <= self.earlier_ms:
            return None
        return max(0, self.messages - self.earlier_messages) * 1_000 / (self.at_ms - self.earlier_ms)


class Catalog:
    """
    The layouts of all topics, the numbers of transactions, and the last description of each topic that was needed.

    Concurrent callers share one read. ``survey`` reads a bounded number of further topics, the stalest first, so that
    views can order all topics by what was read of them.
    """

    def __init__(self, client: Client, environment: Environment) -> None:
        self._client = client
        self._environment = environment
        self._layouts = Remembered(self._list, environment)
        self._families = Remembered(client.count_transactions, environment)
        self._samples: dict[str, Sample] = {}
        self._reading: dict[str, asyncio.Task[Sample | None]] = {}
        self._slots = asyncio.Semaphore(CONCURRENT_READS)

    async def layouts(self) -> dict[str, Layout]:
        """Return the layouts of all topics by name, in the order of ``Client.list_topics``."""
        return await self._layouts.get()

    async def families(self) -> tuple[FamilyStatus, ...]:
        """Return the numbers of transactions by family, which may be some seconds old."""
        return await self._families.get()

    def sample(self, topic: str) -> Sample | None:
        """Return the last sample of a topic, which may be old; None: it was not read yet."""
        return self._samples.get(topic)

    async def read(self, topics: Iterable[str]) -> dict[str, Sample]:
        """Return samples of these topics that are at most ``FRESH_MS`` old; topics that do not exist are left out."""
        names = tuple(dict.fromkeys(topics))
        found = await asyncio.gather(*map(self._fresh, names))
        return {name: one for name, one in zip(names, found, strict=True) if one is not None}

    async def survey(self, topics_max: int) -> int:
        """Read the topics that were read longest ago; return how many topics have not been read at all."""
        names = await self.layouts()
        stalest = sorted(names, key=lambda one: self._samples[one].at_ms if one in self._samples else 0)
        await self.read(stalest[:topics_max])
        return sum(one not in self._samples for one in names)

    def forget(self, topic: str) -> None:
        """Read a topic, the list and the numbers anew the next time, because something was changed here."""
        self._samples.pop(topic, None)
        self._layouts.forget()
        self._families.forget()

    async def _fresh(self, topic: str) -> Sample | None:
        known = self._samples.get(topic)
        if known is not None and self._environment.monotonic_ms() - known.at_ms < FRESH_MS:
            return known
        reading = self._reading.get(topic)
        if reading is None:
            reading = self._reading[topic] = start_task(self._read(topic))
            reading.add_done_callback(partial(self._end_reading, topic))
        return await asyncio.shield(reading)

    async def _read(self, topic: str) -> Sample | None:
        async with self._slots:
            try:
                described = await self._client.describe_topic(TopicName.parse(topic))
            except NotFound:
                self._samples.pop(topic, None)
                return None
        now_ms, before = self._environment.monotonic_ms(), self._samples.get(topic)
        sample = Sample(now_ms, described)
        if before is not None:
            since = before.earlier_ms
            keeps = since is not None and before.at_ms - since < RATE_MS
            earlier = (since, before.earlier_messages) if keeps else (before.at_ms, before.messages)
            sample = Sample(now_ms, described, *earlier)
        self._samples[topic] = sample
        return sample

    def _end_reading(self, topic: str, done: asyncio.Task[Sample | None]) -> None:
        self._reading.pop(topic, None)
        read_exception(done)

    async def _list(self) -> dict[str, Layout]:
        found: dict[str, Layout] = {}
        after: TopicName | None = None
        while page := await self._client.list_topics(after=after, topics_max=PAGE_TOPICS):
            found.update({str(one.topic): one for one in page})
            after = page[-1].topic
            if len(page) < PAGE_TOPICS:
                break
        self._samples = {name: one for name, one in self._samples.items() if name in found}
        return found
