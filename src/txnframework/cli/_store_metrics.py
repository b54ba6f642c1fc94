"""Readings of the stores for scrapes, and the metric families that they become."""

from __future__ import annotations

import asyncio
import gzip
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from time import monotonic
from typing import TYPE_CHECKING

from txnframework.broker import StatusReport
from txnframework.client import Client
from txnframework.runtime.tasks import start_task

if TYPE_CHECKING:
    from prometheus_client.metrics_core import GaugeMetricFamily, Metric

SCRAPE_TIMEOUT_S = 60
GZIP_LEVEL = 1
"""The fastest one: names repeat, so that it makes them small enough."""


def families_of(report: StatusReport) -> Iterator[Metric]:
    """Yield the metric families of a report."""
    opened = _gauge("open_transactions", "Transactions that are open.", "family")
    oldest = _gauge("oldest_open_transaction_age_seconds", "Age of the oldest open transaction.", "family")
    unsettled = _gauge("unsettled_operations", "Operations of ended transactions that are not settled yet.", "family")
    for one in report.families:
        opened.add_metric([one.family], one.open_count)
        oldest.add_metric([one.family], (one.oldest_age_ms or 0) / 1000)
        unsettled.add_metric([one.family], one.operations_left)
    undecided = _gauge(
        "undecided_messages",
        "Confirmed messages that cannot be read yet, because they wait for an open transaction.",
        "topic",
        "segment",
    )
    messages = _gauge("stored_messages", "Messages that are stored.", "topic", "segment")
    stored = _gauge("stored_bytes", "Size of the messages that are stored.", "topic", "segment")
    lag = _gauge(
        "subscription_lag_messages",
        "Readable messages that the subscription has not acknowledged.",
        "topic",
        "subscription",
    )
    age = _gauge(
        "oldest_unacknowledged_message_age_seconds",
        "Age of the oldest readable message that the subscription has not acknowledged; 0: there is none.",
        "topic",
        "subscription",
    )
    letters = _gauge(
        "dead_letters", "Messages in the subscription's default dead-letter topic.", "topic", "subscription"
    )
    for topic in report.topics:
        for segment in topic.segments:
            names = [topic.topic, segment.segment]
            undecided.add_metric(names, segment.undecided)
            messages.add_metric(names, segment.messages)
            stored.add_metric(names, segment.bytes)
        for one_of in topic.subscriptions:
            names = [topic.topic, one_of.subscription]
            lag.add_metric(names, one_of.lag)
            age.add_metric(names, (one_of.oldest_age_ms or 0) / 1000)
            letters.add_metric(names, one_of.dead_letters)
    yield from (opened, oldest, unsettled, undecided, messages, stored, lag, age, letters)


def _gauge(name: str, description: str, *labels: str) -> GaugeMetricFamily:
    from prometheus_client.metrics_core import GaugeMetricFamily

    return GaugeMetricFamily(f"txnframework_{name}", description, labels=labels)


def build_info() -> Metric:
    """Return the metric that names the versions of the exporter and of Python."""
    family = _gauge("build_info", "Always 1; the labels name the versions.", "version", "python")
    family.add_metric([version("txnframework"), platform.python_version()], 1)
    return family


@dataclass(frozen=True, slots=True)
class Exposition:
    """Metrics in the text format of Prometheus, and the same text compressed."""

    plain: bytes
    compressed: bytes


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """
    A report, how long it took to read it, and its text for scrapes.

    ``at_s``: the time when it was complete, as ``time.monotonic`` counts.
    """

    report: StatusReport
    duration_s: float
    at_s: float
    body: Exposition


class StatusReader:
    """
    Reads the stores for scrapes, once at a time however many scrapes wait.

    A scrape waits for a new reading for ``wait_s`` at most. If the reading takes longer, the scrape gets the last one,
    and the reading continues for the next scrape. The first scrape waits for the first reading.

    ``client`` returns the client of the stores. It raises the error while there is none.
    """

    def __init__(self, client: Callable[[], Client], wait_s: float) -> None:
        self._client = client
        self.wait_s = wait_s
        """How long a scrape waits for a new reading."""
        self.last: StatusSnapshot | None = None
        """The last reading; None: there is none, or the stores are unavailable. Any thread may read it."""
        self._reading: asyncio.Task[StatusSnapshot] | None = None

    async def reading(self) -> StatusSnapshot:
        """
        Return a new reading, or the last one.

        :raises TxnFrameworkError: the stores could not be read.
        :raises TimeoutError: the stores did not answer within ``SCRAPE_TIMEOUT_S``.
        """
        if self._reading is None or self._reading.done():
            self._reading = start_task(self._read())
            self._reading.add_done_callback(_read_exception)
        reading = self._reading
        done, _ = await asyncio.wait({reading}, timeout=SCRAPE_TIMEOUT_S if self.last is None else self.wait_s)
        if done:
            return reading.result()
        if self.last is None:
            raise TimeoutError
        return self.last

    async def close(self) -> None:
        """Stop a reading that no scrape has waited for."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> StatusSnapshot:
        began_s = monotonic()
        try:
            async with asyncio.timeout(SCRAPE_TIMEOUT_S):
                report = await self._client().host.status.report()
                # Once for each reading and not for each scrape, and beside the loop: the text may have megabytes.
                body = await asyncio.to_thread(body_of, report)
        except BaseException:
            self.last = None  # the stores are unavailable, which the next scrape must not hide
            raise
        self.last = StatusSnapshot(report, monotonic() - began_s, monotonic(), body)
        return self.last


def head_of(reading: StatusSnapshot | None) -> bytes:
    """Return the text that is written for each scrape, before the body of its reading; None: there is none."""
    if reading is None:
        return _text_of([up_of(False)])
    families = [up_of(True), build_info()]
    age_s = monotonic() - reading.at_s
    for name, description, value in (
        ("report_age_seconds", "Age of the other metrics: the time since the stores were read.", age_s),
        ("report_duration_seconds", "Time that it took to read the stores.", reading.duration_s),
    ):
        family = _gauge(name, description)
        family.add_metric([], value)
        families.append(family)
    return _text_of(families)


def body_of(report: StatusReport) -> Exposition:
    """Return the text of a report."""
    text = _text_of(families_of(report))
    return Exposition(text, compressed(text))


def compressed(text: bytes) -> bytes:
    """Return a text for clients that accept gzip."""
    return gzip.compress(text, GZIP_LEVEL)


def _text_of(families: Iterable[Metric]) -> bytes:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry)


class _Families:
    """Collects metric families that are known."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def up_of(is_up: bool) -> Metric:
    """Return the metric of whether the stores are available."""
    family = _gauge("up", "Whether the stores answered (1) or not (0).")
    family.add_metric([], int(is_up))
    return family


def _read_exception(reading: asyncio.Task[StatusSnapshot]) -> None:
    """Keep asyncio from reporting the failure of a reading that no scrape waits for; the next scrape reads again."""
    if not reading.cancelled():
        reading.exception()
