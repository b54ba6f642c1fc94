"""
An exactly-once Spark pipeline that is killed again and again, and then checked: `python docs/examples/demo`.

`pipeline.py` is the pipeline. `run.py` starts it, kills it at the moments in `faults.py`, and reads its outputs.
`rows.py` computes in plain Python what they should be, and `verdict.py` compares. `report.py` prints the outcome.
"""

import shutil
import signal
import sys
import tempfile
from pathlib import Path

import click
from rows import UnusableFile, read_rows, shipped_ratings
from run import Demo

from txnframework.cli import terminal
from txnframework.config import store_name
from txnframework.errors import InvalidInput
from txnframework.plugin import Role, load_plugins
from txnframework.testing.servers.embedded import started
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
    help="Input rows: CSV with a header row, or JSON lines.  [default: the 1,501 MovieLens ratings of PySpark]",
)
@click.option(
    "--metadata",
    metavar="URL",
    help="Store for metadata; embedded-postgresql, embedded-zookeeper or embedded-nats starts a server for the demo."
    "  [default: a SQLite file in the directory]",
)
@click.option("--ledger", metavar="URL", help="Store for messages.  [default: that of --metadata, if it can]")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="An empty directory for all files, which is kept.  [default: a temporary one, kept only after a failure]",
)
@click.option("--batch-size", type=click.IntRange(min=1), help="Rows in a micro-batch.  [default: a tenth or less]")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(
    source: Path | None,
    metadata: str | None,
    ledger: str | None,
    directory: Path | None,
    batch_size: int | None,
    output: str,
) -> None:
    """
    Run an exactly-once Spark pipeline, kill it repeatedly, and check every row.

    The pipeline reads a topic and writes to two topics. While it runs, its Python and its JVM get SIGKILL at critical
    points, segments are split under an open transaction, and Spark's checkpoint is deleted. Finally a new consumer
    reads both outputs and compares them with the results of plain Python.

    Takes about three minutes on two cores.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # embedded servers are stopped
    made = directory or Path(tempfile.mkdtemp(prefix="txnframework-demo-"))
    outcome = None
    try:
        check_java()
        source = source or shipped_ratings()
        rows = read_rows(source)
        require_empty(made)
        with started(load_plugins(), metadata, ledger) as urls:
            demo = Demo(source, rows, store_urls(made, *urls), made.resolve(), batch_size)
            outcome = demo.run(terminal.console(stderr=True))
    except (InvalidInput, UnusableFile) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    finally:
        if directory is None and (outcome is None or outcome.ok):
            shutil.rmtree(made, ignore_errors=True)
        elif directory is None:
            click.echo(f"All files are kept in {made}", err=True)
    if output == "json":
        click.echo(outcome.to_json())
    else:
        outcome.print_to(terminal.console())
    sys.exit(0 if outcome.ok else 1)


def require_empty(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UnusableFile(f"--directory: {directory} is not empty")
    except OSError as error:
        raise UnusableFile(f"--directory: {directory}: {error.strerror}") from error


def store_urls(directory: Path, metadata: str | None, ledger: str | None) -> tuple[str, str]:
    """Return the URLs of the metadata store and of the ledger store; the pipeline's processes must share them."""
    registry = load_plugins()
    own = f"sqlite:///{directory.resolve() / 'txn.db'}"
    metadata = metadata or own
    scheme = store_name(metadata)
    keeps_messages = scheme in registry.names(Role.LEDGER_STORE) or scheme not in registry.names(Role.METADATA_STORE)
    ledger = ledger or (metadata if keeps_messages else own)
    for option, url in (("--metadata", metadata), ("--ledger", ledger)):
        if store_name(url) == "memory":
            raise UnusableFile(f"{option}: a store in memory exists in one process only; the demo runs several")
    return metadata, ledger


if __name__ == "__main__":
    main()
