"""Ended transactions that still have operations."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from txnframework.errors import (
    Corrupt,
)
from txnframework.interfaces import IMetadataStore
from txnframework.model.ids import TxnID
from txnframework.model.metadata import IndexRange, KeyRange, Record
from txnframework.model.paths import all_operations_range, operations_range, txn_id_of
from txnframework.model.positions import Limit
from txnframework.model.transactions import Outstanding, State
from txnframework_metadata.records.headers import read_header
from txnframework_metadata.records.operations import scan_all
from txnframework_metadata.records.views import StoredOperation, operation_of, participants_of


async def find_outstanding(
    store: IMetadataStore, after: TxnID | None, limit: Limit, page_records: int
) -> tuple[Outstanding, ...]:
    """Return the first transactions after ``after``, by id, that are not open and have operations."""
    whole = all_operations_range()
    left: KeyRange | None = whole if after is None else _behind(after, whole)
    found: list[Outstanding] = []
    while left is not None:
        page = await store.scan(left, page_records)
        seen = list(dict.fromkeys(txn_id_of(record.key.path) for record in page.records))
        for txn_id in seen:
            outstanding = await _look_at(store, txn_id, page_records)
            if outstanding is not None:
                found.append(outstanding)
            if len(found) >= limit.items:
                return tuple(found)
        # The last transaction was examined completely, however many pages its operations take.
        left = None if page.resume is None else _rest(page.resume, seen, whole)
    return tuple(found)


async def _look_at(store: IMetadataStore, txn_id: TxnID, page_records: int) -> Outstanding | None:
    """Return the unfinished operations of a transaction as Outstanding; None if it is open or has none."""
    header = await read_header(store, txn_id)
    if header is not None and header.transaction.state is State.OPEN:
        return None
    # Read after the header, so that the operations belong to a transaction that had ended.
    records = await scan_all(store, operations_range(txn_id), page_records)
    if not records:
        return None
    if header is None:
        return Outstanding(txn_id, None, len(records))
    ended = msgspec.structs.replace(header.transaction, participants=participants_of(_readable(records)))
    return Outstanding(txn_id, ended, len(records))


def _readable(records: Sequence[Record]) -> list[StoredOperation]:
    """Return the operations that can be decoded; damaged ones are never removed, and are counted by the caller."""
    operations = []
    for record in records:
        with contextlib.suppress(Corrupt):
            operations.append(operation_of(record))
    return operations


def _behind(txn_id: TxnID, whole: KeyRange) -> KeyRange:
    """Return the range of operations of all transactions with a higher id."""
    return KeyRange(operations_range(txn_id).stop, whole.stop)


def _rest(resume: KeyRange | IndexRange, seen: Sequence[TxnID], whole: KeyRange) -> KeyRange | None:
    if seen:
        return _behind(seen[-1], whole)
    return resume if isinstance(resume, KeyRange) else None
