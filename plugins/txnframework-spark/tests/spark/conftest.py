"""Real Spark, small data, stores in SQLite; one session for all tests of this folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.hashing import key_hash
from txnframework.model.ledger import Append
from txnframework.model.names import TopicName
from txnframework.model.positions import EARLIEST, Limit
from txnframework.model.reading import ReadRequest
from txnframework_spark import process
from txnframework_spark.errors import JavaUnusable
from txnframework_spark.java import check_java
from txnframework_spark.microbatch.pause import VARIABLE
from txnframework_spark.options.stores import StoreOptions
from txnframework_spark.session import require_this_interpreter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PIPELINE = Path(__file__).with_name("pipeline.py")
WAIT_S = 90


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    try:
        check_java()
    except JavaUnusable as error:
        pytest.skip(str(error))
    require_this_interpreter()
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@dataclass
class Stores:
    """Stores and checkpoint of one test."""

    directory: Path
    url: str

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def forget_last_batch(self) -> int:
        """Make Spark forget that it finished its last batch, as a kill right after the decision does; return which."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        return last

    @property
    def host(self) -> Any:
        return process.host(StoreOptions(metadata=self.url))

    def create(self, *topics: str, segments: int = 2) -> None:
        for topic in topics:
            process.run(self.host.topics.create(TopicName.parse(topic), segments))

    def subscribe(self, topic: str, name: str) -> None:
        process.run(self.host.topics.subscribe(TopicName.parse(topic), name, "earliest"))

    def split(self, topic: str, segment_id: int) -> None:
        process.run(self.host.topics.split(TopicName.parse(topic), segment_id))

    def publish(self, values: list[str], topic: str = "in") -> None:
        """Append messages in entries of five, outside of transactions."""
        process.run(self._publish(values, TopicName.parse(topic)))

    async def _publish(self, values: list[str], topic: TopicName) -> None:
        layout = await self.host.topics.layout(topic)
        by_segment: dict[int, list[str]] = {}
        for value in values:
            by_segment.setdefault(layout.route(key_hash(value.encode())).id, []).append(value)
        for segment_id, mine in by_segment.items():
            buffer = (await self.host.segment(str(layout.name_of(segment_id)))).buffer
            for first in range(0, len(mine), 5):
                messages = [
                    EntryMessage(value.encode(), value.encode(), (), number, 0)
                    for number, value in enumerate(mine[first : first + 5])
                ]
                await buffer.append((Append(encode_entry(messages, "test", None), len(messages)),))

    def read(self, topic: str = "out") -> Counter[str]:
        """Return how often each value is committed."""
        return process.run(self._read(TopicName.parse(topic)))

    async def _read(self, topic: TopicName) -> Counter[str]:
        found: Counter[str] = Counter()
        layout = await self.host.topics.layout(topic)
        for segment in layout.in_order():
            buffer = (await self.host.segment(str(layout.name_of(segment.id)))).buffer
            await buffer.max_read_position()
            after = EARLIEST
            while True:
                page = await buffer.read(ReadRequest(after, Limit(100)))
                for entry in page.entries:
                    found.update(message.value.decode() for message in EntryView(entry.data).messages())
                if page.upto == after:
                    break
                after = page.upto
        return found


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    made = Stores(tmp_path, f"sqlite:///{tmp_path}/txn.db")
    made.create("in", "out")
    return made


@pytest.fixture
def stores_of() -> type[Stores]:
    """Return what makes stores of a directory and a URL."""
    return Stores


@pytest.fixture
def run_available(spark: SparkSession, stores: Stores) -> Callable[..., Any]:
    """Return what runs the pipeline until everything that is there is done."""

    def run(
        transform: Callable[[DataFrame], DataFrame] | None = None,
        source: dict[str, str] | None = None,
        sink: dict[str, str] | None = None,
    ) -> Any:
        given = {"metadata": stores.url, "subscribe": "in", "startingOffsets": "earliest"}
        frame = spark.readStream.format("txnframework").options(**given, **(source or {"groupId": "g"})).load()
        frame = transform(frame) if transform is not None else frame.select("key", "value")
        query = (
            frame.writeStream.format("txnframework")
            .options(metadata=stores.url, **(sink or {"topic": "out", "txnAppId": "app"}))
            .option("checkpointLocation", str(stores.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(WAIT_S)
            assert not query.isActive
        finally:
            query.stop()
        return query

    return run


@dataclass
class Pipeline:
    """The pipeline in processes of its own, to be killed at a pause point."""

    stores: Stores

    def kill_at(self, point: str, before: tuple[str, Callable[[], None]] | None = None) -> dict[str, Any]:
        """Start it, wait until it arrives at ``point``, and kill every process of it; return what it reported.

        ``before``: a point that it arrives at earlier, and what to do there before it is released.
        """
        pauses = self.stores.directory / f"pauses-{point}"
        pauses.mkdir()
        points = point if before is None else f"{before[0]},{point}"
        environment = {**os.environ, VARIABLE: f"{points};{pauses}"}
        log = self.stores.directory / f"{point}.log"
        arguments = [sys.executable, str(PIPELINE), self.stores.url, str(self.stores.checkpoint)]
        with log.open("wb") as output:
            started = subprocess.Popen(
                arguments, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

        def arrival(at: str) -> dict[str, Any]:
            deadline = time.monotonic() + WAIT_S
            while not (reports := list(pauses.glob(f"{at.replace('@', '-')}-*.json"))):
                assert started.poll() is None, log.read_text()[-4000:]
                assert time.monotonic() < deadline, log.read_text()[-4000:]
                time.sleep(0.05)
            found: dict[str, Any] = json.loads(reports[0].read_text())
            return found

        try:
            if before is not None:
                arrival(before[0])
                before[1]()
                (pauses / f"{before[0].replace('@', '-')}.release").touch()
            return arrival(point)
        finally:
            # The Python workers' daemon has a group of its own: it ends when the JVM's end of its pipe is closed.
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


@pytest.fixture
def pipeline(stores: Stores) -> Pipeline:
    return Pipeline(stores)
