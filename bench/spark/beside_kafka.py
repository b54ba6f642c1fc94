"""Compare a pipeline with the same one on Spark's Kafka connector: ``python bench/spark/beside_kafka.py``.

One query reads a topic, keeps a stateful aggregation (windows of event time under a watermark), and writes two output
topics: the events, and the closed windows. Both sides run the same query in the same Spark session, in turn in each
round. Ours is exactly once, with acknowledgments, on a SQLite file that syncs every commit. Kafka's connector is at
least once, on one Kafka that leaves syncing to the operating system. So each side has one machine and one copy of its
data. Ratios above 1 mean that ours is better.

* rows per second of a query that reads the whole topic in batches, with its start;
* milliseconds of the smallest trigger: batches of a few rows;
* seconds from the start of a query that continues from its checkpoint to the end of its first batch.

Each also in processor time, which counts the Kafka server, and hardly depends on what else the machine does.

Needs Java 17 or later, and Maven (``mvn``) with access to Maven Central, from which it takes Kafka 4.2 and Spark's
connector (80 MB, kept in ``DIRECTORY/jars``). Otherwise the same as ``run.py``. Set ``--directory`` to a folder on the
disk that you want to measure; the default is the folder for temporary files.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))  # the common parts of all figures are one folder up

import pyspark
from kafka_server import SERVER, KafkaServer, connector_jars, kafka_server
from measurement import Found, Target, machine
from processes import cpu_seconds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import window
from pyspark.sql.streaming.listener import StreamingQueryProgress
from report import document, table
from rich.console import Console
from stage import Stage

from txnframework import blocking

RESULTS = Path(__file__).parents[1] / "results"
PARTITIONS = 2
BATCHES = 4
SMALL_ROWS, SMALL_BATCHES = 20, 20
ROWS_PER_SECOND = 10_000
"""Rows per second of event time, so that a window of ten seconds has 100,000 rows."""

_NUMBERS = itertools.count(1)


@dataclass
class Side:
    """One connector; ``stores``: the configuration, of ours only; ``server``: of Kafka's only."""

    name: str
    format: str
    where: dict[str, str]
    stores: str = ""
    server: KafkaServer | None = None
    inputs: dict[str, str] = field(default_factory=dict)

    def create(self, name: str) -> None:
        # Kafka would create a topic when it is written first, so a topic without rows could not be read.
        if self.server is not None:
            self.server.create(name)
        else:
            with blocking.open(self.stores) as client:
                client.create_topic(name, segments=PARTITIONS)

    def write(self, rows: DataFrame, topic: str) -> None:
        rows.write.format(self.format).mode("append").options(**self.where, topic=topic).save()

    def count(self, spark: SparkSession, topic: str) -> int:
        reader = spark.read.format(self.format).options(**self.where, subscribe=topic)
        return reader.load().count()

    def source(self, spark: SparkSession, topic: str, name: str, rows_max: int) -> DataFrame:
        group = {"groupId": name} if self.stores else {}
        reader = spark.readStream.format(self.format).options(**self.where, **group, subscribe=topic)
        return reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=str(rows_max)).load()


@dataclass
class Pipeline:
    """The query of one side over one input topic; it continues from its checkpoint whenever it runs."""

    stage: Stage
    side: Side
    topic: str
    rows_max: int
    name: str = field(default_factory=lambda: f"p-{os.getpid()}-{next(_NUMBERS)}")

    def __post_init__(self) -> None:
        for output in ("events", "windows"):
            self.side.create(f"{self.name}-{output}")

    def run(self, rows: int) -> list[StreamingQueryProgress]:
        """Read everything that is there; return the progress of the batches with rows."""
        events = self.side.source(self.stage.spark, self.topic, self.name, self.rows_max)
        writer = self._outputs(events).writeStream.format(self.side.format).options(**self.side.where)
        checkpoint = str(self.stage.directory / f"{self.name}.checkpoint")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
        # The plan reads the source twice.
        if sum(progress.numInputRows for progress in batches) not in (rows, 2 * rows):
            raise RuntimeError(f"{self.name} of {self.side.name} read {batches}, expected {rows} rows")
        return batches

    def _outputs(self, events: DataFrame) -> DataFrame:
        kept = events.selectExpr(f"'{self.name}-events' as topic", "key", "value")
        timed = events.selectExpr(
            f"timestamp_seconds(cast(cast(key as string) as bigint) / {ROWS_PER_SECOND}) as at", "key", "value"
        )
        windows = (
            timed.withWatermark("at", "1 second")
            .groupBy(window("at", "10 seconds"))
            .agg({"value": "count", "key": "max"})
            .selectExpr(
                f"'{self.name}-windows' as topic",
                "cast(cast(window.start as string) as binary) as key",
                "cast(to_json(struct(*)) as binary) as value",
            )
        )
        return kept.unionByName(windows)

    def counts(self) -> tuple[int, int]:
        """Return the rows of both outputs."""
        spark = self.stage.spark
        return self.side.count(spark, f"{self.name}-events"), self.side.count(spark, f"{self.name}-windows")


@dataclass
class Comparison:
    """All figures of both sides, in turn in each round."""

    stage: Stage
    sides: tuple[Side, Side]
    took: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def run(self) -> list[Found]:
        stage = self.stage
        for side in self.sides:
            self._input(side, "rows", stage.rows)
            # Entries of the size of a batch, because a batch of ours has whole entries.
            self._input(side, "few", SMALL_ROWS, SMALL_BATCHES)
        for number in range(stage.rounds + 1):
            counts = set()
            order = self.sides if number % 2 else self.sides[::-1]
            for side in order:
                stage.progress(f"round {number} of {stage.rounds}: {side.name}")
                counts.add(self._round(side, counted=number > 0))
            if len(counts) != 1:
                raise RuntimeError(f"the sides wrote different numbers of rows: {counts}")
        return [
            self._found("rows", "rows per second, ours / Kafka's connector", "rows_per_s", Target(1.0, False)),
            self._found("rows cpu", "the same of processor time", "rows_per_cpu_s"),
            self._found("trigger", "the smallest trigger, Kafka's connector / ours", "ms", Target(1.0, False)),
            self._found("triggers cpu", "the same of processor time, with the start", "cpu_s"),
            self._found("restart", "a restart, Kafka's connector / ours", "s", Target(1.0, False)),
            self._found("restart cpu", "the same of processor time", "cpu_s"),
        ]

    def _input(self, side: Side, name: str, rows: int, times: int = 1) -> None:
        self.stage.progress(f"writing {rows * times:,} rows for {side.name}")
        side.inputs[name] = f"{name}-{os.getpid()}"
        side.create(side.inputs[name])
        for _ in range(times):
            side.write(self.stage.generated(rows), side.inputs[name])

    def _round(self, side: Side, counted: bool) -> tuple[int, int]:
        stage = self.stage
        whole = Pipeline(stage, side, side.inputs["rows"], stage.rows // BATCHES)
        with self._measured(side, counted, "rows"):
            whole.run(stage.rows)
        small = Pipeline(stage, side, side.inputs["few"], SMALL_ROWS)
        with self._measured(side, counted, "triggers"):
            batches = small.run(SMALL_ROWS * SMALL_BATCHES)[SMALL_BATCHES // 4 :]
        again = f"again-{os.getpid()}-{next(_NUMBERS)}"
        side.create(again)
        side.write(stage.generated(SMALL_ROWS), again)
        continued = Pipeline(stage, side, again, SMALL_ROWS)
        continued.run(SMALL_ROWS)
        side.write(stage.generated(SMALL_ROWS), again)
        with self._measured(side, counted, "restart"):
            continued.run(SMALL_ROWS)
        if counted:
            self._add("trigger", side, statistics.median(batch.durationMs["triggerExecution"] for batch in batches))
        return whole.counts()

    @contextmanager
    def _measured(self, side: Side, counted: bool, figure: str) -> Iterator[None]:
        begun, used = time.perf_counter(), cpu_seconds()
        yield
        if counted:
            self._add(figure, side, time.perf_counter() - begun)
            self._add(f"{figure} cpu", side, cpu_seconds() - used)

    def _add(self, figure: str, side: Side, value: float) -> None:
        self.took.setdefault(figure, {}).setdefault(side.name, []).append(value)

    def _found(self, figure: str, what: str, unit: str, target: Target | None = None) -> Found:
        ours, theirs = (self.took[figure][side.name] for side in self.sides)
        rounds = tuple(their / mine for mine, their in zip(ours, theirs, strict=True))
        best = {side.name: min(self.took[figure][side.name]) for side in self.sides}
        if unit.startswith("rows"):
            best = {name: self.stage.rows / seconds for name, seconds in best.items()}
        return Found(what, rounds, target, {f"{name}_{unit}": float(f"{value:.4g}") for name, value in best.items()})


def main() -> None:
    """Run the comparison, show its ratios, and store them with a description of the machine."""
    arguments = _arguments()
    console = Console(stderr=True)
    before = {**machine(), "pyspark": pyspark.__version__, "kafka": SERVER[0].rpartition(":")[2]}
    with tempfile.TemporaryDirectory() as scratch, console.status("starting") as status:
        directory = arguments.directory or Path(scratch)
        run = directory / f"beside-kafka-{os.getpid()}"
        jars = directory / "jars"
        settings = {"spark.jars": ",".join(map(str, connector_jars(jars / "connector")))}
        with (
            kafka_server(jars / "server", run / "kafka", PARTITIONS) as server,
            Stage(run, arguments.rows, arguments.rounds, status.update, settings) as stage,
        ):
            stage.configure()
            ours = Side("ours", "txnframework", stage.stores, stage.stores["config"])
            theirs = Side("kafka", "kafka", {"kafka.bootstrap.servers": server.address}, server=server)
            found = {"beside-kafka": Comparison(stage, (ours, theirs)).run()}
    kept = document(found, {"backend": "sqlite", "rows": arguments.rows, "machine": before})
    if arguments.keep:
        (RESULTS / f"{arguments.keep}.json").write_text(kept + "\n", encoding="utf-8")
    print(kept) if arguments.output == "json" else Console().print(table(found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--keep", metavar="NAME", help="store the JSON as bench/results/NAME.json")
    parser.add_argument("--directory", type=Path, help="keep the jars, the stores and Kafka's data here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
