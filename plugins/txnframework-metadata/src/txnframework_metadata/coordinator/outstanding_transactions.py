"""
Ends of transactions: the compare-and-set that decides a transaction, and ended transactions that still have operations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from txnframework.environment import Environment
from txnframework.errors import (
    Closed,
    Corrupt,
    InvalidTransactionState,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotFound,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import IMetadataStore
from txnframework.model.ids import TxnID
from txnframework.model.metadata import IndexRange, KeyRange, Put, Record
from txnframework.model.paths import all_operations_range, operations_range, txn_id_of
from txnframework.model.positions import Limit
from txnframework.model.records import TransactionHeader, encode
from txnframework.model.transactions import Action, End, Outstanding, State, Transaction, require_same_end
from txnframework_metadata.records.operations import read_header, scan_all
from txnframework_metadata.records.views import (
    Header,
    StoredOperation,
    header_indexes,
    operation_of,
    participants_of,
    require_owner,
    transaction_of,
)


def ended_header(header: Header, request: End, now_ms: int) -> TransactionHeader:
    """Return the header as ``request`` leaves it; pure."""
    committed = request.action is Action.COMMIT
    before = header.document
    return TransactionHeader(
        format=before.format,
        state=(State.COMMITTED if committed else State.ABORTED).value,
        timeout_ms=before.timeout_ms,
        created_ms=before.created_ms,
        finalized_ms=now_ms,
        principal=before.principal,
        session=before.session,
        branches=sorted(request.branches) if committed else None,
        co_commit=before.co_commit,
    )


def final_put(header: Header, request: End, now_ms: int) -> tuple[TransactionHeader, Put]:
    """Return the header as ``request`` leaves it, and the compare-and-set that writes it; pure."""
    document = ended_header(header, request, now_ms)
    indexes = header_indexes(header.transaction.txn_id, document)
    return document, Put(header.key, encode(document), header.version, indexes)


def require_separate_end(header: Header, request: End) -> None:
    """
    Raise TransactionConflict if ``request`` commits an open transaction without the rows that belong to it; pure.

    A commit without the application's database transaction would leave messages without their rows.
    """
    if header.transaction.co_commit and request.action is Action.COMMIT:
        reason = "only its process can commit it, together with the rows of its database transaction; abort it instead"
        raise TransactionConflict(header.transaction.txn_id, reason)


async def end_transaction(
    store: IMetadataStore, environment: Environment, request: End, attempts_max: int, begun: Header | None = None
) -> Transaction:
    """
    End a transaction as requested, or return it if it has already ended that way.

    :param begun: the header as this process wrote it, if it is remembered; it saves the first read.

    The compare-and-set names the known version, so retrying after an unknown outcome is safe. If the first attempt was
    or is still applied, the second one is refused, and reading shows the outcome.

    :raises InvalidTransactionState: the transaction ended the other way.
    :raises TransactionConflict: only a database transaction may commit it; see ``require_separate_end``.
    :raises TransactionNotFound: the transaction is unknown.
    :raises NotTransactionOwner: the transaction belongs to another principal, and the caller is not an operator.
    :raises OutcomeUnknown: the transaction may have ended, and reading could not determine it.
    """
    txn_id = request.txn_id
    unknown: OutcomeUnknown | None = None
    for _ in range(attempts_max):
        try:
            header, begun = begun or await read_header(store, txn_id), None
        except (Unavailable, Closed) as error:
            if unknown is None:
                raise
            raise OutcomeUnknown(f"transaction {txn_id} may have ended; it could not be read again") from error
        if header is None:
            if unknown is not None:
                raise OutcomeUnknown(f"transaction {txn_id} may have ended; it was forgotten since") from unknown
            raise TransactionNotFound(txn_id)
        if not request.operator and header.transaction.principal != request.principal:
            require_owner(header, request.principal)
        if header.transaction.state is not State.OPEN:
            require_same_end(header.transaction, request)
            return header.transaction
        if header.transaction.co_commit:
            require_separate_end(header, request)
        document, put = final_put(header, request, environment.now_ms())
        try:
            await store.put(put)
        except VersionMismatch:
            continue
        except OutcomeUnknown as error:
            unknown = error
            continue
        except (Unavailable, Closed) as error:
            if unknown is None:
                raise
            # This attempt changed nothing, but the previous one may still be applied.
            raise OutcomeUnknown(f"transaction {txn_id} may have ended; trying again failed") from error
        return transaction_of(txn_id, document)
    raise OutcomeUnknown(f"transaction {txn_id} may have ended") from unknown


async def abort_open(
    store: IMetadataStore, environment: Environment, transaction: Transaction, attempts_max: int
) -> Transaction | None:
    """Abort an open transaction of any owner; return how it ended, or None if it is no longer known."""
    request = End(transaction.txn_id, Action.ABORT, operator=True)
    try:
        return await end_transaction(store, environment, request, attempts_max)
    except InvalidTransactionState:
        header = await read_header(store, transaction.txn_id)
        return None if header is None else header.transaction
    except TransactionNotFound:
        return None


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
