"""The command ``txnframework replicate``."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click
from rich.markup import escape

from txnframework.cli.addresses import is_local, parse_address
from txnframework.cli.output import duration_of, output_option, print_facts, print_json_line
from txnframework.cli.stores import ConfigPath, LoadedPlugins, settings_of, with_client
from txnframework.cli.terminal import console
from txnframework.cli.wsgi_server import serving_in_threads
from txnframework.client import Client, open
from txnframework.errors import MissingExtra, TxnFrameworkError
from txnframework.model.names import TopicName
from txnframework.runtime.tasks import start_task
from txnframework_geo._replicator import Replicator
from txnframework_geo._values import Replication, Stage, Step

if TYPE_CHECKING:
    from txnframework.metrics import Metrics

REPORTS_EVERY_S = 10

EXAMPLES = """\b
Replicate two topics that share transactions, continuously:
  txnframework replicate --from berlin.toml --to tokyo.toml orders invoices
Copy what there is now, and end:
  txnframework replicate --from berlin.toml --to tokyo.toml --once orders
Add a topic later, under another name:
  txnframework replicate --from berlin.toml --to tokyo.toml --name returns returns
Replicate in the other direction, too; nothing is sent back:
  txnframework replicate --from tokyo.toml --to berlin.toml orders invoices
"""


@click.command(epilog=EXAMPLES)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--from",
    "source",
    type=ConfigPath(),
    metavar="FILE",
    required=True,
    help="Configuration file of the deployment to replicate from.",
)
@click.option(
    "--to",
    "target",
    type=ConfigPath(),
    metavar="FILE",
    required=True,
    help="Configuration file of the deployment to replicate to.",
)
@click.option(
    "--name", default="default", show_default=True, help="Name of the replication; it always has the same topics."
)
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

    Copies each committed message of TOPIC... once, and keeps the order of each key. A transaction over several of these
    topics is never visible in part. Both deployments may be in use. Topics that the target does not have are created.

    Runs until Ctrl-C or SIGTERM. Interrupt it at any time: the next run continues. Several processes may run the same
    command: one works, and another one takes over when it dies.
    """
    replication = Replication(tuple(TopicName.parse(one) for one in topics), name, forward)
    settings = settings_of(loaded, target)
    report = _Report(output)

    async def work(client: Client) -> None:
        with _metrics_at(metrics) as recorded:
            async with open(settings, registry=loaded.registry, metrics=recorded) as other:
                replicator = Replicator(client, other, replication, reached=report.reached, on_sent=report.sent)
                await _until_stopped(replicator, once, report)

    with report:
        with_client(loaded, source, work, stays=True)
    report.end(once)


async def _until_stopped(replicator: Replicator, once: bool, report: _Report) -> None:
    working = start_task(replicator.run(once=once, on_step=report.step, on_retry=report.retry))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    await asyncio.wait({working})
    if not working.cancelled():
        working.result()
        report.lag = await replicator.lag()


class _Report:
    """
    Prints what was copied: in JSON a line for each transaction, otherwise a line from time to time.

    ``lag``: in messages and ms, at the end; None: it was not measured then.

    On a terminal, a status line shows what the replicator does now; ``with`` removes it at the end.
    """

    def __init__(self, output: str) -> None:
        self._output = output
        self._transactions = self._copied = 0
        self._last: Step | None = None
        self.lag: tuple[int, int] | None = None
        self._printed_s = time.monotonic()
        self._console = console(stderr=True)
        self._shows = self._console.is_terminal and output != "json"
        self._status = self._console.status("")

    def __enter__(self) -> Self:
        if self._shows:
            self._status.start()
            self._show("waiting for the stores, or for another process that replicates under this name")
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    async def reached(self, stage: Stage) -> None:
        if stage is Stage.TAKEN:
            self._show("reading")
        elif stage is Stage.SENT:
            self._show("committing")

    def sent(self, count: int) -> None:
        self._show(f"{count:,} sent in an open transaction")

    def step(self, step: Step) -> None:
        self._transactions += 1
        self._copied += step.copied
        self._last = step
        self.lag = (step.lag_messages, step.lag_ms)
        self._show("")
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
        elif not self._shows and time.monotonic() >= self._printed_s + REPORTS_EVERY_S:
            self._printed_s = time.monotonic()
            click.echo(self._sentence())

    def retry(self, error: TxnFrameworkError) -> None:
        text = f"Continuing from what the target has: {error}"
        if self._shows:
            self._console.print(text, markup=False, highlight=False)
        else:
            click.echo(text, err=True)

    def _show(self, doing: str) -> None:
        """Show what was copied, and what is done now, if there is a terminal."""
        if self._shows:
            self._status.update(escape("; ".join(filter(None, (self._sentence(), doing)))))

    def _sentence(self) -> str:
        copied = f"{self._copied:,} messages copied in {self._transactions:,} transactions"
        return copied if self.lag is None else f"{copied}; behind by {_behind(self.lag)}"

    def end(self, once: bool) -> None:
        if self._output == "json":
            if self._last is None and once:
                messages, lag_ms = self.lag or (None, None)
                print_json_line(
                    {"transaction": None, "copied": 0, "kept": 0, "lag_messages": messages, "lag_ms": lag_ms}
                )
            return
        print_facts(
            {
                "messages copied": self._copied,
                "transactions": self._transactions,
                "behind by": None if self.lag is None else _behind(self.lag),
            }
        )


def _behind(lag: tuple[int, int]) -> str:
    messages, lag_ms = lag
    return f"{messages:,} messages, {duration_of(lag_ms)}" if messages else "0 messages"


@contextmanager
def _metrics_at(address: str | None) -> Iterator[Metrics | None]:
    """Yield metrics that are served at an address during the block; None: at no address."""
    if address is None:
        yield None
        return
    host, port = parse_address(address, "--metrics", "127.0.0.1:9464")
    if not is_local(host):
        click.echo("Note: everyone who can reach this address can read the metrics. They are not encrypted.", err=True)
    try:
        from prometheus_client import make_wsgi_app
    except ImportError as error:
        raise MissingExtra("txnframework replicate --metrics", "metrics", "prometheus_client") from error
    from txnframework.metrics import Metrics

    metrics = Metrics()
    with serving_in_threads(make_wsgi_app(metrics.registry), host, port, "--metrics") as actual_port:
        click.echo(f"Serving http://{host}:{actual_port}/metrics", err=True)
        yield metrics
