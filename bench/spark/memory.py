"""Memory of a stream's processes, by the number of messages that it copies from topic to topic."""

from __future__ import annotations

import os
import threading
import time

from measurement import Found, Target
from processes import command, descendants, resident_kib
from stage import Stage

from txnframework import blocking

PYTHON, JVM = "the largest Python process", "Spark's JVM"
BATCH_ROWS = 250_000
LOOK_EVERY_S = 0.05


def memory_by_rows(stage: Stage) -> list[Found]:
    """Peak resident memory while all rows are copied exactly once, over that while a tenth of them is.

    The Python processes are the planner of the source, the workers that read and write, and the one that commits. The
    JVM uses what it is given (2 GiB of heap here), so its ratio has no target.
    """
    (few, _), (many, rows_per_s) = _peaks(stage, stage.rows // 10), _peaks(stage, stage.rows)
    return [
        Found(
            f"memory of {what}, {stage.rows:,} messages / {stage.rows // 10:,}",
            (many[what] / few[what],),
            Target(1.2) if what == PYTHON else None,
            {
                "mib": round(many[what] / 1024),
                "mib_of_a_tenth": round(few[what] / 1024),
                "rows_of_a_batch": BATCH_ROWS,
                "rows_per_s": rows_per_s,
            },
        )
        for what in (PYTHON, JVM)
    ]


def _peaks(stage: Stage, rows: int) -> tuple[dict[str, int], int]:
    """Copy a topic by a stream that ends; return the peaks in KiB, and the rows per second."""
    topic = stage.topic(rows)
    name = f"memory-{os.getpid()}-{rows}"
    with blocking.open(stage.stores["config"]) as client:
        client.create_topic(name, segments=2)
    source = {"topic": topic, "groupId": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH_ROWS)}
    frame = stage.spark.readStream.format("txnframework").schema("key binary, value binary")
    writer = frame.options(**stage.stores, **source).load().writeStream.format("txnframework")
    writer = writer.options(**stage.stores, topic=name).option("checkpointLocation", str(stage.directory / name))
    stage.progress(f"copying {rows:,} messages")
    peaks = {PYTHON: 0, JVM: 0}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_EVERY_S):
            for pid in descendants():
                program = command(pid)
                # Workers are forked from a process of this package, and keep its command line.
                what = JVM if "java" in program.split("\0")[0] else PYTHON if "spark_workers" in program else None
                if what is not None:
                    # The current resident memory, because workers are reused and keep their peaks.
                    peaks[what] = max(peaks[what], resident_kib(pid))

    looking = threading.Thread(target=look)
    looking.start()
    begun = time.perf_counter()
    try:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        rows_per_s = round(rows / (time.perf_counter() - begun))
    finally:
        ended.set()
        looking.join()
    if (found := stage.spark.read.format("txnframework").options(**stage.stores, topic=name).load().count()) != rows:
        raise RuntimeError(f"{found} rows were copied, {rows} are there")
    return peaks, rows_per_s
