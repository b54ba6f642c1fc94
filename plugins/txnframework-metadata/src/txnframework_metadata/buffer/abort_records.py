"""Outcomes of branches in one segment, as the metadata store has them, and the abort records that make them durable."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable

from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model import index_keys
from txnframework.model.ids import Branch
from txnframework.model.indexes import WRITES_BY_SEGMENT, abort_bound, abort_indexes, aborts_beyond
from txnframework.model.metadata import Expect, Key, KeyRange, Put, Record
from txnframework.model.paths import abort_record_key, abort_record_of, abort_records_range
from txnframework.model.positions import Position
from txnframework.model.reads import Visibility
from txnframework.model.records import AbortRecord, WriteOperation, decode, encode
from txnframework.model.transactions import State, Transaction
from txnframework_metadata.buffer.visibility import outcome_of
from txnframework_metadata.records.headers import read_header
from txnframework_metadata.records.operations import require_family, scan_all, scan_index_all
from txnframework_metadata.records.shared_operations import SharedOperations
from txnframework_metadata.records.views import operation_of

_GETS_TOGETHER_MAX = 4
"""Up to this number, abort records are read one by one; above it, by scanning the range that contains them."""


async def branch_outcome(
    store: IMetadataStore,
    segment: str,
    branch: Branch,
    ledger_id: int | None,
    families: frozenset[str] = frozenset(),
) -> Visibility:
    """
    Return the outcome of a branch that wrote to ``segment`` (in ``ledger_id``, if that is known).

    ``families``: other families whose transactions in the segment have all ended. They have no headers here.

    The header is read first. Every abort record that is needed is stored before the header is deleted. A branch without
    header and abort record was therefore committed.
    """
    if branch.txn_id.family not in families:
        require_family(branch.txn_id, segment)
    header = await read_header(store, branch.txn_id)
    if header is not None:
        return outcome_of(header.transaction, branch)
    if ledger_id is None:
        aborted = await _aborted_somewhere(store, segment, branch)
    else:
        aborted = await store.get(_key(segment, ledger_id, branch)) is not None
    return Visibility.ABORTED if aborted else Visibility.COMMITTED


async def _aborted_somewhere(store: IMetadataStore, segment: str, branch: Branch) -> bool:
    """
    Return whether a branch has an abort record in any ledger.

    It takes at most two requests for each ledger that has abort records.
    """
    whole = abort_records_range(segment)
    wanted = _key(segment, 0, branch)
    while True:
        page = await store.scan(KeyRange(wanted.path, whole.stop, segment), 1)
        if not page.records:
            return False
        (found,) = page.records
        if found.key == wanted:
            return True
        # This record belongs to another branch: the ledger has no record of the requested branch, or this is the next
        # ledger with records.
        _, ledger_id, _, _ = abort_record_of(found.key.path)
        beyond = found.key.path > _key(segment, ledger_id, branch).path
        wanted = _key(segment, ledger_id + 1 if beyond else ledger_id, branch)


async def aborted_branches(
    store: IMetadataStore, segment: str, ledger_id: int, branches: Iterable[Branch], page_records: int
) -> set[Branch]:
    """
    Return those of ``branches`` that have an abort record in one ledger.

    The cost depends on the number of branches asked for, not on how many were aborted. A scan that meets many other
    records continues at the next branch that is asked for.
    """
    asked = left = sorted(branches, key=_order)
    found: set[Branch] = set()
    while len(left) > _GETS_TOGETHER_MAX:
        first, last = (_key(segment, ledger_id, branch).path for branch in (left[0], left[-1]))
        # The slash sorts after every end that the last path may have, and no other key lies between.
        page = await store.scan(KeyRange(first, f"{last}/", segment), min(page_records, len(left)))
        standing = [_branch_of(record) for record in page.records]
        found.update(standing)
        left = [] if page.resume is None else left[bisect_right(left, _order(standing[-1]), key=_order) :]
    records = await asyncio.gather(*(store.get(_key(segment, ledger_id, branch)) for branch in left))
    found.update(_branch_of(record) for record in records if record is not None)
    return found.intersection(asked) if found else found


async def all_aborted_branches(
    store: IMetadataStore, segment: str, first: int, last: int, page_records: int
) -> set[Branch]:
    """Return the branches that have an abort record in the ledgers from ``first`` to ``last``."""
    records = await scan_all(store, abort_records_range(segment, first, last + 1), page_records)
    return {_branch_of(record) for record in records}


async def highest_abort_bound(
    store: IMetadataStore, segment: str, beyond: Position, page_records: int
) -> Position | None:
    """Return the furthest position beyond ``beyond`` that an abort record names, or None."""
    bounds = [
        abort_bound(abort_record_of(record.key.path)[1], decode(AbortRecord, record))
        for record in await scan_index_all(store, aborts_beyond(segment, beyond), page_records)
    ]
    return max(bounds, default=None)


def _key(segment: str, ledger_id: int, branch: Branch) -> Key:
    """Return the key of the abort record of a branch in a ledger."""
    return abort_record_key(segment, ledger_id, branch.txn_id, branch.number)


def _branch_of(record: Record) -> Branch:
    """Return the branch of an abort record."""
    _, _, txn_id, number = abort_record_of(record.key.path)
    return Branch(txn_id, number)


def _order(branch: Branch) -> tuple[int, int, int]:
    """Return the sort key of abort records within one ledger."""
    return branch.txn_id.coordinator, branch.txn_id.number, branch.number


async def settle_writes(
    store: IMetadataStore,
    operations: SharedOperations,
    ledger: IManagedLedger,
    ended: Transaction,
    page_records: int,
) -> None:
    """
    Remove a transaction's write operations on one segment, after writing abort records for the branches that do not
    count.

    The order closes a crash window. If an operation were deleted before its abort record is stored, its entries would
    count as committed once the header is collected. Another process may have settled the transaction meanwhile, and
    trimmed the entries. Then an abort record is stored again; it is true, and the next trim removes it.

    :raises LedgerNotFound: the segment was deleted, so abort records would never be removed.
    """
    if ended.state not in (State.COMMITTED, State.ABORTED):
        raise ValueError(f"transaction {ended.txn_id} is {ended.state.value}, only an ended one can be settled")
    segment = ledger.name
    mine = []
    bounds: dict[tuple[int, int], Position] = {}
    found = operations.writes_of(ended.txn_id, segment)
    if found is None:
        # Read the operations on this segment only: a transaction may have as many others as it has participants.
        entries = index_keys.prefix_range(WRITES_BY_SEGMENT, segment, str(ended.txn_id))
        found = [operation_of(record) for record in await scan_index_all(store, entries, page_records)]
    for operation in found:
        document = operation.document
        if not isinstance(document, WriteOperation) or document.segment != segment:
            continue
        mine.append(operation)
        if not ended.counts(document.branch):
            place, after = (document.ledger, document.branch), Position.parse(document.after)
            bounds[place] = min(after, bounds.get(place, after))
    if bounds:
        await ledger.tail()
    for (ledger_id, branch), after in bounds.items():
        key = abort_record_key(segment, ledger_id, ended.txn_id, branch)
        record = AbortRecord(after=str(after))
        await store.put(Put(key, encode(record), Expect.ANY, abort_indexes(segment, ledger_id, record)))
    await operations.forget(ended.txn_id, mine)
