"""The commands of ``txnframework pipeline``, and their exit statuses."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from pathlib import Path

import click
from rich.console import Console

from txnframework.cli import terminal
from txnframework.cli.output import output_option, print_json
from txnframework_spark.pipeline import output as shown
from txnframework_spark.pipeline.analysis import analyse
from txnframework_spark.pipeline.frames import open_session
from txnframework_spark.pipeline.loader import load_pipeline
from txnframework_spark.pipeline.query import PipelineStart, StopRequests, run_query
from txnframework_spark.pipeline.screen import Screen
from txnframework_spark.pipeline.status import abort_open_transaction, check_topics, load_status

STATUS_INTERRUPTED = 130

EPILOG = """\
Exit status: 0 if all input was read, or after SIGTERM; 130 after Control-C; 1 if the query failed; 2 if the file or the
command line is invalid.
"""

file_argument = click.argument("file", type=click.Path(path_type=Path), default="pipeline.toml")
log_option = click.option(
    "--spark-log",
    "log",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File for Spark's own log.  [default: on a terminal a temporary file, otherwise standard error]",
)


@click.group(no_args_is_help=True)
def pipeline() -> None:
    """
    Run a Spark pipeline that is described by a file.

    FILE (default: pipeline.toml) names topics to read, a query over them, and topics to write. Each micro-batch is one
    transaction: its output and the acknowledgment of its input become visible together.
    """


@pipeline.command(epilog=EPILOG)
@file_argument
@click.option(
    "--reset",
    is_flag=True,
    help="Continue although it is unknown which messages were processed (NotJudgeable, StateLost); for one start only.",
)
@log_option
@click.pass_context
def run(ctx: click.Context, file: Path, reset: bool, log: Path | None) -> None:
    """
    Run the pipeline in FILE until all input is read, or until it is stopped.

    Relative paths in FILE are relative to the working folder. After SIGTERM or Control-C the current batch may finish,
    within stop_timeout_ms; a second signal aborts it. However the pipeline ends, the next start continues after the
    last committed batch.
    """
    described = load_pipeline(file)
    asyncio.run(check_topics(described))
    console = terminal.console()
    with StopRequests() as requests, Screen(console, described.pipeline.name) as screen:
        log = _log(log, console)
        if console.is_terminal:
            screen.say(f"Spark's own log is {log}.")
        with open_session(described, log) as spark:
            requests.listen()
            never_ran = bool(requests.count)
            stopped_run = (
                None if never_ran else run_query(spark, PipelineStart(described, file, reset), screen, requests)
            )
        given_up = stopped_run is not None and asyncio.run(abort_open_transaction(described, stopped_run))
        screen.say(shown.ending(screen, never_ran or stopped_run is not None, given_up))
    ctx.exit(STATUS_INTERRUPTED if requests.first == signal.SIGINT else 0)


@pipeline.command()
@file_argument
@log_option
@output_option
def validate(file: Path, log: Path | None, output: str) -> None:
    """
    Check the pipeline in FILE and show what it would do, without running it.

    Checks the file, the stores, the named topics, and the query as Spark analyses it. It starts a small local Spark for
    that, whatever master the file names. No code that the file names is run: a command instead of a query is refused.
    A Python function is searched but not called. Spark settings that may load code are ignored.
    """
    described = load_pipeline(file)
    sources = asyncio.run(check_topics(described))
    analysis = analyse(described, file, _log(log, terminal.console()))
    if output == "json":
        print_json(shown.analysis_document(described, analysis, sources))
    else:
        shown.print_analysis(described, analysis, sources)


@pipeline.command()
@file_argument
@output_option
def status(file: Path, output: str) -> None:
    """
    Show the progress of the pipeline in FILE.

    It is read from the stores, without Spark, whether the pipeline runs or not. BEHIND is the number of readable
    messages of a segment that are not processed yet ("at most" if aborted messages may be included).
    """
    described = load_pipeline(file)
    status = asyncio.run(load_status(described))
    if output == "json":
        print_json(shown.status_document(described, status))
    else:
        shown.print_status(described, status)


def _log(chosen: Path | None, console: Console) -> Path | None:
    if chosen is not None or not console.is_terminal:
        return chosen
    with tempfile.NamedTemporaryFile(prefix="txnframework-pipeline-", suffix=".log", delete=False) as made:
        return Path(made.name)
