"""Making the outcomes of writes durable in one segment."""

from __future__ import annotations

from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model import index_keys
from txnframework.model.indexes import WRITES_BY_SEGMENT, abort_indexes
from txnframework.model.metadata import Expect, Put
from txnframework.model.paths import abort_record_key
from txnframework.model.positions import Position
from txnframework.model.records import AbortRecord, WriteOperation, encode
from txnframework.model.transactions import State, Transaction
from txnframework_metadata.records.operations import forget, scan_index_all
from txnframework_metadata.records.views import operation_of


async def settle_writes(
    store: IMetadataStore, ledger: IManagedLedger, segment: str, ended: Transaction, page_records: int
) -> None:
    """
    Remove a transaction's write operations on ``segment``, after writing abort records for the branches that do not
    count.

    The order closes a crash window. If an operation were deleted before its abort record is stored, its entries would
    count as committed once the header is collected.

    :raises LedgerNotFound: the segment was deleted, so abort records would never be removed.
    """
    if ended.state not in (State.COMMITTED, State.ABORTED):
        raise ValueError(f"transaction {ended.txn_id} is {ended.state.value}, only an ended one can be settled")
    mine = []
    bounds: dict[tuple[int, int], Position] = {}
    # Read the operations on this segment only: a transaction may have as many others as it has participants.
    entries = index_keys.prefix_range(WRITES_BY_SEGMENT, segment, str(ended.txn_id))
    for stored in await scan_index_all(store, entries, page_records):
        operation = operation_of(stored)
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
    await forget(store, mine)
