"""``txnframework job compact``: the broker's compaction, with copies made by parallel tasks.

The driver begins an attempt for each segment in turn, runs copy tasks, and finishes the attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
from pyspark import StorageLevel

from txnframework.broker import EVERYTHING, Attempt, CompactionResult, Copied, CopyPlan, CopyRange, Host, Order, copies
from txnframework.errors import Fenced, InvalidInput, TransactionNotFound
from txnframework.model.layout import Layout
from txnframework.model.names import parse_name, segment_id_of, topic_of
from txnframework.model.positions import EARLIEST, Limit
from txnframework.model.transactions import OpenQuery
from txnframework_spark import process
from txnframework_spark.errors import JobFailed, describe_error
from txnframework_spark.jobs.session import JobProgress, Meter
from txnframework_spark.options.parser import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


OPEN_MAX: Final = 100
"""The number of open transactions that are examined to find those that block a segment."""

LEDGERS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """
    The state of a segment before its compaction.

    ``earlier`` is the result of an earlier compaction, ``stored_bytes`` the size of the segment. Messages after
    ``plan.upto`` are ``undecided`` because of the open transactions ``held_by``.
    """

    segment: str
    earlier: CompactionResult | None
    plan: CopyPlan
    stored_bytes: int
    undecided: bool
    held_by: tuple[str, ...]

    @property
    def message_count(self) -> int:
        """The number of messages to examine."""
        return sum(one.messages for one in self.plan.ranges)

    @property
    def is_empty(self) -> bool:
        """Whether no message is decided yet."""
        return self.plan.upto == EARLIEST

    @property
    def is_done(self) -> bool:
        """Whether an earlier compaction has the same end, order and compactor."""
        kept = self.earlier
        return kept is not None and (kept.upto, kept.order, kept.compactor) == (
            self.plan.upto,
            self.plan.order,
            EVERYTHING,
        )


def select_segments(layout: Layout, segment: int | None) -> tuple[str, ...]:
    """Return the names of the segments to compact, parents before children."""
    made = layout.made()
    if segment is not None and segment not in made:
        there = ", ".join(map(str, made))
        raise InvalidInput(f"{layout.topic} has no segment {segment}; there are {there}")
    return tuple(str(layout.name_of(one)) for one in made if segment in (None, one))


async def load_segment_status(host: Host, segment: str, order: Order, messages_max: int) -> SegmentStatus:
    """
    Return the state of a segment; changes nothing.

    :raises CommitOrderUnknown: its first messages were trimmed.
    """
    earlier = await host.compaction.attempts.result(segment)
    plan = await host.compaction.plan(segment, earlier, order, messages_max)
    ledger = (await host.segment(segment)).ledger
    tail = await ledger.tail()
    size, last = 0, -1
    while found := await ledger.ledgers(last, LEDGERS_MAX):
        size, last = size + sum(one.bytes for one in found), found[-1].ledger_id
    undecided = plan.upto < tail.last_confirmed
    held_by = await _open_in(host, segment) if undecided else ()
    return SegmentStatus(segment, earlier, plan, size, undecided, held_by)


async def _open_in(host: Host, segment: str) -> tuple[str, ...]:
    """Return the open transactions that wrote to a segment, in the order of their deadlines."""
    coordinator = await host.coordinator(topic_of(segment).domain)
    found = []
    for one in await coordinator.list_open(OpenQuery(limit=Limit(OPEN_MAX))):
        try:
            described = await coordinator.describe(one.txn_id)
        except TransactionNotFound:  # it ended after the listing
            continue
        if any(part.participant.segment == segment for part in described.parts):
            found.append(str(one.txn_id))
    return tuple(found)


Batches: TypeAlias = Iterator[pa.RecordBatch]

COPIES: Final = "time_ms bigint, ledger bigint, entry bigint, data binary, messages int"
IN_ORDER: Final = ("time_ms", "ledger", "entry")
WRITTEN: Final = "part int, ledger string, entries bigint, messages bigint, bytes bigint"

_COPY_FIELDS: Final = pa.schema(
    [
        ("time_ms", pa.int64()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("data", pa.binary()),
        ("messages", pa.int32()),
    ]
)
_WRITTEN_FIELDS: Final = pa.schema(
    [
        ("part", pa.int32()),
        ("ledger", pa.string()),
        ("entries", pa.int64()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
_BATCH_BYTES: Final = 4 * 1024 * 1024
_RANDOM_BITS: Final = 62


def copying(stores: StoreOptions, plan: CopyPlan, meter: Meter) -> Callable[[Batches], Batches]:
    """Return a function that copies the ranges with the numbers that a task gets."""
    messages, size = meter.messages, meter.bytes

    def copy(numbers: Batches) -> Batches:
        host = process.host(stores)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for found in _pages(host, plan, plan.ranges[number]):
                    messages.add(sum(one.messages for one in found))
                    size.add(sum(len(one.data) for one in found))
                    yield _as_batch(found)

    return copy


def _pages(host: Host, plan: CopyPlan, planned: CopyRange) -> Iterator[list[Copied]]:
    """Yield the copies of a range, page by page."""
    times = process.run(host.compaction.commit_times(plan.segment)) if plan.order == "commit" else None

    async def page() -> list[Copied]:
        taken: list[Copied] = []
        left = _BATCH_BYTES
        async for one in found:
            taken.append(one)
            left -= len(one.data)
            if left <= 0:
                break
        return taken

    with process.enter_context(aclosing(copies(host.ledgers, planned, plan.aborted, times))) as found:
        while taken := process.run(page()):
            yield taken


def _as_batch(found: list[Copied]) -> pa.RecordBatch:
    columns = [
        pa.array([one.time_ms for one in found], pa.int64()),
        pa.array([one.position.ledger_id for one in found], pa.int64()),
        pa.array([one.position.entry_id for one in found], pa.int64()),
        pa.array([one.data for one in found], pa.binary()),
        pa.array([one.messages for one in found], pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_COPY_FIELDS)


def writing(stores: StoreOptions, attempt: Attempt) -> Callable[[Batches], Batches]:
    """Return a function that writes a task's copies to a new ledger and reports it; no ledger without copies.

    Each attempt of a task has its own ledger. The ledger that was reported is listed at the end, others are removed.
    """

    def write(copied: Batches) -> Batches:
        from pyspark import TaskContext

        host = process.host(stores)
        context = TaskContext.get()
        assert context is not None, "it runs in a task"
        filled = (batch for batch in copied if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        part = f"{context.partitionId():06}-{host.environment.random_bits(_RANDOM_BITS):016x}"
        entries = messages = size = 0
        with process.enter_context(host.compaction.attempts.open_writer(attempt, part)) as writer:
            for batch in chain((first,), filled):
                datas, counts = batch.column("data").to_pylist(), batch.column("messages").to_pylist()
                process.run(writer.add_all(tuple(zip(datas, counts, strict=True))))
                entries, messages, size = entries + len(datas), messages + sum(counts), size + sum(map(len, datas))
            process.run(writer.seal())
        row = (context.partitionId(), writer.name, entries, messages, size)
        columns = [pa.array([one], field.type) for one, field in zip(row, _WRITTEN_FIELDS, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=_WRITTEN_FIELDS)

    return write


COMPACTED: Final = "compacted"
WOULD_BE: Final = "would be compacted"
UP_TO_DATE: Final = "up to date"
NOTHING_YET: Final = "no decided messages"


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The result for a segment: ``kept_messages`` of those ``message_count``, with a size of ``kept_bytes``."""

    status: SegmentStatus
    state: str
    kept_messages: int
    kept_bytes: int
    ledgers: int = 0

    def document(self) -> dict[str, object]:
        """Return the result for a table or for JSON."""
        before = self.status
        done = self.state in (COMPACTED, WOULD_BE)
        return {
            "segment": segment_id_of(parse_name(before.segment)),
            "state": self.state,
            "upto": str(before.plan.upto),
            "messages": before.message_count if done else None,
            "kept": self.kept_messages if done else None,
            "dropped": before.message_count - self.kept_messages if done else None,
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

    def run(self, spark: SparkSession, segments: Sequence[str], progress: JobProgress) -> list[CompactionReport]:
        """
        Compact segments.

        :raises CommitOrderUnknown: the commit order of a segment's messages is no longer known.
        :raises Fenced: another compaction of a segment began later.
        :raises JobFailed: a task failed; earlier segments are compacted, and this one is unchanged.
        """
        host = process.host(self.stores)
        return [self._segment(spark, host, segment, progress) for segment in segments]

    def _segment(self, spark: SparkSession, host: Host, segment: str, progress: JobProgress) -> CompactionReport:
        title = f"segment {segment_id_of(parse_name(segment))}"
        with progress.step(f"{title}: planning"):
            before = process.run(load_segment_status(host, segment, self.order, self.messages_max))
        if before.is_empty or before.is_done:
            return CompactionReport(before, NOTHING_YET if before.is_empty else UP_TO_DATE, 0, 0)
        meter = Meter(spark)
        if self.dry_run:
            with progress.tasks(f"{title}: reading", spark, meter):
                return self._measured(spark, before, meter)
        attempt = process.run(host.compaction.attempts.begin(segment))
        try:
            if attempt.earlier != before.earlier:  # another compaction has finished since
                before = process.run(load_segment_status(host, segment, self.order, self.messages_max))
            with progress.tasks(f"{title}: copying", spark, meter):
                return self._copied(spark, host, before, attempt, meter)
        except BaseException as error:
            raise_as = self._why(host, attempt, error)
            process.run(host.compaction.attempts.abandon(attempt))
            if raise_as is error:
                raise
            raise raise_as from error

    def _measured(self, spark: SparkSession, before: SegmentStatus, meter: Meter) -> CompactionReport:
        try:
            found = self._copies(spark, before, meter).selectExpr("sum(messages)", "sum(length(data))").collect()[0]
        except Exception as error:
            raise JobFailed(describe_error(error)) from error
        return CompactionReport(before, WOULD_BE, found[0] or 0, found[1] or 0)

    def _copied(
        self, spark: SparkSession, host: Host, before: SegmentStatus, attempt: Attempt, meter: Meter
    ) -> CompactionReport:
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
        return CompactionReport(before, COMPACTED, messages, size, len(ledgers))

    def _copies(self, spark: SparkSession, before: SegmentStatus, meter: Meter) -> DataFrame:
        numbers = spark.range(0, len(before.plan.ranges), 1, max(1, len(before.plan.ranges)))
        return numbers.mapInArrow(copying(self.stores, before.plan, meter), COPIES)

    def _why(self, host: Host, attempt: Attempt, error: BaseException) -> BaseException:
        """Return the error to raise: after a newer attempt, a task may have failed with any error."""
        if not isinstance(error, Exception) or isinstance(error, Fenced):
            return error
        if not process.run(host.compaction.attempts.is_current(attempt)):
            return Fenced(f"compaction of {attempt.segment}", "one that began later")
        return JobFailed(f"{attempt.segment} was not compacted: {describe_error(error)}")


async def _empty(host: Host, attempt: Attempt) -> str:
    """Write an empty ledger, for a segment of which nothing was kept; return its name."""
    async with host.compaction.attempts.open_writer(attempt) as writer:
        await writer.seal()
        return writer.name
