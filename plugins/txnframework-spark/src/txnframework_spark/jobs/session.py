"""The Spark of a job: begun for one command, its own words in a file."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from txnframework_spark.java import check_java
from txnframework_spark.session import require_this_interpreter
from txnframework_spark.spark_home import make_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local"


@contextlib.contextmanager
def session(master: str, name: str) -> Iterator[SparkSession]:
    """Give a session on ``master``, and stop it; what Spark says goes to a file, which is kept if the job fails."""
    check_java()
    require_this_interpreter()
    scratch = Path(tempfile.mkdtemp(prefix="txnframework-job-"))
    log = scratch / "spark.log"
    try:
        with _said_to(log):
            opened = _open(master, name, scratch)
        try:
            yield opened
        finally:
            opened.stop()
    except Exception:
        kept = Path(tempfile.gettempdir()) / f"{scratch.name}.log"
        if log.exists() and log.stat().st_size:
            shutil.copyfile(log, kept)
            click.echo(f"What Spark said is in {kept}", err=True)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _open(master: str, name: str, scratch: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    )
    if master.startswith(LOCAL):
        os.environ["SPARK_HOME"] = str(make_spark_home(scratch / "home"))
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.local.dir", str(scratch))
    opened = builder.getOrCreate()
    opened.sparkContext.setLogLevel("WARN")
    return opened


@contextlib.contextmanager
def _said_to(log: Path) -> Iterator[None]:
    """Let processes that are started meanwhile write what they have to say to a file instead of the terminal."""
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
