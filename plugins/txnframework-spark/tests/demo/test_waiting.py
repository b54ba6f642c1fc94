"""Waiting for a pipeline that is held, ends, or fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from txnframework_spark.demo.faults import PauseReport, Stop, last_committed, wait_for_end, wait_for_point
from txnframework_spark.demo.pipeline import FAILURE
from txnframework_spark.errors import DemoPipelineFailed
from txnframework_spark.microbatch.pause import MID_WRITE
from txnframework_spark.processes import DriverProcess

STOP = Stop(MID_WRITE, 2)
HELD = f"""
import sys
from txnframework_spark.microbatch.pause import Pauses
Pauses.parse("{MID_WRITE}@2;" + sys.argv[1]).reach("{MID_WRITE}", 2, txn="ab", run="r")
"""


@contextmanager
def running(tmp_path: Path, program: str) -> Iterator[DriverProcess]:
    driver = DriverProcess([sys.executable, "-c", program, str(tmp_path)], os.environ, tmp_path / "log")
    try:
        yield driver
    finally:
        driver.kill()


def noted(_text: str) -> None:
    pass


def test_a_pipeline_that_is_held_is_reported(tmp_path: Path) -> None:
    """By whoever waits at the point; it goes on waiting."""
    with running(tmp_path, HELD) as driver:
        report = wait_for_point(driver, tmp_path, tmp_path, STOP, noted)
        assert isinstance(report, PauseReport)
        assert (report.point, report.batch, report.txn) == (MID_WRITE, 2, "ab")
        assert driver.status() is None


def test_a_pipeline_that_ends_before_the_point_says_so(tmp_path: Path) -> None:
    """It is a miss, not a failure."""
    with running(tmp_path, "") as driver:
        assert (
            wait_for_point(driver, tmp_path, tmp_path, STOP, noted) == "the pipeline ended before it reached the point"
        )


def test_a_pipeline_that_fails_says_its_last_words(tmp_path: Path) -> None:
    """The sentence that it wrote for this, else its last line; and where the log is."""
    with running(tmp_path, f"import sys; print('{FAILURE}no store'); print('stopping'); sys.exit(1)") as driver:
        with pytest.raises(DemoPipelineFailed, match=r"exit status 1: no store \(its log is ") as caught:
            wait_for_end(driver, tmp_path, noted)
        assert (caught.value.status, caught.value.log) == (1, tmp_path / "log")


def test_a_pipeline_that_dies_without_a_word_says_its_last_line(tmp_path: Path) -> None:
    """A JVM that gives up writes no sentence for anybody."""
    dying = running(tmp_path, "print('out of memory'); raise SystemExit(134)")
    with dying as driver, pytest.raises(DemoPipelineFailed, match="exit status 134: out of memory"):
        wait_for_point(driver, tmp_path, tmp_path, STOP, noted)


def test_the_last_committed_batch_is_read_from_the_checkpoint(tmp_path: Path) -> None:
    """Files that Spark is about to write do not count."""
    assert last_committed(tmp_path) == -1
    commits = tmp_path / "commits"
    commits.mkdir()
    for name in ("9", "10", ".11.tmp", "metadata"):
        (commits / name).touch()
    assert last_committed(tmp_path) == 10
