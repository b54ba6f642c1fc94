"""Waiting for the pipeline: until it stops at a point or ends, as long as it makes progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from txnframework_spark.demo.errors import DemoFailed, PipelineFailed
from txnframework_spark.demo.pipeline import FAILURE
from txnframework_spark.demo.plan import Stop
from txnframework_spark.demo.processes import Driver
from txnframework_spark.demo.sights import Report, find_report

STUCK_AFTER_S: Final = 180.0
"""The longest time without a finished batch; the start of Spark takes up to a minute on a busy machine."""
_LOOK_EVERY_S: Final = 0.05


def wait_for_point(
    driver: Driver, pauses: Path, checkpoint: Path, stop: Stop, note: Callable[[str], None]
) -> Report | str:
    """Return the report of a process that waits at the point, or why none will; PipelineFailed if it fails."""
    for _ in _while_it_runs(driver, checkpoint, note):
        report = find_report(pauses, stop.point, stop.batch)
        if report is not None:
            return report
    if driver.status() is None:
        return f"it was not reached within {STUCK_AFTER_S:.0f} s"
    return "the pipeline had come to its end before"


def wait_for_end(driver: Driver, checkpoint: Path, note: Callable[[str], None]) -> None:
    """Wait until the pipeline has ended successfully; PipelineFailed if it fails, DemoFailed without progress."""
    for _ in _while_it_runs(driver, checkpoint, note):
        pass
    if driver.status() is None:
        raise DemoFailed(f"the pipeline finished no batch for {STUCK_AFTER_S:.0f} s (its log is {driver.log})")


def last_committed(checkpoint: Path) -> int:
    """Return the last batch that Spark knows to be committed, -1 for none."""
    commits = checkpoint / "commits"
    names = [path.name for path in commits.iterdir()] if commits.is_dir() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _while_it_runs(driver: Driver, checkpoint: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Yield repeatedly until the pipeline has ended or makes no more progress."""
    since, seen = time.monotonic(), last_committed(checkpoint)
    while driver.status() is None and time.monotonic() - since < STUCK_AFTER_S:
        done = last_committed(checkpoint)
        if done != seen:
            since, seen = time.monotonic(), done
            note(f"batch {done} done")
        yield
        time.sleep(_LOOK_EVERY_S)
    status = driver.status()
    if status:
        raise PipelineFailed(status, _last_words(driver.log), driver.log)


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.removeprefix(FAILURE) for line in lines if line.startswith(FAILURE)]
    return said[-1] if said else next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
