"""Headers of transactions: their content, a cache of them, and the compare-and-set that decides a transaction."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

import msgspec

from txnframework.environment import Environment
from txnframework.errors import (
    Closed,
    Corrupt,
    InvalidTransactionState,
    NotTransactionOwner,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotFound,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import IMetadataStore
from txnframework.model import index_keys
from txnframework.model.ids import TxnID
from txnframework.model.indexes import TXN_BY_DEADLINE, TXN_BY_FINAL_STATE
from txnframework.model.metadata import IndexEntry, Key, Put, Record
from txnframework.model.paths import header_key, operations_prefix, txn_id_of
from txnframework.model.records import TransactionHeader, decode, encode
from txnframework.model.transactions import Action, End, State, Transaction, require_same_end

FAMILY = "metadata"


class Header(msgspec.Struct, frozen=True, gc=False):
    """
    A transaction's header as read, with the version that conditional writes check.

    ``operations``: the prefix of the keys of its operations.
    """

    transaction: Transaction
    version: int
    document: TransactionHeader
    key: Key
    operations: Key

    @property
    def closes(self) -> bool:
        """Whether the transaction is open and a commit by its id has begun, so that nothing can be added to it."""
        return self.transaction.state is State.OPEN and self.transaction.branches is not None


def require_owner(header: Header, principal: str) -> None:
    """Raise NotTransactionOwner if the transaction belongs to another principal."""
    owner = header.transaction.principal
    if owner and owner != principal:
        raise NotTransactionOwner(header.transaction.txn_id, principal)


# -- reading ------------------------------------------------------------------------------------------


def header_of(record: Record) -> Header:
    """Return the header in ``record``; CorruptRecord if it names no state of this family."""
    document = decode(TransactionHeader, record)
    txn_id = txn_id_of(record.key.path)
    return Header(transaction_of(txn_id, document), record.version, document, record.key, operations_prefix(txn_id))


def transaction_of(txn_id: TxnID, document: TransactionHeader) -> Transaction:
    """Return the transaction that ``document`` describes, without its participants."""
    return Transaction(
        txn_id,
        State(document.state),
        document.timeout_ms,
        document.created_ms,
        document.finalized_ms,
        document.principal,
        document.session,
        None if document.branches is None else frozenset(document.branches),
        co_commit=document.co_commit is True,
    )


def ended_in_value(txn_id: TxnID, key: Key, value: bytes | None) -> Transaction | None:
    """
    Return an ended transaction from the header value that a watch reported.

    None means that the value does not show an end.
    """
    if value is None:
        return None
    try:
        transaction = transaction_of(txn_id, decode(TransactionHeader, Record(key, value, 0)))
    except Corrupt:
        return None  # a caller that reads the header reports the damage
    return None if transaction.state is State.OPEN else transaction


def header_indexes(txn_id: TxnID, document: TransactionHeader) -> tuple[IndexEntry, ...]:
    """Return the one index entry of a header: by deadline while open, then by final state and time."""
    if document.finalized_ms is None:
        return (IndexEntry(TXN_BY_DEADLINE, index_keys.encode(document.timeout_ms, str(txn_id))),)
    key = index_keys.encode(document.state, document.finalized_ms, str(txn_id))
    return (IndexEntry(TXN_BY_FINAL_STATE, key),)


async def read_header(store: IMetadataStore, txn_id: TxnID) -> Header | None:
    """Return a transaction's current header, or None."""
    record = await store.get(header_key(txn_id))
    return None if record is None else header_of(record)


T = TypeVar("T")


class TransactionCache(Generic[T]):
    """A bounded map by transaction; a forgotten item costs one read."""

    def __init__(self, transactions_max: int) -> None:
        self._transactions_max = transactions_max
        self._known: OrderedDict[TxnID, T] = OrderedDict()

    def note(self, txn_id: TxnID, known: T) -> None:
        """Remember ``known``, and forget the oldest item if the bound is exceeded."""
        self._known[txn_id] = known
        if len(self._known) > self._transactions_max:
            self._known.popitem(last=False)

    def known(self, txn_id: TxnID) -> T | None:
        """Return the remembered item."""
        return self._known.get(txn_id)

    def take(self, txn_id: TxnID) -> T | None:
        """Return the remembered item and forget it."""
        return self._known.pop(txn_id, None)


# -- ending -------------------------------------------------------------------------------------------


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
    store: IMetadataStore,
    environment: Environment,
    request: End,
    attempts_max: int,
    begun: Header | None = None,
    unknown: OutcomeUnknown | None = None,
) -> Transaction:
    """
    End a transaction as requested, or return it if it has already ended that way.

    :param begun: the header as this process wrote it, if it is remembered; it saves the first read.
    :param unknown: the error of an earlier attempt of the caller, which may have been applied or may still be.

    The compare-and-set names the known version, so retrying after an unknown outcome is safe. If the first attempt was
    or is still applied, the second one is refused, and reading shows the outcome.

    :raises InvalidTransactionState: the transaction ended the other way.
    :raises TransactionConflict: only a database transaction may commit it; see ``require_separate_end``.
    :raises TransactionNotFound: the transaction is unknown.
    :raises NotTransactionOwner: the transaction belongs to another principal, and the caller is not an operator.
    :raises OutcomeUnknown: the transaction may have ended, and reading could not determine it.
    """
    txn_id = request.txn_id
    for _ in range(attempts_max):
        try:
            header, begun = begun or await read_header(store, txn_id), None
        except (Unavailable, Closed) as error:
            if unknown is None:
                raise
            raise OutcomeUnknown(f"transaction {txn_id} may have ended; it could not be read again") from error
        if header is None:
            if unknown is not None:
                raise OutcomeUnknown(
                    f"transaction {txn_id} may have ended; its outcome is no longer known"
                ) from unknown
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
            raise OutcomeUnknown(f"transaction {txn_id} may have ended; a retry failed") from error
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
