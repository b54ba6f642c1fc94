"""``txnframework metrics``: how the stores stand, in the format that Prometheus scrapes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from txnframework.broker import StandingReport
from txnframework.cli._config_option import config_option
from txnframework.cli._loaded import Loaded
from txnframework.cli._opening import with_client
from txnframework.client import Client
from txnframework.errors import InvalidInput, MissingExtra

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


def families_of(report: StandingReport) -> Iterator[Metric]:
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
    """Looks at the stores whenever it is scraped, from a thread of the HTTP server."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        looking = asyncio.run_coroutine_threadsafe(self._client.host.standing.report(), self._loop)
        yield from families_of(looking.result(SCRAPE_S))


class _Looked:
    """What was seen already."""

    def __init__(self, report: StandingReport) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        yield from families_of(self._report)


async def _printed(client: Client) -> str:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Looked(await client.host.standing.report()))
    return generate_latest(registry).decode()


async def _serve(client: Client, host: str, port: int) -> None:
    async with serving(client, host, port) as served:
        click.echo(f"Metrics at http://{host}:{served}/metrics; stop with Ctrl-C.")
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def serving(client: Client, host: str, port: int) -> AsyncIterator[int]:
    """Answer scrapes by looking at the stores each time; gives the port."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)  # which would collect now, and wait for this very loop
    registry.register(_Scraped(client, asyncio.get_running_loop()))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise InvalidInput(f"--listen: nothing can be served at {host}:{port}: {error.strerror}") from error
    try:
        yield server.server_port
    finally:
        # The server's thread may be waiting for this loop to answer a scrape.
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()


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
