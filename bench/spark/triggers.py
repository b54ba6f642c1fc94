"""The smallest trigger of a topic of several segments: a read task for all of them over a task for each."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

from measurement import Found, Target
from processes import cpu_seconds
from stage import Stage

from txnframework import blocking

TRIGGER_SEGMENTS = 4
BATCHES, BATCH_ROWS = 30, 40
NO_SHARING = {"maxRecordsPerPartition": "1000000"}
"""An option about the number of tasks, far above the rows of a batch: each segment has its own task."""


def small_triggers(stage: Stage) -> list[Found]:
    """Micro-batches of a few rows, from topic to topic."""
    name = f"triggers-{os.getpid()}"
    stage.configure()
    with blocking.open(stage.stores["config"]) as client:
        for topic in (f"{name}-in", f"{name}-out"):
            client.create_topic(topic, segments=TRIGGER_SEGMENTS)
        with client.producer(f"{name}-in") as producer:
            for number in range(BATCHES * BATCH_ROWS):
                producer.send(b"x" * 100, key=str(number).encode())
    took: dict[str, list[tuple[float, float]]] = {"shared": [], "apart": []}
    for number in range(stage.rounds + 1):
        stage.progress(f"round {number} of {stage.rounds}")
        for kind, options in (("shared", {}), ("apart", NO_SHARING)):
            found = _run(stage, name, f"{kind}-{number}", options)
            if number:
                took[kind].append(found)
    pairs = list(zip(took["shared"], took["apart"], strict=True))
    notes = {f"{kind}_ms": min(ms for ms, _ in times) for kind, times in took.items()}
    notes_cpu = {f"{kind}_cpu_s": round(min(s for _, s in times), 2) for kind, times in took.items()}
    times, used = (tuple(shared[part] / apart[part] for shared, apart in pairs) for part in (0, 1))
    return [
        Found(
            f"the smallest trigger of {TRIGGER_SEGMENTS} segments, one task / a task each", times, Target(1.0), notes
        ),
        Found("the same of processor time, with the start", used, None, notes_cpu),
    ]


def _run(stage: Stage, name: str, run: str, options: dict[str, str]) -> tuple[float, float]:
    """Return the median milliseconds of a trigger, and the processor seconds of the whole query."""
    source = {"topic": f"{name}-in", "groupId": run, "startingOffsets": "earliest", **options}
    reader = stage.spark.readStream.format("txnframework").schema("key binary, value binary")
    used = cpu_seconds()
    query = (
        reader.options(**stage.stores, **source, maxOffsetsPerTrigger=str(BATCH_ROWS))
        .load()
        .writeStream.format("txnframework")
        .options(**stage.stores, topic=f"{name}-out")
        .option("checkpointLocation", str(Path(stage.directory) / f"{name}-{run}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    if sum(progress.numInputRows for progress in batches) != BATCHES * BATCH_ROWS:
        raise RuntimeError(f"{run} read {batches}")
    times = [progress.durationMs["triggerExecution"] for progress in batches[len(batches) // 4 :]]
    return statistics.median(times), cpu_seconds() - used
