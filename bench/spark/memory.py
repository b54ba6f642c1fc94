"""Memory of the planner and of the reader of a stream, by the number of messages."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from measurement import Found, Target
from stage import Stage

PLANNER, WORKER = "python_streaming_source_runner", "pyspark.daemon"
LOOK_EVERY_S = 0.05


def memory_by_rows(stage: Stage) -> list[Found]:
    """Peak resident memory of the source's processes while all rows are read, over that of a tenth of them."""
    few, many = _peaks(stage, stage.rows // 10), _peaks(stage, stage.rows)
    return [
        Found(
            f"memory of {what}, {stage.rows:,} messages / {stage.rows // 10:,}",
            (many[program] / few[program],),
            Target(1.2),
            {"mib": round(many[program] / 1024), "mib_of_a_tenth": round(few[program] / 1024)},
        )
        for what, program in (("the source's planner", PLANNER), ("a reading worker", WORKER))
    ]


def _peaks(stage: Stage, rows: int) -> dict[str, int]:
    """Read a topic as a stream that ends; return the peak of each program in KiB."""
    topic = stage.topic(rows)
    stage.progress(f"reading {rows:,} messages as a stream")
    peaks = {PLANNER: 0, WORKER: 0}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_EVERY_S):
            for pid, program in _processes().items():
                # The current resident memory, because workers are reused and keep their peaks.
                peaks[program] = max(peaks[program], _resident_kib(pid))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        query = (
            stage.spark.readStream.format("txnframework")
            .options(**stage.stores, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="250000")
            .load()
            .writeStream.format("noop")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        ended.set()
        looking.join()
    return peaks


def _processes() -> dict[int, str]:
    """Return the descendants of this process that run the two programs."""
    found: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_text()
        except OSError:
            continue
        program = next((name for name in (PLANNER, WORKER) if name in command), None)
        if program is not None and _descends(int(path.name)):
            found[int(path.name)] = program
    return found


def _descends(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def _resident_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)
