"""Operation records in the metadata store: reads, conditional writes and deletions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txnframework.errors import (
    Closed,
    NotFound,
    OutcomeUnknown,
    TransactionConflict,
    TransactionDomainMismatch,
    TransactionNotFound,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.model import index_keys
from txnframework.model.ids import TxnID
from txnframework.model.indexes import ACKS_BY_SEGMENT_SUBSCRIPTION, WRITES_BY_SEGMENT
from txnframework.model.metadata import Check, Delete, Expect, IndexEntry, IndexRange, KeyRange, PutSequential, Record
from txnframework.model.paths import cursor_key, operations_range
from txnframework.model.records import AckOperation, AnyOperation, WriteOperation, encode
from txnframework.model.steps import Reach, Step
from txnframework.model.transactions import State
from txnframework_metadata.records.headers import (
    FAMILY,
    Header,
    TransactionCache,
    read_header,
    require_owner,
)
from txnframework_metadata.records.views import StoredOperation, operation_of

STEPS_TOGETHER_MAX = 100
"""The most writes in one step; stores bound the size of a request."""


# -- reading ------------------------------------------------------------------------------------------


async def require_open(store: IMetadataStore, txn_id: TxnID, principal: str | None = None) -> Header:
    """
    Return the header of an open transaction that ``principal`` may add to (None: ownership was already checked).

    :raises TransactionNotFound: the transaction is unknown.
    :raises NotTransactionOwner: the transaction belongs to another principal; its state is reported to its owner only.
    :raises TransactionConflict: the transaction has ended, or a commit by its id has begun.
    """
    header = await read_header(store, txn_id)
    if header is None:
        raise TransactionNotFound(txn_id)
    if principal is not None:
        require_owner(header, principal)
    if header.transaction.state is not State.OPEN:
        raise TransactionConflict(txn_id, f"it has ended ({header.transaction.state.value}); begin another one")
    if header.closes:
        raise TransactionConflict(txn_id, "a commit by its id has begun, so nothing can be added; begin another one")
    return header


def require_family(txn_id: TxnID, topic: str) -> None:
    """Raise TransactionDomainMismatch unless the transaction belongs to this family."""
    if txn_id.family != FAMILY:
        raise TransactionDomainMismatch(txn_id, txn_id.family, topic, f"it takes those of the {FAMILY} family")


async def scan_all(store: IMetadataStore, keys: KeyRange, page_records: int) -> list[Record]:
    """
    Return every record of a range, page by page.

    Use it only for ranges bounded by the number of open transactions.
    """
    found: list[Record] = []
    left: KeyRange | IndexRange | None = keys
    while isinstance(left, KeyRange):
        page = await store.scan(left, page_records)
        found += page.records
        left = page.resume
    return found


async def scan_index_all(store: IMetadataStore, entries: IndexRange, page_records: int) -> list[Record]:
    """Return every record that has an index entry in a range, page by page."""
    found: list[Record] = []
    left: KeyRange | IndexRange | None = entries
    while isinstance(left, IndexRange):
        page = await store.scan_index(left, page_records)
        found += page.records
        left = page.resume
    return found


async def scan_operations(store: IMetadataStore, txn_id: TxnID, page_records: int) -> list[StoredOperation]:
    """Return a transaction's current operation records."""
    return [operation_of(record) for record in await scan_all(store, operations_range(txn_id), page_records)]


def operation_indexes(txn_id: TxnID, document: AnyOperation) -> tuple[IndexEntry, ...]:
    """Return the index entries of an operation of a transaction."""
    if isinstance(document, WriteOperation):
        return (IndexEntry(WRITES_BY_SEGMENT, index_keys.encode(document.segment, str(txn_id))),)
    if isinstance(document, AckOperation):
        key = index_keys.encode(document.segment, document.subscription)
        return (IndexEntry(ACKS_BY_SEGMENT_SUBSCRIPTION, key),)
    return ()


# -- putting ------------------------------------------------------------------------------------------


async def put_operations(
    store: IMetadataStore, header: Header, operations: Sequence[AnyOperation], page_records: int
) -> list[StoredOperation]:
    """
    Write operations of an open transaction. On return they are stored, and the transaction was OPEN after they were.

    Duplicate operations are harmless. An unknown outcome is therefore resolved by reading, and by writing the missing
    records again.

    :raises TransactionConflict: the transaction has ended; no stored operation has an effect.
    :raises TransactionNotFound: the transaction is gone; no stored operation has an effect.
    :raises OutcomeUnknown: some operations may be stored.
    """
    try:
        return await _put_checked(store, header, operations)
    except OutcomeUnknown as error:
        unknown = error
    # Stored operations are kept, whatever happens now. One may be an earlier record with the same content: an intent
    # that entries rely on, or a confirmed acknowledgment. Settling removes it, in the order that loses nothing.
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
    """Write operations in one step, on condition that the header is OPEN."""
    txn_id = header.transaction.txn_id
    puts = [
        PutSequential(header.operations, encode(document), operation_indexes(txn_id, document))
        for document in operations
    ]
    guards = _cursor_checks(store, operations)
    checks = (Check(header.key, header.version), *guards)
    try:
        written = (await store.apply(Step(checks, tuple(puts)))).records
    except VersionMismatch:
        await require_open(store, txn_id)
        raise
    return [StoredOperation(record, txn_id, document) for record, document in zip(written, operations, strict=True)]


def _cursor_checks(store: IMetadataStore, operations: Iterable[AnyOperation]) -> tuple[Check, ...]:
    """
    Return the checks that exclude steps which move the cursors of these acknowledgments; see ``joint_commit``.

    They accept every version. A store whose steps are of one partition takes no such steps.
    """
    if store.reach is Reach.PARTITION:
        return ()
    keys = {cursor_key(one.segment, one.subscription): None for one in operations if isinstance(one, AckOperation)}
    return tuple(Check(key, Expect.ANY) for key in keys)


def are_together(store: IMetadataStore, ledgers: ILedgerStore | IManagedLedger) -> bool:
    """Return whether a step of the store may append to these ledgers."""
    return store.reach is Reach.DATABASE and ledgers.location == store.location


def _matched(
    found: Iterable[StoredOperation], operations: Sequence[AnyOperation]
) -> tuple[list[StoredOperation], list[AnyOperation]]:
    """
    Return those of ``operations`` that are stored, as found, and those that are missing.

    A stored acknowledgment never matches. It may be an earlier one, which a conflict must not withdraw.
    """
    left = [stored for stored in found if not isinstance(stored.document, AckOperation)]
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
    """Remove operations that this process wrote and that never took effect."""
    for operation in operations:
        await store.delete(operation.record.key, Expect.ANY)


async def forget(store: IMetadataStore, operations: Sequence[StoredOperation]) -> None:
    """
    Remove operations of one transaction whose effect is durable, if unchanged since they were read.

    Operations that are already removed are skipped. An operation that changed since it was read is kept.
    """
    for at in range(0, len(operations), STEPS_TOGETHER_MAX):
        some = operations[at : at + STEPS_TOGETHER_MAX]
        if len(some) > 1:
            if await _deleted_together(store, some):
                continue
            # Another process settles the same transaction: remove what it has left, if possible together.
            some = await _unchanged(store, some)
            if not some or await _deleted_together(store, some):
                continue
        for operation in some:
            try:
                await store.delete(operation.record.key, operation.record.version)
            except VersionMismatch:
                continue


async def _deleted_together(store: IMetadataStore, operations: Sequence[StoredOperation]) -> bool:
    """Remove all of the operations; return False, and remove none, if one was removed or changed."""
    deletes = tuple(Delete(operation.record.key, operation.record.version) for operation in operations)
    try:
        await store.apply(Step(deletes=deletes))
    except VersionMismatch:
        return False
    return True


async def _unchanged(store: IMetadataStore, operations: Sequence[StoredOperation]) -> list[StoredOperation]:
    """Return those operations of one transaction that are stored as they were read."""
    stored = await scan_all(store, operations_range(operations[0].txn_id), STEPS_TOGETHER_MAX)
    versions = {record.key: record.version for record in stored}
    return [one for one in operations if versions.get(one.record.key) == one.record.version]


class HeaderCache(TransactionCache[Header]):
    """
    Headers of transactions that began in this process, as they were written, until the process tries to end them.

    The process can therefore add to its transaction and end it without reading the header first. A header changes
    only when another process has ended the transaction, or has begun to commit it by its id. Every write is conditional
    on the remembered version: it is refused after such a change, and the header is read.
    """

    async def header(self, store: IMetadataStore, txn_id: TxnID, principal: str) -> Header:
        """
        Return the header of a transaction that ``principal`` may add operations to.

        The transaction may have ended since; ``put_operations`` detects that.

        :raises TransactionNotFound: the transaction is unknown.
        :raises NotTransactionOwner: the transaction belongs to another principal.
        :raises TransactionConflict: the transaction has ended.
        """
        begun = self._known.get(txn_id)
        if begun is None:
            return await require_open(store, txn_id, principal)
        if begun.transaction.principal != principal:
            require_owner(begun, principal)
        return begun
