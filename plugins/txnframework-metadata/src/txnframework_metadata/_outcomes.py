"""Outcomes and abort records of one segment, read from the metadata store."""

from __future__ import annotations

from txnframework.interfaces import IMetadataStore
from txnframework.model.ids import Branch
from txnframework.model.metadata import KeyRange
from txnframework.model.paths import abort_record_key, abort_record_of, abort_records_range
from txnframework.model.positions import Position
from txnframework.model.reading import Visibility
from txnframework.model.records import AbortRecord, decode
from txnframework_metadata._operations import read_header, scan_all
from txnframework_metadata._visibility import outcome_of


async def branch_outcome(
    store: IMetadataStore, segment: str, branch: Branch, ledger_id: int | None, page_records: int
) -> Visibility:
    """
    Return what is known of a branch that wrote to ``segment`` (in ``ledger_id``, if that is known).

    The header is read first: when it is gone, every abort record that was needed stood before that, so a branch without
    one was committed.
    """
    header = await read_header(store, branch.txn_id)
    if header is not None:
        return outcome_of(header.transaction, branch)
    if ledger_id is not None:
        record = await store.get(abort_record_key(segment, ledger_id, branch.txn_id, branch.number))
        return Visibility.COMMITTED if record is None else Visibility.ABORTED
    left: KeyRange | object | None = abort_records_range(segment)
    while isinstance(left, KeyRange):
        page = await store.scan(left, page_records)
        for found in page.records:
            _, _, txn_id, number = abort_record_of(found.key.path)
            if Branch(txn_id, number) == branch:
                return Visibility.ABORTED
        left = page.resume
    return Visibility.COMMITTED


async def abort_records(
    store: IMetadataStore, segment: str, first: int, below: int | None, page_records: int
) -> list[tuple[int, Branch]]:
    """Return ledger and branch of every abort record from ledger ``first`` on, and before ``below``."""
    found = []
    for record in await scan_all(store, abort_records_range(segment, first, below), page_records):
        _, ledger_id, txn_id, number = abort_record_of(record.key.path)
        found.append((ledger_id, Branch(txn_id, number)))
    return found


async def highest_abort_bound(store: IMetadataStore, segment: str, first: int, page_records: int) -> Position | None:
    """Return the furthest place that an abort record from ledger ``first`` on speaks of; None without any."""
    highest: Position | None = None
    for record in await scan_all(store, abort_records_range(segment, first), page_records):
        _, ledger_id, _, _ = abort_record_of(record.key.path)
        after = Position.parse(decode(AbortRecord, record).after)
        bound = max(after, Position(ledger_id, -1))
        highest = bound if highest is None else max(highest, bound)
    return highest
