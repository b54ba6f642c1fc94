"""The cost of a commit: header writes for many tasks, and the fixed cost of a micro-batch by its parts."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pyarrow as pa
from counting_store import CountingStore
from measurement import Found, Target
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType
from stage import Stage

from txnframework import blocking
from txnframework.broker import Host, HostContext, open_host
from txnframework.config import load_config
from txnframework.model.ids import Branch
from txnframework.model.names import TopicName
from txnframework_spark.microbatch.batch import MicroBatch, batch_id, begin
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.sink.branch_writer import BranchWriter, open_attempt_writer
from txnframework_spark.sink.commit import Staged, commit_staged
from txnframework_spark.sink.job import begin_job, commit_job

TASKS = 200
BATCHES, BATCH_ROWS = 20, 100


def header_writes(stage: Stage) -> list[Found]:
    """Writes to the transaction's header in the commit of a job of 200 tasks."""

    async def count() -> tuple[int, float]:
        async with _counted(stage) as (host, store):
            topic = await _topic(host, "tasks")
            given = SinkOptions.of_job({"topic": str(topic)})
            job = await begin_job(host, given)
            staged = []
            for task in range(TASKS):
                writer, branch = open_attempt_writer(host, given, job.txn_id, f"bench/{task}")
                await _write(writer, 1)
                staged.append(Staged(job.txn, branch, writer.rows))
            store.written.clear()
            begun = time.perf_counter()
            await commit_job(host, job, staged)
            return store.written["txn"], time.perf_counter() - begun

    stage.progress(f"committing what {TASKS} tasks wrote")
    writes, seconds = asyncio.run(count())
    notes = {"tasks": TASKS, "commit_with_settling_ms": round(seconds * 1e3, 1)}
    return [Found(f"writes to the header for the commit of {TASKS} tasks", (float(writes),), Target(1.0), notes)]


def fixed_cost(stage: Stage) -> list[Found]:
    """An exactly-once micro-batch of 100 rows from topic to topic, over one in the JVM and an idle one in Python."""
    name = f"small-{os.getpid()}"
    stage.topic(BATCH_ROWS)
    with blocking.open(stage.stores["config"]) as client:
        for topic in (f"{name}-in", f"{name}-out"):
            client.create_topic(topic, segments=1)
        with client.producer(f"{name}-in") as producer:
            for _ in range(BATCHES):
                producer.send_many([b"x" * 100] * BATCH_ROWS)
    stage.progress(f"{BATCHES} micro-batches of {BATCH_ROWS} rows")
    reader = stage.spark.readStream.format("txnframework").schema("key binary, value binary")
    source = {"topic": f"{name}-in", "groupId": "g", "startingOffsets": "earliest"}
    frame = reader.options(**stage.stores, **source, maxOffsetsPerTrigger=str(BATCH_ROWS)).load()
    query = (
        frame.writeStream.format("txnframework")
        .options(**stage.stores, topic=f"{name}-out")
        .option("checkpointLocation", str(stage.directory / name))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    ours = _medians(query.recentProgress[BATCHES // 4 :])
    made = stage.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH_ROWS).load()
    bare = _endless(made.writeStream.format("noop"), str(stage.directory / f"{name}-bare"))
    stage.spark.dataSource.register(idle_source())
    idle = stage.spark.readStream.format("idle").load().writeStream.format("idle")
    idles = _endless(idle, str(stage.directory / f"{name}-idle"))
    notes: dict[str, float | str] = {f"{step}_ms": value for step, value in ours.items()}
    notes.update({f"bare_{step}_ms": value for step, value in bare.items()})
    notes.update({f"idle_{step}_ms": value for step, value in idles.items()})
    notes.update(asyncio.run(_parts(stage)))
    step = "triggerExecution"
    return [
        Found("a micro-batch from topic to topic / from made rows to nowhere", (ours[step] / bare[step],), None, notes),
        Found("the same / of a Python source and sink that do nothing", (ours[step] / idles[step],), None, {}),
    ]


def _endless(writer: DataStreamWriter, checkpoint: str) -> dict[str, float]:
    """Return the medians of a query that always has another batch."""
    query = writer.option("checkpointLocation", checkpoint).start()
    while len(query.recentProgress) < BATCHES:
        time.sleep(0.1)
    query.stop()
    return _medians(query.recentProgress[BATCHES // 4 :])


def idle_source() -> type[DataSource]:
    """Return a Python source of batches of 100 rows, and a sink that drops them: what Spark itself needs for these."""

    # Classes of a function are pickled with their code, which workers cannot import.
    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"at": 0}

        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802, ARG002
            return {"at": start["at"] + 1}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:  # noqa: ARG002
            return [InputPartition(start["at"])]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
            yield pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 100] * BATCH_ROWS, pa.binary())})

    class Writer(DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Idle(DataSource):
        @classmethod
        def name(cls) -> str:
            return "idle"

        def schema(self) -> str:
            return "value binary"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
            return Reader()

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802, ARG002
            return Writer()

    return Idle


async def _parts(stage: Stage) -> dict[str, float]:
    """Milliseconds of the sink's own work in a micro-batch, in one warm process."""
    took: dict[str, list[float]] = {"sink_begin_ms": [], "sink_stage_ms": [], "sink_commit_ms": []}

    @contextmanager
    def part(name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        took[name].append((time.perf_counter() - begun) * 1e3)

    async with _counted(stage) as (host, _):
        topic = await _topic(host, "parts")
        given = SinkOptions.of_stream({"topic": str(topic)})
        for number in range(BATCHES):
            facts = MicroBatch("bench", str(os.getpid()), number)
            application = f"bench-{os.getpid()}"
            with part("sink_begin_ms"):
                txn_id = await begin(host, batch_id(application, facts), 60_000)
            with part("sink_stage_ms"):
                branch = Branch(txn_id, number + 1)
                writer = BranchWriter(host, given, branch, f"bench/{number}")
                await _write(writer, BATCH_ROWS)
            with part("sink_commit_ms"):
                staged = Staged(str(txn_id), branch.number, writer.rows, facts, application)
                await commit_staged(host, given, [staged], number)
    return {name: round(statistics.median(times[1:]), 1) for name, times in took.items()}


async def _write(writer: BranchWriter, rows: int) -> None:
    await writer.write(pa.RecordBatch.from_pydict({"value": ["x" * 100] * rows}))
    await writer.finish()


async def _topic(host: Host, name: str) -> TopicName:
    topic = TopicName.parse(f"{name}-{os.getpid()}")
    await host.topics.create(topic, 1)
    return topic


def _medians(batches: list[StreamingQueryProgress]) -> dict[str, float]:
    steps = batches[0].durationMs
    return {step: statistics.median(batch.durationMs.get(step, 0) for batch in batches) for step in steps}


@asynccontextmanager
async def _counted(stage: Stage) -> AsyncIterator[tuple[Host, CountingStore]]:
    """Open a host whose metadata store counts writes."""
    inner = await open_host(load_config(stage.stores["config"]))
    store = CountingStore(inner.metadata)
    host = Host(HostContext(inner.config, inner.registry, inner.environment, store, inner.ledgers))
    try:
        yield host, store
    finally:
        await host.close()
