"""The command ``txnframework demo``, and its exit statuses."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click

from txnframework.cli import terminal
from txnframework.errors import InvalidInput
from txnframework.plugin import load_plugins
from txnframework.testing.servers.embedded import started
from txnframework_spark.demo.input import movielens_path, read_input
from txnframework_spark.demo.report import Outcome
from txnframework_spark.demo.run import DemoSettings, run_demo
from txnframework_spark.demo.stores import StoreUrls
from txnframework_spark.errors import UnusableDirectory
from txnframework_spark.session import check_java

EPILOG = """\
Exit status: 0 if no row was lost, duplicate, wrong or in a partial transaction, and every kill hit its point; 1 if not;
2 if the command line is invalid, or Java 17 is missing.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--input",
    "source",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Input rows: CSV with a header row, or JSON lines. Rows are identified by line number."
    "  [default: the 1,501 MovieLens ratings that PySpark ships]",
)
@click.option(
    "--metadata",
    metavar="URL",
    help="Store for transactions, layouts and cursors; embedded-postgresql, embedded-zookeeper or embedded-nats starts"
    " a server for the demo.  [default: a SQLite file in the directory]",
)
@click.option(
    "--ledger", metavar="URL", help="Store for messages.  [default: the same as --metadata, if it can store messages]"
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory for the checkpoint, the logs and the SQLite file; it must be empty, and is kept."
    "  [default: a temporary one, kept only after a failure]",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="ROWS",
    help="Rows in a micro-batch.  [default: a number that makes more than ten batches]",
)
@click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Tables, or one JSON object on one line.",
)
@click.pass_context
def demo(
    ctx: click.Context,
    source: Path | None,
    metadata: str | None,
    ledger: str | None,
    directory: Path | None,
    batch_size: int | None,
    output: str,
) -> None:
    """
    Run an exactly-once Spark pipeline, kill it repeatedly, and check every row.

    Loads the input into a topic and starts a Structured Streaming job in a separate process. The job reads the topic,
    writes every row, enriched, to one topic, and alerts for some rows to another. While it runs, its Python and its
    JVM get SIGKILL at critical points, segments are split under an open transaction, and Spark's checkpoint is deleted.
    Finally a new consumer reads both outputs and compares them with the results of plain Python: no loss, no
    duplicates, no partial transactions.

    Takes about three minutes on two cores.
    """
    check_java()
    read = read_input(source or movielens_path())
    with (
        _working_directory(directory) as (place, keep),
        _interrupted_by_sigterm(),
        started(load_plugins(), metadata, ledger) as (metadata_url, ledger_url),
    ):
        settings = DemoSettings(read, place, StoreUrls.of(metadata_url, ledger_url, place), batch_size)
        outcome = run_demo(settings, terminal.console(stderr=True))
        if not outcome.ok:
            keep()
        _print(outcome, output)
    ctx.exit(0 if outcome.ok else 1)


def _print(outcome: Outcome, output: str) -> None:
    if output == "json":
        click.echo(outcome.to_json())
        return
    outcome.print_to(terminal.console())


@contextlib.contextmanager
def _working_directory(chosen: Path | None) -> Iterator[tuple[Path, _Keep]]:
    """Provide an empty directory; a temporary one is removed afterwards unless it is to be kept or the demo failed."""
    if chosen is not None:
        yield _made(chosen), _Keep()
        return
    place = Path(tempfile.mkdtemp(prefix="txnframework-demo-")).resolve()
    keep = _Keep()
    try:
        yield place, keep
    except InvalidInput:
        raise  # nothing was started
    except Exception:
        keep()
        raise
    finally:
        if keep.kept:
            click.echo(f"All files are kept in {place}", err=True)
        else:
            shutil.rmtree(place, ignore_errors=True)


class _Keep:
    """Keeps the directory when it is called."""

    kept = False

    def __call__(self) -> None:
        self.kept = True


def _made(place: Path) -> Path:
    try:
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise UnusableDirectory(place, "it is not empty")
    except OSError as error:
        raise UnusableDirectory(place, (error.strerror or str(error)).lower()) from error
    if not os.access(place, os.W_OK | os.X_OK):
        raise UnusableDirectory(place, "it cannot be written to")
    return place.resolve()


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that no Spark process is left."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
