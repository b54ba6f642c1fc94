"""The run of the demo: load, start, stop, inspect, kill, restart, and finally judge the outputs."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from txnframework_spark.demo.faults import (
    POINT_NAMES,
    Fault,
    PauseReport,
    Start,
    Stop,
    find_contradiction,
    make_plan,
    release,
    sizes_for,
    wait_for_end,
    wait_for_point,
)
from txnframework_spark.demo.input import ALERTS, ENRICHED, OUTPUTS, Input, expected_outputs
from txnframework_spark.demo.pipeline import DemoJob
from txnframework_spark.demo.report import KillOutcome, Outcome, SplitOutcome, StepDisplay
from txnframework_spark.demo.stores import DemoNames, DemoStores, StoreUrls, count_discarded, read_output, write_config
from txnframework_spark.demo.verdict import Evidence, InputPosition, OutputRow, judge_outputs
from txnframework_spark.errors import DemoFailed
from txnframework_spark.microbatch.pause import VARIABLE
from txnframework_spark.processes import DriverProcess
from txnframework_spark.session import make_spark_home


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The parameters of a run; ``directory`` is empty and owned by the demo. ``plan`` None: all faults."""

    source: Input
    directory: Path
    stores: StoreUrls
    batch: int | None = None
    plan: tuple[Start, ...] | None = None


def run_demo(settings: DemoSettings, console: Console) -> Outcome:
    """
    Run the demo and return its outcome; no process of the pipeline is left, even after an exception.

    If the pipeline itself fails, no further faults are applied. The outputs are judged anyway, and the outcome contains
    the failure.
    """
    return _Demo(settings, console).run()


class _Demo:
    """One run: its fixed parameters, and the results so far."""

    def __init__(self, settings: DemoSettings, console: Console) -> None:
        rows = settings.source.rows
        self._settings = settings
        self._sizes = sizes_for(len(rows), settings.batch)
        self._plan = make_plan(self._sizes.batches) if settings.plan is None else settings.plan
        self._names = DemoNames.make()
        self._config = write_config(settings.directory / "txnframework.toml", settings.stores, self._sizes.entry)
        self._checkpoint = settings.directory / "checkpoint"
        self._spark_home = make_spark_home(settings.directory / "spark-home")
        self._progress = StepDisplay(console, self._titles())
        self._left = list(rows)
        self._places: dict[int, InputPosition] = {}
        self._kills: list[KillOutcome] = []
        self._splits: list[SplitOutcome] = []
        self._errors: list[str] = []
        self._losses = 0
        self._starts = 0

    def run(self) -> Outcome:
        began = time.monotonic()
        # The stores are opened first, so that their errors are reported before the display begins.
        with DemoStores.open(self._config, self._names) as stores, self._progress:
            self._load(stores)
            self._run_starts(stores)
            self._progress.begin_last()
            # A new client: it knows only the content of the stores.
            with DemoStores.open(self._config, self._names) as fresh:
                outcome = self._judged(fresh, began)
            verdict = outcome.verdict
            self._progress.end(
                f"{sum(verdict.rows_out.values()):,} rows, {_defects(len(verdict.findings))}", ok=verdict.exactly_once
            )
        return outcome

    # -- before ---------------------------------------------------------------------------------------

    def _titles(self) -> list[str]:
        titles = [f"load {self._sizes.first_part:,} of {len(self._settings.source.rows):,} rows"]
        for number, start in enumerate(self._plan, 1):
            titles.append(f"start {number}: {_title(start)}")
        return [*titles, "read both outputs and compare"]

    def _load(self, stores: DemoStores) -> None:
        self._progress.begin()
        stores.make_topics()
        self._load_part(stores, self._sizes.first_part)
        self._progress.end(f"entries of {self._sizes.entry} rows, batches of {self._sizes.batch}")

    def _load_part(self, stores: DemoStores, count: int) -> None:
        part, self._left = self._left[:count], self._left[count:]
        self._places.update(stores.load(part))

    # -- starts ---------------------------------------------------------------------------------------

    def _run_starts(self, stores: DemoStores) -> None:
        for number, start in enumerate(self._plan, 1):
            self._progress.begin("starting Spark")
            self._starts = number
            if number == len(self._plan):
                # A plan without a split, or with a missed split: the rest of the input has not been loaded yet.
                self._load_part(stores, len(self._left))
            try:
                self._run_start(stores, number, start)
            except DemoFailed as error:
                self._errors.append(str(error))
                self._progress.end(str(error), ok=False)
                self._miss_the_rest(number)
                return
            if start.lose_checkpoint:
                shutil.rmtree(self._checkpoint)
                self._losses += 1

    def _run_start(self, stores: DemoStores, number: int, start: Start) -> None:
        pauses = self._settings.directory / f"pauses-{number}"
        pauses.mkdir()
        driver = self._start_driver(number, start, pauses)
        try:
            results: list[str] = []
            for stop in start.stops:
                report = wait_for_point(driver, pauses, self._checkpoint, stop, self._progress.note)
                if isinstance(report, PauseReport) and stop.fault is Fault.SPLIT:
                    results.append(self._split(stores, stop, report))
                    release(pauses, stop.point, stop.batch)
                    continue
                results.append(self._kill(stores, driver, stop, report))
            if not start.stops:
                wait_for_end(driver, self._checkpoint, self._progress.note)
                results.append("everything read")
            ok = all(kill.hit for kill in self._kills if kill.start == number)
            self._progress.end(", ".join(results), ok)
        finally:
            driver.kill()

    def _start_driver(self, number: int, start: Start, pauses: Path) -> DriverProcess:
        scratch = self._settings.directory / "spark"
        scratch.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "SPARK_HOME": str(self._spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(scratch),
            "PYTHONUNBUFFERED": "1",
        }
        environment.pop(VARIABLE, None)
        if start.stops:
            points = ",".join(f"{stop.point}@{stop.batch}" for stop in start.stops)
            environment[VARIABLE] = f"{points};{pauses}"
        command = [sys.executable, "-m", "txnframework_spark.demo.pipeline", *self._job().to_arguments()]
        return DriverProcess(command, environment, self._settings.directory / f"pipeline-{number}.log")

    def _job(self) -> DemoJob:
        return DemoJob(
            config=self._config,
            checkpoint=self._checkpoint,
            kind=self._settings.source.kind,
            source=self._names.input,
            enriched=self._names.output(ENRICHED),
            alerts=self._names.output(ALERTS),
            group=self._names.group,
            application=self._names.application,
            batch=self._sizes.batch,
        )

    # -- deeds ----------------------------------------------------------------------------------------

    def _kill(self, stores: DemoStores, driver: DriverProcess, stop: Stop, report: PauseReport | str) -> str:
        where = f"{stop.point} of batch {stop.batch}"
        if isinstance(report, str):
            self._kills.append(KillOutcome(stop.point, stop.batch, self._starts, hit=False, reason=report))
            return f"missed {where}: {report}"
        batch_records = stores.load_batch_records(self._checkpoint, report)
        reason = find_contradiction(stop.point, batch_records)
        killed = driver.kill()
        if reason is None and not killed.jvm:
            reason = "its JVM had already ended"
        self._kills.append(
            KillOutcome(
                stop.point,
                stop.batch,
                self._starts,
                hit=reason is None,
                transaction=report.txn,
                python=killed.python,
                jvm=killed.jvm,
                reason=reason,
            )
        )
        return "killed" if reason is None else f"missed {where}: {reason}"

    def _split(self, stores: DemoStores, stop: Stop, report: PauseReport) -> str:
        """Split a segment that the held transaction wrote to, and one of its input; then load the rest of the input."""
        batch_records = stores.load_batch_records(self._checkpoint, report)
        reason = find_contradiction(stop.point, batch_records)
        if reason is not None or report.txn is None:
            self._errors.append(f"no split at {stop.point} of batch {stop.batch}: {reason}")
            return f"missed {stop.point} of batch {stop.batch}: {reason}"
        splits = stores.split(batch_records.writes, report.txn)
        self._splits.extend(splits)
        self._load_part(stores, len(self._left))
        if not any(split.written for split in splits):
            self._errors.append("no segment was split that the open transaction had written to")
        return f"{len(splits)} segments split"

    def _miss_the_rest(self, failed: int) -> None:
        done = {(kill.start, kill.point, kill.batch) for kill in self._kills}
        for number, start in enumerate(self._plan, 1):
            for stop in start.stops:
                if number >= failed and stop.fault is Fault.KILL and (number, stop.point, stop.batch) not in done:
                    self._kills.append(
                        KillOutcome(stop.point, stop.batch, number, hit=False, reason="the pipeline failed before")
                    )

    # -- after ----------------------------------------------------------------------------------------

    def _judged(self, stores: DemoStores, began: float) -> Outcome:
        source = self._settings.source
        expected = expected_outputs(source.kind, source.rows)
        segments = stores.input_segments()
        found: list[OutputRow] = []
        for output in OUTPUTS:
            self._progress.note(output)
            found += read_output(self._config, self._names.output(output), output, len(expected[output]), segments)
        evidence = Evidence(
            expected=expected,
            found=tuple(found),
            places=self._places,
            cursors=stores.cursors(),
            outcomes=stores.outcomes({row.txn for row in found if row.txn is not None}),
        )
        return Outcome(
            source=str(source.path),
            verdict=judge_outputs(evidence),
            expected={output: len(expected[output]) for output in OUTPUTS},
            discarded=sum(count_discarded(self._config, self._names.output(output)) for output in OUTPUTS),
            starts=self._starts,
            seconds=time.monotonic() - began,
            kills=tuple(self._kills),
            splits=tuple(self._splits),
            checkpoint_losses=self._losses,
            errors=tuple(self._errors),
            directory=str(self._settings.directory),
            stores=self._settings.stores.shown(),
        )


def _title(start: Start) -> str:
    parts = []
    for stop in start.stops:
        if stop.fault is Fault.SPLIT:
            parts.append(f"split segments in mid-write of batch {stop.batch}")
        else:
            parts.append(f"kill batch {stop.batch} ({POINT_NAMES[stop.point]})")
    if start.lose_checkpoint:
        parts.append("delete the checkpoint")
    return ", ".join(parts) or "run to the end"


def _defects(count: int) -> str:
    return f"{count:,} defects" if count else "no defect"
