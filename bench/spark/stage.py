"""A Spark session and its input: the same rows in a topic and as Parquet files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from pyspark.sql import DataFrame, SparkSession

from txnframework import blocking
from txnframework_spark.session import LOCAL_CHECKPOINT, spark_session

SEGMENTS = 2
ENTRY_MESSAGES_MAX = 10_000
VALUE_BYTES = 192


@dataclass
class Stage:
    """A Spark session of two threads, with stores in one SQLite file in ``directory``."""

    directory: Path
    rows: int
    rounds: int
    progress: Callable[[str], None]
    settings: Mapping[str, str] = field(default_factory=dict)
    _spark: SparkSession | None = field(default=None)
    _opened: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Stage:
        self.directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            settings = {
                **LOCAL_CHECKPOINT,
                "spark.master": "local[2]",
                "spark.app.name": "txnframework bench",
                "spark.driver.memory": "2g",
                "spark.driver.host": "127.0.0.1",
                "spark.local.dir": str(self.directory / "spark"),
                "spark.sql.shuffle.partitions": "2",
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                **self.settings,
            }
            # The same settings as a pipeline has.
            self._spark = self._opened.enter_context(spark_session(settings, None))
            self._spark.sparkContext.setLogLevel("ERROR")
        return self._spark

    @property
    def stores(self) -> dict[str, str]:
        return {"config": str(self.directory / "txnframework.toml")}

    def parquet(self, rows: int) -> DataFrame:
        """The rows as files, with the source's columns except those of the position."""
        path = self.directory / f"{rows}.parquet"
        if not (path / "_SUCCESS").exists():
            self.progress(f"writing {rows:,} rows as Parquet")
            self.generated(rows).write.mode("overwrite").parquet(str(path))
        return self.spark.read.parquet(str(path))

    def topic(self, rows: int) -> str:
        """The name of a topic with these rows, in entries of a bulk writer's size."""
        name = f"rows-{rows}"
        written = self.directory / f"{name}.json"
        if not written.exists():
            self.progress(f"writing {rows:,} rows to a topic")
            self.configure()
            with blocking.open(self.stores["config"]) as client:
                client.create_topic(name, segments=SEGMENTS)
            self.generated(rows).write.format("txnframework").mode("append").options(**self.stores, topic=name).save()
            written.write_text(json.dumps({"rows": rows}), encoding="utf-8")
        return name

    def configure(self) -> None:
        """Write the configuration of the stores."""
        database = f"sqlite:///{self.directory / 'txn.db'}"
        text = f'[metadata]\nurl = "{database}"\n\n[client]\nentry_messages_max = {ENTRY_MESSAGES_MAX}\n'
        (self.directory / "txnframework.toml").write_text(text, encoding="utf-8")

    def generated(self, rows: int) -> DataFrame:
        """Rows of 200 incompressible bytes: 8 of key, 192 of value."""
        parts = ", ".join(f"sha2(concat('{part}', id), 512)" for part in "abc")
        return self.spark.range(0, rows, 1, 4).selectExpr(
            "cast(lpad(id, 8, '0') as binary) as key", f"unhex(concat({parts})) as value"
        )
