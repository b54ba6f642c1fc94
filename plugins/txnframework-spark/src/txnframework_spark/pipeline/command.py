"""The commands of ``txnframework pipeline``, and their exit statuses."""

from __future__ import annotations

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
from txnframework_spark.pipeline.query import Start, StopRequests, run_query
from txnframework_spark.pipeline.screen import Screen
from txnframework_spark.pipeline.status import abort_open, at_stores, check_topics, load_status

STATUS_INTERRUPTED = 130

EPILOG = """\
Exit status: 0 if everything was read, or it was stopped by SIGTERM; 130 if it was stopped by Control-C; 1 if the query
failed; 2 if something in the file, or that was typed, is wrong.
"""

file_argument = click.argument("file", type=click.Path(path_type=Path), default="pipeline.toml")
log_option = click.option(
    "--spark-log",
    "log",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where Spark's own log goes.  [default: on a terminal a temporary file, otherwise standard error]",
)


@click.group(no_args_is_help=True)
def pipeline() -> None:
    """
    Run a Spark pipeline that is described by a file.

    FILE (default: pipeline.toml) names topics to read, a query over them, and topics to write. Each micro-batch is one
    transaction over all that it writes and what it has read.
    """


@pipeline.command(epilog=EPILOG)
@file_argument
@click.option(
    "--reset",
    is_flag=True,
    help="Go on where nothing tells what was processed before (NotJudgeable, StateLost); for one start only.",
)
@log_option
@click.pass_context
def run(ctx: click.Context, file: Path, reset: bool, log: Path | None) -> None:
    """
    Run the pipeline in FILE until everything is read, or until it is stopped.

    Relative paths in FILE begin at the working folder. SIGTERM and Control-C let the batch under way finish, for
    stop_timeout_ms at most; sent again, they give it up. Whatever ends the pipeline, the next start goes on exactly
    where the last committed batch ended.
    """
    told = load_pipeline(file)
    at_stores(check_topics(told))
    console = terminal.console()
    with StopRequests() as requests, Screen(console, told.pipeline.name) as screen:
        log = _log(log, console)
        if console.is_terminal:
            screen.say(f"Spark's own log is {log}.")
        with open_session(told, log) as spark:
            requests.listen()
            never_ran = bool(requests.count)
            stopped_run = None if never_ran else run_query(spark, Start(told, file, reset), screen, requests)
        given_up = stopped_run is not None and at_stores(abort_open(told, stopped_run))
        screen.say(shown.ending(screen, never_ran or stopped_run is not None, given_up))
    ctx.exit(STATUS_INTERRUPTED if requests.first == signal.SIGINT else 0)


@pipeline.command()
@file_argument
@log_option
@output_option
def validate(file: Path, log: Path | None, output: str) -> None:
    """
    Say what the pipeline in FILE would do, without doing it.

    Looks at the file, the stores, the topics that it names, and at its query as Spark analyses it; starts a small Spark
    for that, whatever master the file names. Nothing that the file names is run: a command instead of a query is
    refused, a function in Python is looked for and not called, and settings of Spark that may load code are left out.
    """
    told = load_pipeline(file)
    sources = at_stores(check_topics(told))
    analysis = analyse(told, file, _log(log, terminal.console()))
    if output == "json":
        print_json(shown.analysis_document(told, analysis, sources))
    else:
        shown.print_analysis(told, analysis, sources)


@pipeline.command()
@file_argument
@output_option
def status(file: Path, output: str) -> None:
    """
    Show how far the pipeline in FILE is.

    From the stores alone, without Spark, whether it runs or not. BEHIND is how many messages of a segment it may read
    and has not processed ("at most" where aborted ones may be among them).
    """
    told = load_pipeline(file)
    status = at_stores(load_status(told))
    if output == "json":
        print_json(shown.status_document(told, status))
    else:
        shown.print_status(told, status)


def _log(chosen: Path | None, console: Console) -> Path | None:
    if chosen is not None or not console.is_terminal:
        return chosen
    with tempfile.NamedTemporaryFile(prefix="txnframework-pipeline-", suffix=".log", delete=False) as made:
        return Path(made.name)
