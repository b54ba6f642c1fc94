"""What this distribution brings to the command line: ``txnframework demo``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnframework.plugin import Command, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def txnframework_commands() -> Iterable[Command]:
    """Return the command; what it needs (click, rich, PySpark) is imported when it is used."""
    return (
        Command("demo", "Run an exactly-once Spark pipeline, kill it again and again, and check every row.", _demo),
    )


def _demo() -> click.Command:
    from txnframework_spark.demo.command import demo

    return demo
