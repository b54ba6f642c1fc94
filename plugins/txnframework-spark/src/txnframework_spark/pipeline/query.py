"""One query of a pipeline, from its start to its end, and the decision when to stop it on request.

A query stops between batches, if the current batch finishes in time. A stop at any time leaves no partial result: the
transaction of an interrupted batch is aborted, and the next start runs the batch again. Waiting for the batch only
saves that work.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework_spark import process
from txnframework_spark.errors import PipelineFailed, describe_error
from txnframework_spark.options.parser import StoreOptions
from txnframework_spark.pipeline.analysis import load_plan, stateful_operators
from txnframework_spark.pipeline.description import Pipeline
from txnframework_spark.pipeline.frames import build_output
from txnframework_spark.pipeline.loader import sink_options, store_options
from txnframework_spark.pipeline.screen import ROWS_OUT, Screen, finished_batch
from txnframework_spark.pipeline.status import after, load_note, store_note
from txnframework_spark.progress import StateProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class StopState:
    """The state of a query after a stop request.

    ``waited_ms``: since the first request. ``working``: a batch is running. ``finished``: a batch has finished since
    the request, so the next one may be interrupted before it has done much work.
    """

    asked: int
    waited_ms: int
    working: bool
    finished: bool


def should_stop(now: StopState, timeout_ms: int) -> bool:
    """Return whether to stop the query now; a second request does not wait."""
    if not now.asked:
        return False
    return now.asked > 1 or not now.working or now.finished or now.waited_ms >= timeout_ms


class StopRequests:
    """Counts SIGTERM and SIGINT instead of ending the process, until the block ends."""

    def __init__(self) -> None:
        self.count = 0
        self.first: int | None = None
        self._woken = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        """Install the handlers; call it again after the start of Spark, which replaces that of SIGINT."""
        for number in _SIGNALS:
            signal.signal(number, self._ask)

    def wait(self, timeout_s: float) -> None:
        """Wait for ``timeout_s``, or until a request arrives."""
        self._woken.wait(timeout_s)
        self._woken.clear()

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or number
        self._woken.set()


_LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class PipelineStart:
    """A start of a pipeline: the pipeline, its file, and whether it may continue although nothing can be judged."""

    pipeline: Pipeline
    file: Path
    reset: bool = False


def run_query(spark: SparkSession, start: PipelineStart, screen: Screen, requests: StopRequests) -> str | None:
    """
    Run the pipeline until it ends or is asked to stop; return the id of a run that was stopped, else None.

    :raises PipelineFailed: the query failed; the message says what to do.
    """
    name = start.pipeline.pipeline.name
    try:
        query = _start(spark, start)
        run = str(query.runId)
        return run if _watch(query, start.pipeline, screen, requests) else None
    except PipelineFailed:
        raise
    except Exception as error:
        if not _is_of_spark(error):
            raise
        raise PipelineFailed(name, describe_error(error)) from error


def _start(spark: SparkSession, start: PipelineStart) -> StreamingQuery:
    from pyspark.sql import functions as f

    pipeline = start.pipeline
    output = build_output(spark, pipeline, start.file)
    stateful = bool(stateful_operators(load_plan(output)))
    counted = output.observe(ROWS_OUT, f.count(f.lit(1)).alias("rows"))
    writer = (
        counted.writeStream.format("txnframework")
        .queryName(pipeline.pipeline.name)
        .options(**sink_options(pipeline, stateful, start.reset))
        .option("checkpointLocation", pipeline.pipeline.checkpoint)
    )
    if pipeline.pipeline.trigger == "available_now":
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=pipeline.pipeline.interval).start()


def _watch(query: StreamingQuery, pipeline: Pipeline, screen: Screen, requests: StopRequests) -> bool:
    shown = -1
    asked_at: float | None = None
    shown_when_asked = -1
    while query.isActive:
        shown = _show(query, pipeline, screen, shown)
        status = query.status
        if requests.count and asked_at is None:
            asked_at, shown_when_asked = time.monotonic(), shown
            screen.say("Stop requested: waiting for the current batch.")
        waited_ms = 0 if asked_at is None else round((time.monotonic() - asked_at) * 1000)
        now = StopState(requests.count, waited_ms, bool(status["isTriggerActive"]), shown > shown_when_asked)
        if should_stop(now, pipeline.pipeline.stop_timeout_ms):
            query.stop()
            break
        screen.doing(str(status["message"]).lower())
        requests.wait(_LOOK_EVERY_S)
    _show(query, pipeline, screen, shown)
    error = query.exception()
    if error is not None and not requests.count:
        raise PipelineFailed(pipeline.pipeline.name, describe_error(error))
    return bool(requests.count)


def _show(query: StreamingQuery, pipeline: Pipeline, screen: Screen, shown: int) -> int:
    """Show the batches that have finished since ``shown``; return the last one."""
    last: Any = query.lastProgress
    if last is None or last["batchId"] <= shown:
        return shown
    for progress in query.recentProgress:
        ended = finished_batch(progress)
        if ended is not None and ended.number > shown:
            screen.batch(ended)
            shown = ended.number
            if ended.state is not None:
                _note(pipeline, ended.number, ended.state)
    return shown


def _note(pipeline: Pipeline, batch: int, found: StateProgress) -> None:
    """Store the plan's state after a batch for ``pipeline status``."""
    store = process.host(StoreOptions(**store_options(pipeline))).metadata
    name = pipeline.pipeline.name

    async def keep() -> None:
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            await store_note(store, name, after(await load_note(store, name), batch, found))

    process.run(keep())


def _is_of_spark(error: Exception) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    # A JVM that has ended is reported as an error of the connection to it.
    return isinstance(error, Py4JError | PySparkException | ConnectionError)
