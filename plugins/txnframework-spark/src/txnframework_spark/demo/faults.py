"""The faults of the demo: their plan, the moments at which they are applied, and the records that confirm them.

The pipeline is started once for every ``Start``. The stops of a start are pause points that it reaches in order. At a
``SPLIT`` it waits, segments are split under its open transaction, and it continues. At a ``KILL`` it waits, and its
Python and JVM get SIGKILL. The last start has no stops and runs to the end of the input.

The pipeline reports its position; the records themselves must confirm it. A kill at another moment would prove nothing,
so it counts as missed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from txnframework.interfaces import IMetadataStore
from txnframework.model import paths, records
from txnframework.model.ids import TxnID
from txnframework.model.metadata import KeyRange
from txnframework_spark.errors import DemoFailed, DemoPipelineFailed
from txnframework_spark.microbatch.pause import ACKS_PUT, COMMITTED, MID_WRITE, PLANNED
from txnframework_spark.processes import FAILURE, DriverProcess

BATCHES_WANTED: Final = 13
SEGMENTS: Final = 2
_ENTRIES_A_BATCH: Final = 12
_SPREAD_BATCHES_MIN: Final = 10
_FIRST_PART: Final = 0.65


POINT_MEANINGS: Final = {
    PLANNED: "planned by Spark, not yet registered with the subscription",
    MID_WRITE: "half of its rows durable in an open transaction",
    ACKS_PUT: "acknowledgments put, the transaction still open",
    COMMITTED: "the transaction COMMITTED, Spark's commits/N absent",
}
"""The points where the demo kills, and the state of a batch at each."""

POINT_NAMES: Final = {
    PLANNED: "planned, not registered",
    MID_WRITE: "in mid-write",
    ACKS_PUT: "acks put, still open",
    COMMITTED: "COMMITTED, Spark unaware",
}
"""The same in short words, for a list of steps."""


class Fault(Enum):
    """The fault that is applied while the pipeline waits."""

    KILL = "kill"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop: at ``point`` in ``batch`` (as the query numbers them) the pipeline waits and ``fault`` is applied."""

    point: str
    batch: int
    fault: Fault = Fault.KILL


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the pipeline; ``lose_checkpoint``: Spark's checkpoint directory is deleted afterwards."""

    stops: tuple[Stop, ...] = ()
    lose_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run, in rows: a micro-batch, an entry, the part of the input that is loaded at the beginning.

    ``batches``: the minimum number of batches; a batch may exceed its size by one entry of each segment.
    """

    batch: int
    entry: int
    first_part: int
    batches: int


def sizes_for(rows: int, batch: int | None = None) -> Sizes:
    """Return the sizes for an input of so many rows; ``batch``: requested rows in a micro-batch, if any."""
    batch = batch if batch is not None else -(-rows // BATCHES_WANTED)
    entry = max(1, batch // _ENTRIES_A_BATCH)
    batches = max(1, rows // (batch + SEGMENTS * entry))
    return Sizes(batch, entry, first_part=max(1, round(rows * _FIRST_PART)), batches=batches)


def make_plan(batches: int) -> tuple[Start, ...]:
    """Return the faults for a pipeline of at least so many batches.

    Every plan kills at every point, including one where the header of batch 0 is COMMITTED and Spark does not know it.
    It splits in mid-write of a transaction that then commits. It deletes the checkpoint right after a commit that only
    the store knows: the new query must find that commit. With few batches, all faults hit batch 0, which is repeated
    after each kill.
    """
    if batches < _SPREAD_BATCHES_MIN:
        return (
            Start((Stop(PLANNED, 0),)),
            Start((Stop(MID_WRITE, 0),)),
            Start((Stop(MID_WRITE, 0, Fault.SPLIT), Stop(ACKS_PUT, 0))),
            Start((Stop(COMMITTED, 0),), lose_checkpoint=True),
            Start(),
        )
    return (
        Start((Stop(COMMITTED, 0),)),
        Start((Stop(PLANNED, 2),)),
        Start((Stop(MID_WRITE, 3),)),
        Start((Stop(MID_WRITE, 4, Fault.SPLIT), Stop(ACKS_PUT, 5))),
        Start((Stop(COMMITTED, 7),), lose_checkpoint=True),
        # A new query: its batches count from 0 again, and must not be mistaken for those of the old one.
        Start((Stop(COMMITTED, 0),)),
        Start(),
    )


def stops_in(plan: tuple[Start, ...], fault: Fault) -> tuple[Stop, ...]:
    """Return all stops of one kind, in order."""
    return tuple(stop for start in plan for stop in start.stops if stop.fault is fault)


_SCAN_ITEMS_MAX = 500
_STATE_OPEN = "OPEN"
_STATE_COMMITTED = "COMMITTED"


@dataclass(frozen=True, slots=True)
class PauseReport:
    """The report of the process that waits at a pause point; ``txn`` None: it does not know the transaction yet."""

    point: str
    batch: int
    pid: int
    run: str | None = None
    txn: str | None = None


@dataclass(frozen=True, slots=True)
class BatchRecords:
    """The records at that moment.

    ``planned``: the checkpoint has ``offsets/N``. ``known_to_spark``: it has ``commits/N``. ``registered``: the batch's
    ranges are registered on the subscription. ``state``: the state of the transaction. ``writes``: the segments with
    its intents. ``acks``: the number of its acknowledgments.
    """

    planned: bool
    known_to_spark: bool
    registered: bool
    state: str | None = None
    writes: tuple[str, ...] = ()
    acks: int = 0


def find_report(directory: Path, point: str, batch: int) -> PauseReport | None:
    """Return the first report of the point, or None."""
    for path in sorted(directory.glob(f"{point}-{batch}-*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        return PauseReport(
            document["point"], document["batch"], document["pid"], document.get("run"), document.get("txn")
        )
    return None


def release(directory: Path, point: str, batch: int) -> None:
    """Release the processes that wait at the point."""
    (directory / f"{point}-{batch}.release").touch()


def find_contradiction(point: str, batch_records: BatchRecords) -> str | None:
    """Return how the records contradict the point; None if they do not."""
    if not batch_records.planned:
        return "Spark has not planned the batch"
    if batch_records.known_to_spark:
        return "Spark has already recorded the batch as committed"
    if point == PLANNED:
        return "the batch's ranges are already registered" if batch_records.registered else None
    if not batch_records.registered:
        return "the batch's ranges are not registered"
    if point == COMMITTED:
        return None if batch_records.state == _STATE_COMMITTED else f"its transaction is {batch_records.state}"
    if batch_records.state != _STATE_OPEN:
        return f"its transaction is {batch_records.state}"
    if not batch_records.writes:
        return "its transaction has written nothing"
    if point == MID_WRITE:
        return "acknowledgments are already put" if batch_records.acks else None
    if point == ACKS_PUT:
        return None if batch_records.acks else "no acknowledgment is put"
    return f"there is no point {point}"


async def load_batch_records(
    store: IMetadataStore, checkpoint: Path, subscription: tuple[str, str], report: PauseReport
) -> BatchRecords:
    """Return the current records; ``subscription``: the topic that is read, and the name."""
    record = await store.get(paths.subscription_key(*subscription))
    registered = record is not None and any(
        registration.batch == report.batch and registration.run == (report.run or registration.run)
        for registration in records.decode(records.SubscriptionRecord, record).registrations
    )
    batch_records = BatchRecords(
        planned=(checkpoint / "offsets" / str(report.batch)).exists(),
        known_to_spark=(checkpoint / "commits" / str(report.batch)).exists(),
        registered=registered,
    )
    if report.txn is None:
        return batch_records
    txn_id = TxnID.parse(report.txn)
    header = await store.get(paths.header_key(txn_id))
    state = None if header is None else records.decode(records.TransactionHeader, header).state
    operations = await _operations_of(store, txn_id)
    writes = tuple(sorted({one.segment for one in operations if isinstance(one, records.WriteOperation)}))
    acks = sum(isinstance(one, records.AckOperation) for one in operations)
    return BatchRecords(batch_records.planned, batch_records.known_to_spark, registered, state, writes, acks)


async def _operations_of(store: IMetadataStore, txn_id: TxnID) -> list[records.AnyOperation]:
    operations: list[records.AnyOperation] = []
    left: KeyRange | None = paths.operations_range(txn_id)
    while left is not None:
        page = await store.scan(left, _SCAN_ITEMS_MAX)
        operations.extend(records.decode_operation(record) for record in page.records)
        left = page.resume if isinstance(page.resume, KeyRange) else None
    return operations


STUCK_AFTER_S: Final = 180.0
"""The longest time without a finished batch; the start of Spark takes up to a minute on a busy machine."""
_LOOK_EVERY_S: Final = 0.05


def wait_for_point(
    driver: DriverProcess, pauses: Path, checkpoint: Path, stop: Stop, note: Callable[[str], None]
) -> PauseReport | str:
    """
    Return the report of a process that waits at the point, or the reason why no process will; DemoPipelineFailed if it
    fails.
    """
    for _ in _while_it_runs(driver, checkpoint, note):
        report = find_report(pauses, stop.point, stop.batch)
        if report is not None:
            return report
    if driver.status() is None:
        return f"it was not reached within {STUCK_AFTER_S:.0f} s"
    return "the pipeline ended before it reached the point"


def wait_for_end(driver: DriverProcess, checkpoint: Path, note: Callable[[str], None]) -> None:
    """Wait until the pipeline has ended successfully; DemoPipelineFailed if it fails, DemoFailed without progress."""
    for _ in _while_it_runs(driver, checkpoint, note):
        pass
    if driver.status() is None:
        raise DemoFailed(f"the pipeline finished no batch for {STUCK_AFTER_S:.0f} s (its log is {driver.log})")


def last_committed(checkpoint: Path) -> int:
    """Return the last batch that Spark knows to be committed, -1 for none."""
    commits = checkpoint / "commits"
    names = [path.name for path in commits.iterdir()] if commits.is_dir() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _while_it_runs(driver: DriverProcess, checkpoint: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Yield repeatedly until the pipeline has ended or makes no more progress."""
    since, seen = time.monotonic(), last_committed(checkpoint)
    while driver.status() is None and time.monotonic() - since < STUCK_AFTER_S:
        done = last_committed(checkpoint)
        if done != seen:
            since, seen = time.monotonic(), done
            note(f"batch {done} done")
        yield
        time.sleep(_LOOK_EVERY_S)
    status = driver.status()
    if status:
        raise DemoPipelineFailed(status, _failure_reason(driver.log), driver.log)


def _failure_reason(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    document = [line.removeprefix(FAILURE) for line in lines if line.startswith(FAILURE)]
    return (
        document[-1]
        if document
        else next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    )
