"""The commands of ``txnframework job``, and their output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from txnframework.broker import Order
from txnframework.cli import terminal
from txnframework.cli.output import output_option, print_json, print_records
from txnframework.model.names import TopicName
from txnframework_spark import process
from txnframework_spark.jobs.audit.acknowledgments import Flow
from txnframework_spark.jobs.audit.audit import AuditJob
from txnframework_spark.jobs.compaction import Compaction, CompactionReport, select_segments
from txnframework_spark.jobs.export import Export
from txnframework_spark.jobs.export_folder import ExportFolder
from txnframework_spark.jobs.session import JobProgress, session
from txnframework_spark.options.parser import StoreOptions, parse_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG_FILE: Final = "txnframework.toml"
TASK_MESSAGES: Final = 100_000
_FINDINGS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options that all jobs share; ``task_messages``: about the messages of a task."""

    stores: StoreOptions
    master: str
    task_messages: int
    output: str

    @contextmanager
    def session(self, name: str) -> Iterator[tuple[SparkSession, JobProgress]]:
        """Provide Spark's session of a job, and the display of its progress."""
        progress = JobProgress(terminal.console(stderr=True))
        with session(self.master, f"txnframework job {name}", self.stores) as spark, progress.shown():
            yield spark, progress


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all jobs share; the command gets them as its first argument."""

    @wraps(command)
    def call(config: Path | None, master: str, task_messages: int, output: str, **own: object) -> None:
        command(JobOptions(stores_of(config), master, task_messages, output), **own)

    for option in (
        output_option,
        click.option(
            "--config",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            envvar="TXNFRAMEWORK_CONFIG",
            metavar="FILE",
            help=f"Configuration file.  [default: {CONFIG_FILE} if it exists, otherwise the embedded database]",
        ),
        click.option(
            "--task-messages",
            type=click.IntRange(min=1),
            default=TASK_MESSAGES,
            show_default=True,
            help="Approximate number of messages of a task.",
        ),
        click.option("--master", default="local[*]", show_default=True, help="Spark master."),
    ):
        call = option(call)
    return call


@click.group("job", no_args_is_help=True)
def jobs() -> None:
    """
    Run batch jobs over whole topics or deployments, on Spark.

    The result of a job becomes visible in one step at its end. A killed job has no effect; run it again.
    """


@jobs.command()
@click.argument("topic")
@click.option("--segment", type=click.IntRange(min=0), help="Compact only this segment.  [default: all segments]")
@click.option(
    "--order",
    type=click.Choice(["commit", "position"]),
    default="commit",
    show_default=True,
    help="Order of messages: by the commit of their transactions, or by position.",
)
@click.option("--dry-run", is_flag=True, help="Read all messages and report what would be kept; change nothing.")
@job_options
def compact(job: JobOptions, topic: str, segment: int | None, order: Order, dry_run: bool) -> None:
    """
    Write the committed messages of TOPIC to a compacted copy.

    The topic, its readers and its consumers are unaffected. 'topic consume --compacted' reads the copy, and then
    continues in the topic. Each segment is compacted up to its first undecided message; WAITS FOR names the open
    transactions that delay the rest.
    """
    name = TopicName.parse(topic)
    host = process.host(job.stores)
    segments = select_segments(process.run(host.topics.layout(name)), segment)
    with job.session(f"compact {name.name}") as (spark, progress):
        found = Compaction(job.stores, order, job.task_messages, dry_run).run(spark, segments, progress)
    documents = [one.document() for one in found]
    if job.output == "json":
        print_json({"topic": str(name), "order": order, "dry_run": dry_run, "segments": documents})
        return
    print_records(documents)
    _print_open_transactions(found)


@jobs.command()
@click.argument("topic")
@click.option("--to", "folder", required=True, metavar="FOLDER", help="Target folder; all machines must share it.")
@click.option(
    "--partition-by",
    type=click.Choice(["date"]),
    help="One folder for each day on which messages were sent (UTC), as the column date.",
)
@click.option("--skip-trimmed", is_flag=True, help="Skip messages that retention removed before their export.")
@job_options
def export(job: JobOptions, topic: str, folder: str, partition_by: str | None, skip_trimmed: bool) -> None:
    """
    Write the messages committed to TOPIC since the last export as Parquet.

    Each run creates one folder below FOLDER: export=1, export=2 and so on. The folder becomes visible in one step when
    it is complete. A run after a kill loses and repeats nothing. FOLDER itself records the end of the last export.
    """
    name = TopicName.parse(topic)
    work = Export(job.stores, name, ExportFolder.of(folder), job.task_messages, partition_by is not None, skip_trimmed)
    work.plan(process.host(job.stores))  # invalid usage is reported before Spark is started
    with job.session(f"export {name.name}") as (spark, progress):
        document = work.run(spark, progress).document()
    if job.output == "json":
        print_json({"topic": str(name), **document})
    elif document["export"] is None:
        click.echo(f"Nothing was committed to {topic} since the last export.")
    else:
        del document["upto"]
        print_records([document])


@jobs.command()
@click.option("--to", "file", required=True, metavar="FILE", help="New file for the report, as JSON.")
@click.option(
    "--flow",
    "flows",
    nargs=3,
    multiple=True,
    metavar="INPUT SUBSCRIPTION OUTPUT",
    help="Each message of INPUT that SUBSCRIPTION has acknowledged must have one in OUTPUT. May be repeated.",
)
@click.option("--match", default="key", show_default=True, help="SQL expression by which --flow matches messages.")
@click.option("--match-output", help="The expression over messages of OUTPUT.  [default: that of --match]")
@click.option("--since", metavar="FILE", help="Earlier report: what it has read must be unchanged.")
@job_options
def audit(
    job: JobOptions,
    file: str,
    flows: tuple[tuple[str, str, str], ...],
    match: str,
    match_output: str | None,
    since: str | None,
) -> None:
    """
    Read a whole deployment, and prove that its transactions are whole.

    Nothing is changed, and other processes may go on. The exit status is 1 if a contradiction was found.
    """
    asked = tuple(
        Flow(parse_topic("--flow", source), name, parse_topic("--flow", target), match, match_output or match)
        for source, name, target in flows
    )
    earlier = None if since is None else Path(since)
    work = AuditJob(job.stores, Path(file).absolute(), job.task_messages, asked, earlier)
    work.check(process.host(job.stores))  # invalid usage is reported before Spark is started
    with job.session("audit") as (spark, progress):
        report = work.run(spark, progress)
    if job.output == "json":
        print_json(report.summary())
    else:
        print_records([{"check": check, "found": found} for check, found in report.checks.items()])
        for one in report.findings[:_FINDINGS_SHOWN]:
            click.echo(f"{one.check}: {one.name}: {one.detail}", err=True)
        click.echo(f"The report is {work.file}")
    if report.findings:
        click.get_current_context().exit(1)


def stores_of(config: Path | None) -> StoreOptions:
    """Return the location of the stores, valid for this process and for tasks with other working folders."""
    found = config or (Path(CONFIG_FILE) if Path(CONFIG_FILE).exists() else None)
    return StoreOptions(config=None if found is None else str(found.resolve()))


def _print_open_transactions(found: list[CompactionReport]) -> None:
    for one in found:
        held_by = one.status.held_by
        if held_by:
            holders = f"transaction {held_by[0]}" if len(held_by) == 1 else f"transactions {', '.join(held_by)}"
            place = f"{one.status.plan.upto} of {one.status.segment}"
            click.echo(
                f"Messages after {place} wait for {holders}: run this command again after they have ended, or end them"
                " with 'txnframework transaction abort ID'.",
                err=True,
            )
