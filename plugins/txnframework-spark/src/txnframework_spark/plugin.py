"""Commands that this distribution adds to the command line: ``txnframework pipeline`` and ``job``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnframework.plugin import Command, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def txnframework_commands() -> Iterable[Command]:
    """Return the commands; their dependencies (click, rich, PySpark) are imported when they are used."""
    return (
        Command("pipeline", "Run an exactly-once Spark pipeline that is described by a file.", _pipeline),
        Command("job", "Compact or export whole topics, or audit a deployment, on Spark.", _job),
    )


def _pipeline() -> click.Command:
    from txnframework_spark.pipeline.command import pipeline

    return pipeline


def _job() -> click.Command:
    from txnframework_spark.jobs.command import jobs

    return jobs
