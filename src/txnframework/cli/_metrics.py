"""``txnframework metrics``: how the stores stand, in the format that Prometheus scrapes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from txnframework.broker import StatusReport
from txnframework.cli._config_option import config_option
from txnframework.cli._exporter import answering
from txnframework.cli._loaded import Loaded
from txnframework.cli._opening import with_client
from txnframework.client import Client
from txnframework.errors import InvalidInput, MissingExtra, TxnFrameworkError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

SCRAPE_S = 60


@click.command()
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Answer scrapes at this address until stopped, instead of printing once; port 0: any that is free.",
)
@config_option
@click.pass_obj
def metrics(loaded: Loaded, listen: str | None, config: Path | None) -> None:
    """
    Tell how the stores stand, for Prometheus.

    Open transactions and the age of the oldest, operations that wait to be settled, messages that nobody may read yet,
    and what each subscription has before it. One process does for a system: none of it is a process's own. What a
    process measures of itself, it exports by txnframework.open(..., metrics=...).
    """
    _require_exporter()
    if listen is None:
        click.echo(with_client(loaded, config, _printed), nl=False)
        return
    host, port = _address(listen)
    with_client(loaded, config, lambda client: _serve(client, host, port))


def families_of(report: StatusReport) -> Iterator[Metric]:
    """Yield a report as Prometheus' metric families."""
    from prometheus_client.metrics_core import GaugeMetricFamily as Gauge

    opened = Gauge("txnframework_open_transactions", "Transactions that are open.", labels=["family"])
    oldest = Gauge(
        "txnframework_oldest_open_transaction_age_seconds", "Age of the oldest open transaction.", labels=["family"]
    )
    outstanding = Gauge(
        "pulsar_txn_metadata_store_outstanding_op_records",
        "Operations of transactions that have ended which nobody has settled yet.",
        labels=["family"],
    )
    for one in report.families:
        opened.add_metric([one.family], one.open_count)
        oldest.add_metric([one.family], (one.oldest_age_ms or 0) / 1000)
        outstanding.add_metric([one.family], one.operations_left)
    undecided = Gauge(
        "txnframework_undecided_messages",
        "Confirmed messages that may not be read yet, because an open transaction is before them.",
        labels=["segment"],
    )
    lag = Gauge(
        "txnframework_subscription_lag_messages",
        "Messages that may be read and that the subscription has not acknowledged.",
        labels=["topic", "subscription"],
    )
    for topic in report.topics:
        for segment, messages in sorted(topic.undecided.items()):
            undecided.add_metric([segment], messages)
        for subscription, messages in sorted(topic.lags.items()):
            lag.add_metric([topic.topic, subscription], messages)
    yield from (opened, oldest, outstanding, undecided, lag)


class _Scraped:
    """
    Looks at the stores whenever it is scraped, from a thread of the HTTP server.

    While they cannot be asked, it says that alone; standard error gets one line when that begins, and one when it ends.
    """

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._lock = threading.Lock()
        self._is_up = True

    def collect(self) -> Iterator[Metric]:
        looking = asyncio.run_coroutine_threadsafe(self._client.host.status.report(), self._loop)
        try:
            report = looking.result(SCRAPE_S)
        except TxnFrameworkError as error:
            self._note(str(error))
            yield up_of(False)
        except TimeoutError:
            looking.cancel()
            self._note(f"they did not answer within {SCRAPE_S} s")
            yield up_of(False)
        else:
            self._note(None)
            yield up_of(True)
            yield from families_of(report)

    def _note(self, reason: str | None) -> None:
        with self._lock:
            was_up, self._is_up = self._is_up, reason is None
        if was_up and reason is not None:
            click.echo(f"The stores cannot be asked: {' '.join(reason.split())}", err=True)
        elif not was_up and reason is None:
            click.echo("The stores answer again.", err=True)


def up_of(is_up: bool) -> Metric:
    """Return whether the stores answered, as a metric."""
    from prometheus_client.metrics_core import GaugeMetricFamily

    return GaugeMetricFamily("txnframework_up", "Whether the stores answered this scrape.", value=int(is_up))


class _Looked:
    """What was seen already."""

    def __init__(self, report: StatusReport) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        yield up_of(True)
        yield from families_of(self._report)


async def _printed(client: Client) -> str:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Looked(await client.host.status.report()))
    return generate_latest(registry).decode()


async def _serve(client: Client, host: str, port: int) -> None:
    async with serving(client, host, port) as served:
        click.echo(f"Metrics at http://{host}:{served}/metrics; stop with Ctrl-C.")
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def serving(client: Client, host: str, port: int) -> AsyncIterator[int]:
    """Answer scrapes by looking at the stores each time; gives the port."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)  # which would collect now, and wait for this very loop
    registry.register(_Scraped(client, asyncio.get_running_loop()))
    answers = answering(registry, host, port)
    server = answers.__enter__()
    try:
        yield server.server_port
    finally:
        # The server's threads may be waiting for this loop to answer a scrape.
        await asyncio.to_thread(answers.__exit__, None, None, None)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidInput(f"--listen {text}: write HOST:PORT, such as 127.0.0.1:9464")
    return host.strip("[]"), int(port)


def _require_exporter() -> None:
    try:
        import prometheus_client  # noqa: F401 - asked for here, so that the sentence comes before any work
    except ImportError as error:
        raise MissingExtra("txnframework metrics", "metrics", "prometheus_client") from error
