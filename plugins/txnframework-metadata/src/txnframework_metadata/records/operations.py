"""Headers and operation records in the metadata store: put on condition that the header is OPEN, scan, forget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txnframework.errors import (
    Closed,
    NotFound,
    NotTransactionOwner,
    OutcomeUnknown,
    TransactionConflict,
    TransactionDomainMismatch,
    TransactionNotFound,
    TxnFrameworkError,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import IAtomicBatchStore, IMetadataStore
from txnframework.model.ids import TxnID
from txnframework.model.metadata import (
    Batch,
    Check,
    Delete,
    Expect,
    IndexRange,
    KeyRange,
    PutSequential,
    Record,
)
from txnframework.model.paths import header_key, operations_prefix, operations_range
from txnframework.model.records import AckOperation, AnyOperation, WriteOperation, encode
from txnframework.model.transactions import State
from txnframework_metadata.records.views import (
    FAMILY,
    Header,
    StoredOperation,
    header_of,
    operation_indexes,
    operation_of,
)

STEPS_TOGETHER_MAX = 100
"""Steps of one atomic batch; stores bound the size of a request."""


# -- reading ------------------------------------------------------------------------------------------


async def read_header(store: IMetadataStore, txn_id: TxnID) -> Header | None:
    """Return a transaction's header as it is now, or None."""
    record = await store.get(header_key(txn_id))
    return None if record is None else header_of(record)


def require_owner(header: Header, principal: str) -> None:
    """Raise NotTransactionOwner if the transaction belongs to somebody else."""
    owner = header.transaction.principal
    if owner and owner != principal:
        raise NotTransactionOwner(header.transaction.txn_id, principal)


async def require_open(store: IMetadataStore, txn_id: TxnID, principal: str | None = None) -> Header:
    """
    Return the header of an open transaction that ``principal`` may add to (None: that was looked at before).

    :raises TransactionNotFound: it is not known.
    :raises NotTransactionOwner: it belongs to somebody else, who alone is told how it stands.
    :raises TransactionConflict: it has ended.
    """
    header = await read_header(store, txn_id)
    if header is None:
        raise TransactionNotFound(txn_id)
    if principal is not None:
        require_owner(header, principal)
    if header.transaction.state is not State.OPEN:
        raise TransactionConflict(txn_id, f"it has ended ({header.transaction.state.value}); begin another one")
    return header


def require_family(txn_id: TxnID, topic: str) -> None:
    """Raise TransactionDomainMismatch unless the transaction is of this family."""
    if txn_id.family != FAMILY:
        raise TransactionDomainMismatch(txn_id, txn_id.family, topic, f"it takes those of the {FAMILY} family")


async def scan_all(store: IMetadataStore, keys: KeyRange, page_records: int) -> list[Record]:
    """Return every record of a range, page by page; for ranges whose size is bounded by what is open."""
    found: list[Record] = []
    left: KeyRange | IndexRange | None = keys
    while isinstance(left, KeyRange):
        page = await store.scan(left, page_records)
        found += page.records
        left = page.resume
    return found


async def scan_index_all(store: IMetadataStore, entries: IndexRange, page_records: int) -> list[Record]:
    """Return every record with an entry in a range, page by page."""
    found: list[Record] = []
    left: KeyRange | IndexRange | None = entries
    while isinstance(left, IndexRange):
        page = await store.scan_index(left, page_records)
        found += page.records
        left = page.resume
    return found


async def scan_operations(store: IMetadataStore, txn_id: TxnID, page_records: int) -> list[StoredOperation]:
    """Return a transaction's operation records as they are now."""
    return [operation_of(record) for record in await scan_all(store, operations_range(txn_id), page_records)]


# -- putting ------------------------------------------------------------------------------------------


async def put_operations(
    store: IMetadataStore, header: Header, operations: Sequence[AnyOperation], page_records: int
) -> list[StoredOperation]:
    """
    Put operations of an open transaction; when this returns they stand and the transaction was OPEN after that.

    On a store without atomic batches they are put first and the header is read again (the *recheck*): between the two,
    others see records of a transaction that may have ended, which count for nothing. Operations are harmless in
    duplicate, so an unknown outcome is resolved by looking and putting what is missing once more.

    :raises TransactionConflict: the transaction has ended; nothing stands that has an effect.
    :raises TransactionNotFound: it is gone; as for the conflict.
    :raises OutcomeUnknown: some may stand.
    """
    try:
        return await _put_checked(store, header, operations)
    except OutcomeUnknown as error:
        unknown = error
    # What stands is left standing whatever happens now. It may be an earlier record that reads the same: an intent that
    # entries rely on, an acknowledgment that was confirmed. Settling removes it, in the order that loses nothing.
    try:
        found = await scan_operations(store, header.transaction.txn_id, page_records)
        standing, missing = _matched(found, operations)
        again = await require_open(store, header.transaction.txn_id)
        return standing + (await _put_checked(store, again, missing) if missing else [])
    except (TransactionConflict, NotFound) as error:
        if all(isinstance(document, WriteOperation) for document in operations):
            raise  # an intent without an entry has no effect
        raise OutcomeUnknown(f"{unknown}; then {error}") from error
    except (Unavailable, Closed) as error:
        raise OutcomeUnknown(f"{unknown}; then {error}") from error


async def _put_checked(
    store: IMetadataStore, header: Header, operations: Sequence[AnyOperation]
) -> list[StoredOperation]:
    """Put operations on the condition that the header is OPEN, by the means that the store has."""
    txn_id = header.transaction.txn_id
    prefix = operations_prefix(txn_id)
    puts = [PutSequential(prefix, encode(document), operation_indexes(txn_id, document)) for document in operations]
    if IAtomicBatchStore.providedBy(store):
        check = Check(header_key(txn_id), header.version)
        try:
            written = await store.apply(Batch((check,), tuple(puts)))
        except VersionMismatch:
            await require_open(store, txn_id)
            raise
        return [StoredOperation(record, txn_id, document) for record, document in zip(written, operations, strict=True)]
    stored: list[StoredOperation] = []
    try:
        for put, document in zip(puts, operations, strict=True):
            key = await store.put_sequential(put)
            stored.append(StoredOperation(Record(key, put.value, 0), txn_id, document))
        await require_open(store, txn_id)
    except (TransactionConflict, NotFound):
        await withdraw(store, stored)
        raise
    except (Unavailable, Closed) as error:
        # Some stand and are in the way of others, and the caller is going to be told that nothing was changed.
        try:
            await withdraw(store, stored)
        except TxnFrameworkError as undone:
            raise OutcomeUnknown(f"operations of {txn_id} may be recorded: {error}") from undone
        raise
    return stored


def _matched(
    found: Iterable[StoredOperation], operations: Sequence[AnyOperation]
) -> tuple[list[StoredOperation], list[AnyOperation]]:
    """
    Return which of ``operations`` stand among ``found``, and which do not.

    An acknowledgment that counts at once is never taken for one that was just put: it may be an earlier one, and what
    was just put is withdrawn on a conflict.
    """
    left = [stored for stored in found if not (isinstance(stored.document, AckOperation) and stored.document.admitted)]
    standing: list[StoredOperation] = []
    missing: list[AnyOperation] = []
    for document in operations:
        same = next((stored for stored in left if stored.document == document), None)
        if same is None:
            missing.append(document)
        else:
            left.remove(same)
            standing.append(same)
    return standing, missing


# -- forgetting ---------------------------------------------------------------------------------------


async def withdraw(store: IMetadataStore, operations: Iterable[StoredOperation]) -> None:
    """Remove operations that this process put and that never took effect."""
    for operation in operations:
        await store.delete(operation.record.key, Expect.ANY)


async def forget(store: IMetadataStore, operations: Sequence[StoredOperation]) -> None:
    """
    Remove operations of one transaction whose effect is durable, as they were read; what is gone already is fine.

    An operation that changed since it was read stays: another process may have admitted it in the meantime, and its
    caller was told that it counts.
    """
    for at in range(0, len(operations), STEPS_TOGETHER_MAX):
        some = operations[at : at + STEPS_TOGETHER_MAX]
        if IAtomicBatchStore.providedBy(store) and len(some) > 1:
            deletes = tuple(Delete(operation.record.key, operation.record.version) for operation in some)
            try:
                await store.apply(Batch(deletes=deletes))
            except VersionMismatch:
                pass  # somebody else settles the same transaction: one by one
            else:
                continue
        for operation in some:
            try:
                await store.delete(operation.record.key, operation.record.version)
            except VersionMismatch:
                continue
