"""The driver of a compaction: for each segment in turn it begins an attempt, runs copy tasks, and finishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel

from txnframework.broker import EVERYTHING, Attempt, CompactionResult, Host, Order
from txnframework.errors import Fenced
from txnframework.model.names import parse_name, segment_id_of
from txnframework_spark import process
from txnframework_spark.failures import sentence_of
from txnframework_spark.jobs.compaction.segments import Standing, standing
from txnframework_spark.jobs.compaction.tasks import COPIES, IN_ORDER, WRITTEN, copying, writing
from txnframework_spark.jobs.errors import JobFailed
from txnframework_spark.jobs.progress import JobProgress, Meter
from txnframework_spark.options.stores import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMPACTED: Final = "compacted"
WOULD_BE: Final = "would be compacted"
UP_TO_DATE: Final = "up to date"
NOTHING_YET: Final = "nothing is decided yet"


@dataclass(frozen=True, slots=True)
class Result:
    """The result for a segment: ``kept_messages`` of those ``looked_at``, with a size of ``kept_bytes``."""

    standing: Standing
    state: str
    kept_messages: int
    kept_bytes: int
    ledgers: int = 0

    def document(self) -> dict[str, object]:
        """Return the result for a table or for JSON."""
        before = self.standing
        done = self.state in (COMPACTED, WOULD_BE)
        return {
            "segment": segment_id_of(parse_name(before.segment)),
            "state": self.state,
            "upto": str(before.plan.upto),
            "messages": before.looked_at if done else None,
            "kept": self.kept_messages if done else None,
            "dropped": before.looked_at - self.kept_messages if done else None,
            "segment_bytes": before.stored_bytes,
            "kept_bytes": self.kept_bytes if done else None,
            "ledgers": self.ledgers if self.state == COMPACTED else None,
            "waits_for": list(before.held_by),
        }


@dataclass(frozen=True, slots=True)
class Compaction:
    """A compaction; ``messages_max``: of one read task; ``dry_run``: everything is read, and nothing is written."""

    stores: StoreOptions
    order: Order
    messages_max: int
    dry_run: bool = False

    def run(self, spark: SparkSession, segments: Sequence[str], progress: JobProgress) -> list[Result]:
        """
        Compact segments.

        :raises CommitOrderUnknown: the commit order of a segment's messages is no longer known.
        :raises Fenced: another compaction of a segment began later.
        :raises JobFailed: a task failed; earlier segments are compacted, and this one is unchanged.
        """
        host = process.host(self.stores)
        return [self._segment(spark, host, segment, progress) for segment in segments]

    def _segment(self, spark: SparkSession, host: Host, segment: str, progress: JobProgress) -> Result:
        title = f"segment {segment_id_of(parse_name(segment))}"
        with progress.step(f"{title}: planning"):
            before = process.run(standing(host, segment, self.order, self.messages_max))
        if before.is_empty or before.is_done:
            return Result(before, NOTHING_YET if before.is_empty else UP_TO_DATE, 0, 0)
        meter = Meter(spark)
        if self.dry_run:
            with progress.tasks(f"{title}: reading", spark, meter):
                return self._measured(spark, before, meter)
        attempt = process.run(host.compaction.attempts.begin(segment))
        try:
            if attempt.earlier != before.earlier:  # another compaction has finished since
                before = process.run(standing(host, segment, self.order, self.messages_max))
            with progress.tasks(f"{title}: copying", spark, meter):
                return self._copied(spark, host, before, attempt, meter)
        except BaseException as error:
            raise_as = self._why(host, attempt, error)
            process.run(host.compaction.attempts.give_up(attempt))
            if raise_as is error:
                raise
            raise raise_as from error

    def _measured(self, spark: SparkSession, before: Standing, meter: Meter) -> Result:
        try:
            found = self._copies(spark, before, meter).selectExpr("sum(messages)", "sum(length(data))").collect()[0]
        except Exception as error:
            raise JobFailed(sentence_of(error)) from error
        return Result(before, WOULD_BE, found[0] or 0, found[1] or 0)

    def _copied(self, spark: SparkSession, host: Host, before: Standing, attempt: Attempt, meter: Meter) -> Result:
        copied = self._copies(spark, before, meter)
        if self.order == "commit":
            # Spark reads the copies twice to sort them: persisted on the executors, they are read from the ledger once.
            copied = copied.persist(StorageLevel.DISK_ONLY)
            ordered = copied.orderBy(*IN_ORDER)
        else:
            ordered = copied
        try:
            rows = ordered.mapInArrow(writing(self.stores, attempt), WRITTEN).collect()
        finally:
            copied.unpersist()
        rows.sort(key=lambda row: row["part"])  # partitions of sorted copies are in order
        ledgers = tuple(row["ledger"] for row in rows) or (process.run(_empty(host, attempt)),)
        kept = CompactionResult(ledgers, before.plan.upto, EVERYTHING, self.order)
        process.run(host.compaction.attempts.finish(attempt, kept))
        messages, size = sum(row["messages"] for row in rows), sum(row["bytes"] for row in rows)
        return Result(before, COMPACTED, messages, size, len(ledgers))

    def _copies(self, spark: SparkSession, before: Standing, meter: Meter) -> DataFrame:
        numbers = spark.range(0, len(before.plan.ranges), 1, max(1, len(before.plan.ranges)))
        return numbers.mapInArrow(copying(self.stores, before.plan, meter), COPIES)

    def _why(self, host: Host, attempt: Attempt, error: BaseException) -> BaseException:
        """Return the error to raise: after a newer attempt, a task may have failed with any error."""
        if not isinstance(error, Exception) or isinstance(error, Fenced):
            return error
        if not process.run(host.compaction.attempts.goes_on(attempt)):
            return Fenced(f"compaction of {attempt.segment}", "one that began later")
        return JobFailed(f"{attempt.segment} was not compacted: {sentence_of(error)}")


async def _empty(host: Host, attempt: Attempt) -> str:
    """Write an empty ledger, for a segment of which nothing was kept; return its name."""
    async with host.compaction.attempts.writing(attempt) as writer:
        await writer.seal()
        return writer.name
