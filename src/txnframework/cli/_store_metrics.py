"""Readings of the stores for scrapes, and the metric families that they become."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from txnframework.broker import StatusReport
from txnframework.client import Client

if TYPE_CHECKING:
    from prometheus_client.metrics_core import GaugeMetricFamily, Metric

SCRAPE_TIMEOUT_S = 60


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
class StatusSnapshot:
    """A report, and how long it took to read it; ``at_s``: the loop's time when it was complete."""

    report: StatusReport
    duration_s: float
    at_s: float


class StatusReader:
    """
    Reads the stores for scrapes, once at a time however many scrapes wait.

    A scrape waits for a new reading for ``wait_s`` at most. If the reading takes longer, the scrape gets the last one,
    and the reading continues for the next scrape. The first scrape waits for the first reading.
    """

    def __init__(self, client: Client, wait_s: float) -> None:
        self._client = client
        self.wait_s = wait_s
        """How long a scrape waits for a new reading."""
        self._last: StatusSnapshot | None = None
        self._reading: asyncio.Task[StatusSnapshot] | None = None

    async def reading(self) -> StatusSnapshot:
        """
        Return a new reading, or the last one.

        :raises TxnFrameworkError: the stores could not be read.
        :raises TimeoutError: the stores did not answer within ``SCRAPE_TIMEOUT_S``.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(_read_exception)
        reading = self._reading
        done, _ = await asyncio.wait({reading}, timeout=SCRAPE_TIMEOUT_S if self._last is None else self.wait_s)
        if done:
            return reading.result()
        if self._last is None:
            raise TimeoutError
        return self._last

    def age_s(self, reading: StatusSnapshot) -> float:
        """Return how old a reading is."""
        return asyncio.get_running_loop().time() - reading.at_s

    async def close(self) -> None:
        """Stop a reading that no scrape has waited for."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> StatusSnapshot:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            async with asyncio.timeout(SCRAPE_TIMEOUT_S):
                report = await self._client.host.status.report()
        except BaseException:
            self._last = None  # the stores are unavailable, which the next scrape must not hide
            raise
        self._last = StatusSnapshot(report, clock() - began_s, clock())
        return self._last


def metrics_of(reading: StatusSnapshot, age_s: float) -> Iterator[Metric]:
    """Yield all metric families of a reading that is ``age_s`` old."""
    yield up_of(True)
    yield build_info()
    for name, description, value in (
        ("report_age_seconds", "Age of the other metrics: the time since the stores were read.", age_s),
        ("report_duration_seconds", "Time that it took to read the stores.", reading.duration_s),
    ):
        family = _gauge(name, description)
        family.add_metric([], value)
        yield family
    yield from families_of(reading.report)


def up_of(is_up: bool) -> Metric:
    """Return the metric of whether the stores are available."""
    family = _gauge("up", "Whether the stores answered (1) or not (0).")
    family.add_metric([], int(is_up))
    return family


def _read_exception(reading: asyncio.Task[StatusSnapshot]) -> None:
    """Keep asyncio from reporting the failure of a reading that no scrape waits for; the next scrape reads again."""
    if not reading.cancelled():
        reading.exception()
