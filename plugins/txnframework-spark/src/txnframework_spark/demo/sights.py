"""The state of the stores and of Spark's checkpoint while the pipeline waits at a point.

The pipeline reports its position; the records themselves must confirm it. A kill at another moment would prove nothing,
so it counts as missed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from txnframework.interfaces import IMetadataStore
from txnframework.model import paths, records
from txnframework.model.ids import TxnID
from txnframework.model.metadata import KeyRange
from txnframework_spark.microbatch.pause import ACKS_PUT, COMMITTED, MID_WRITE, PLANNED

_SCAN_ITEMS_MAX = 500
_OPEN = "OPEN"
_COMMITTED = "COMMITTED"


@dataclass(frozen=True, slots=True)
class Report:
    """The report of the process that waits at a pause point; ``txn`` None: it does not know the transaction yet."""

    point: str
    batch: int
    pid: int
    run: str | None = None
    txn: str | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """The records at that moment.

    ``planned`` and ``known_to_spark``: the checkpoint has ``offsets/N`` and ``commits/N``; ``registered``: the batch's
    ranges are registered on the subscription; the transaction's ``state``, the segments with its intents, and the
    number of its acknowledgments.
    """

    planned: bool
    known_to_spark: bool
    registered: bool
    state: str | None = None
    writes: tuple[str, ...] = ()
    acks: int = 0


def find_report(directory: Path, point: str, batch: int) -> Report | None:
    """Return the first report of the point, or None."""
    for path in sorted(directory.glob(f"{point}-{batch}-*.json")):
        said = json.loads(path.read_text(encoding="utf-8"))
        return Report(said["point"], said["batch"], said["pid"], said.get("run"), said.get("txn"))
    return None


def release(directory: Path, point: str, batch: int) -> None:
    """Release the processes that wait at the point."""
    (directory / f"{point}-{batch}.release").touch()


def why_missed(point: str, sight: Sight) -> str | None:
    """Return how the records contradict the point; None if they do not."""
    if not sight.planned:
        return "Spark has not planned the batch"
    if sight.known_to_spark:
        return "Spark knows already that the batch is committed"
    if point == PLANNED:
        return "what the batch reads is registered already" if sight.registered else None
    if not sight.registered:
        return "what the batch reads is not registered"
    if point == COMMITTED:
        return None if sight.state == _COMMITTED else f"its transaction is {sight.state}"
    if sight.state != _OPEN:
        return f"its transaction is {sight.state}"
    if not sight.writes:
        return "its transaction has written nothing"
    if point == MID_WRITE:
        return "acknowledgments are put already" if sight.acks else None
    if point == ACKS_PUT:
        return None if sight.acks else "no acknowledgment is put"
    return f"there is no point {point}"


async def look(store: IMetadataStore, checkpoint: Path, subscription: tuple[str, str], report: Report) -> Sight:
    """Return the current records; ``subscription``: the topic that is read, and the name."""
    record = await store.get(paths.subscription_key(*subscription))
    registered = record is not None and any(
        registration.batch == report.batch and registration.run == (report.run or registration.run)
        for registration in records.decode(records.SubscriptionRecord, record).registrations
    )
    sight = Sight(
        planned=(checkpoint / "offsets" / str(report.batch)).exists(),
        known_to_spark=(checkpoint / "commits" / str(report.batch)).exists(),
        registered=registered,
    )
    if report.txn is None:
        return sight
    txn_id = TxnID.parse(report.txn)
    header = await store.get(paths.header_key(txn_id))
    state = None if header is None else records.decode(records.TransactionHeader, header).state
    operations = await _operations_of(store, txn_id)
    writes = tuple(sorted({one.segment for one in operations if isinstance(one, records.WriteOperation)}))
    acks = sum(isinstance(one, records.AckOperation) for one in operations)
    return Sight(sight.planned, sight.known_to_spark, registered, state, writes, acks)


async def _operations_of(store: IMetadataStore, txn_id: TxnID) -> list[records.AnyOperation]:
    operations: list[records.AnyOperation] = []
    left: KeyRange | None = paths.operations_range(txn_id)
    while left is not None:
        page = await store.scan(left, _SCAN_ITEMS_MAX)
        operations.extend(records.decode_operation(record) for record in page.records)
        left = page.resume if isinstance(page.resume, KeyRange) else None
    return operations
