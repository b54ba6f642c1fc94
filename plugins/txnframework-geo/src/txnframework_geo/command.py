"""The command ``txnframework replicate``."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from txnframework.cli.addresses import parse_address
from txnframework.cli.output import duration_of, output_option, print_facts, print_json_line
from txnframework.cli.stores import LoadedPlugins, settings_of, with_client
from txnframework.client import Client, open
from txnframework.errors import MissingExtra, TxnFrameworkError
from txnframework.model.names import TopicName
from txnframework_geo._replicator import Replicator
from txnframework_geo._values import Replication, Step

if TYPE_CHECKING:
    from txnframework.metrics import Metrics

REPORTS_EVERY_S = 10


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="Configuration file of the deployment to replicate from.",
)
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="Configuration file of the deployment to replicate to.",
)
@click.option("--name", default="default", show_default=True, help="Name of the replication in the target.")
@click.option("--once", is_flag=True, help="Copy what there is now, and end.")
@click.option("--forward", is_flag=True, help="Also replicate messages that came from other deployments.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve metrics to Prometheus at this address.")
@output_option
@click.pass_obj
def replicate(
    loaded: LoadedPlugins,
    topics: tuple[str, ...],
    source: Path,
    target: Path,
    name: str,
    once: bool,
    forward: bool,
    metrics: str | None,
    output: str,
) -> None:
    """
    Replicate committed transactions, whole, to another deployment.

    The target gets each message of TOPIC... once, in the order of its key, and never a part of a transaction. Both
    deployments may be in use. Topics that the target does not have are created. Several processes may run the same
    command: one works, and another takes over when it dies. Interrupt the command at any time; the next run continues.
    Runs until Ctrl-C or SIGTERM, or with --once until it has copied what there was at the start.

    For example: txnframework replicate --from berlin.toml --to tokyo.toml orders invoices
    """
    replication = Replication(tuple(TopicName.parse(one) for one in topics), name, forward)
    settings = settings_of(loaded, target)
    report = _Report(output)

    async def work(client: Client) -> None:
        with _metrics_at(metrics) as recorded:
            async with open(settings, registry=loaded.registry, metrics=recorded) as other:
                await _until_stopped(Replicator(client, other, replication), once, report)

    with_client(loaded, source, work, stays=True)
    report.end(once)


async def _until_stopped(replicator: Replicator, once: bool, report: _Report) -> None:
    working = asyncio.ensure_future(replicator.run(once=once, on_step=report.step, on_retry=report.retry))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    await asyncio.wait({working})
    if not working.cancelled():
        working.result()


class _Report:
    """Prints what was copied: in JSON a line for each transaction, otherwise a line from time to time."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._transactions = self._copied = 0
        self._last: Step | None = None
        self._printed_s = time.monotonic()

    def step(self, step: Step) -> None:
        self._transactions += 1
        self._copied += step.copied
        self._last = step
        if self._output == "json":
            print_json_line(
                {
                    "transaction": step.number,
                    "copied": step.copied,
                    "kept": step.kept,
                    "lag_messages": step.lag_messages,
                    "lag_ms": step.lag_ms,
                }
            )
        elif time.monotonic() >= self._printed_s + REPORTS_EVERY_S:
            self._printed_s = time.monotonic()
            click.echo(
                f"{self._copied:,} messages copied in {self._transactions:,} transactions;"
                f" behind by {step.lag_messages:,} messages, {duration_of(step.lag_ms)}"
            )

    def retry(self, error: TxnFrameworkError) -> None:
        click.echo(f"Continuing from what the target has: {error}", err=True)

    def end(self, once: bool) -> None:
        if self._output == "json":
            if self._last is None and once:
                print_json_line({"transaction": None, "copied": 0, "kept": 0, "lag_messages": None, "lag_ms": None})
            return
        print_facts(
            {
                "messages copied": self._copied,
                "transactions": self._transactions,
                "behind by": None if self._last is None else f"{self._last.lag_messages} messages",
            }
        )


@contextmanager
def _metrics_at(address: str | None) -> Iterator[Metrics | None]:
    """Yield metrics that are served at an address during the block; None: at no address."""
    if address is None:
        yield None
        return
    host, port = parse_address(address, "--metrics", "127.0.0.1:9464")
    try:
        from prometheus_client import start_http_server
    except ImportError as error:
        raise MissingExtra("txnframework replicate --metrics", "metrics", "prometheus_client") from error
    from txnframework.metrics import Metrics

    metrics = Metrics()
    server, thread = start_http_server(port, host, registry=metrics.registry)
    click.echo(f"Serving http://{host}:{server.server_port}/metrics", err=True)
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
