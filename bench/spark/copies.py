"""A streaming pipeline from topic to topic compared with one from files to files, and the cost of transactions."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from measurement import Found, Target
from pyspark.sql.streaming.readwriter import DataStreamWriter
from stage import Stage

from txnframework import blocking

SCHEMA = "key binary, value binary"


_NUMBERS = itertools.count(1)


@dataclass
class Copies:
    """Copies of the input, each with its own name, checkpoint and output."""

    stage: Stage

    def to_topic(self, group: bool, **options: str) -> float:
        """Return the seconds in which a query copies the whole topic to another one."""
        source = self.stage.topic(self.stage.rows)
        name = f"copy-{os.getpid()}-{next(_NUMBERS)}"
        with blocking.open(self.stage.stores["config"]) as client:
            client.create_topic(name, segments=2)
        acknowledged = {"groupId": name} if group else {}
        reader = self.stage.spark.readStream.format("txnframework").schema(SCHEMA)
        frame = reader.options(**self.stage.stores, topic=source, startingOffsets="earliest", **acknowledged).load()
        writer = frame.writeStream.format("txnframework").options(**self.stage.stores, topic=name, **options)
        return self._copied(writer, name)

    def to_files(self) -> float:
        """Return the seconds in which a query copies all files."""
        name = f"copy-{os.getpid()}-{next(_NUMBERS)}"
        source = self.stage.directory / f"{self.stage.rows}.parquet"
        frame = self.stage.spark.readStream.schema(SCHEMA).parquet(str(source))
        return self._copied(frame.writeStream.format("parquet").option("path", str(self._path(name))), name)

    def _copied(self, writer: DataStreamWriter, name: str) -> float:
        checkpoint = self._path(f"{name}.checkpoint")
        begun = time.perf_counter()
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        # The stores sync their writes; Spark leaves files to the operating system.
        os.sync()
        took = time.perf_counter() - begun
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        if rows != self.stage.rows:
            raise RuntimeError(f"{rows} rows were copied to {name}, {self.stage.rows} are there")
        return took

    def _path(self, name: str) -> Path:
        return self.stage.directory / name


def copying_over_files(stage: Stage) -> list[Found]:
    """Exactly once with acknowledgments, over files; both include the start of the query."""
    stage.parquet(stage.rows)
    copies = Copies(stage)
    took, notes = _in_turn(stage, exactly_once=lambda: copies.to_topic(group=True), files=copies.to_files)
    what = "rows per second of a stream from topic to topic, exactly once / from files to files"
    return [Found(what, _speeds(took["exactly_once"], took["files"]), Target(0.4, False), notes)]


def transactions_over_none(stage: Stage) -> list[Found]:
    """The same stream with transactions and without; neither acknowledges messages."""
    copies = Copies(stage)
    took, notes = _in_turn(
        stage,
        transactional=lambda: copies.to_topic(group=False),
        without=lambda: copies.to_topic(group=False, transactional="false"),
    )
    what = "rows per second of a stream into a topic, transactional / transactional=false"
    return [Found(what, _speeds(took["transactional"], took["without"]), Target(0.85, False), notes)]


def _in_turn(stage: Stage, **sides: Callable[[], float]) -> tuple[dict[str, list[float]], dict[str, float | str]]:
    """Copy by each side in turn, after a warm-up; return the seconds and the best speed of each side."""
    took: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(stage.rounds + 1):
        for side, copy in sides.items():
            stage.progress(f"round {number} of {stage.rounds}: {side}")
            seconds = copy()
            if number:
                took[side].append(seconds)
    speeds = {f"{side}_rows_per_s": round(stage.rows / min(times)) for side, times in took.items()}
    return took, {"rows": stage.rows, **speeds}


def _speeds(ours: list[float], theirs: list[float]) -> tuple[float, ...]:
    return tuple(other / mine for mine, other in zip(ours, theirs, strict=True))
