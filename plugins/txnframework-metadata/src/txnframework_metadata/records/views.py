"""Typed views of the records of this family, with the index entries of headers, and a cache of them by transaction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import cached_property
from typing import Generic, TypeVar

import msgspec

from txnframework.errors import Corrupt, NotTransactionOwner
from txnframework.model import index_keys
from txnframework.model.ack_overlap import AckIndex
from txnframework.model.acks import Ack, ProcessedRange
from txnframework.model.ids import Branch, TxnID
from txnframework.model.indexes import (
    TXN_BY_DEADLINE,
    TXN_BY_FINAL_STATE,
)
from txnframework.model.metadata import IndexEntry, Key, Record
from txnframework.model.paths import operations_prefix, txn_id_of
from txnframework.model.positions import Position
from txnframework.model.records import (
    AckDocument,
    AckOperation,
    AnyOperation,
    ProcessedRangeDocument,
    TransactionHeader,
    WriteOperation,
    decode,
    decode_operation,
)
from txnframework.model.transactions import Part, Participant, State, Transaction

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


def require_owner(header: Header, principal: str) -> None:
    """Raise NotTransactionOwner if the transaction belongs to another principal."""
    owner = header.transaction.principal
    if owner and owner != principal:
        raise NotTransactionOwner(header.transaction.txn_id, principal)


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


class StoredOperation(msgspec.Struct, frozen=True, dict=True):
    """An operation record as read."""

    record: Record
    txn_id: TxnID
    document: AnyOperation

    @classmethod
    def made(cls, record: Record, document: AckOperation, acks: tuple[Ack, ...]) -> StoredOperation:
        """Return an operation that was just written, with its acknowledgments, which need no parsing."""
        operation = cls(record, txn_id_of(record.key.path), document)
        operation.__dict__["acks"] = acks  # where cached_property stores it
        return operation

    @cached_property
    def acks(self) -> tuple[Ack, ...]:
        """The acknowledgments in the operation, parsed once."""
        return acks_of(self.document) if isinstance(self.document, AckOperation) else ()

    @cached_property
    def acks_by_entry(self) -> AckIndex:
        """The acknowledgments, indexed by entry."""
        return AckIndex(self.acks)

    @property
    def branch(self) -> Branch:
        """The branch that made the operation."""
        return Branch(self.txn_id, self.document.branch)


def header_of(record: Record) -> Header:
    """Return the header in ``record``; CorruptRecord if it names no state of this family."""
    document = decode(TransactionHeader, record)
    txn_id = txn_id_of(record.key.path)
    return Header(transaction_of(txn_id, document), record.version, document, record.key, operations_prefix(txn_id))


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


def operation_of(record: Record) -> StoredOperation:
    """Return the operation in ``record``."""
    return StoredOperation(record, txn_id_of(record.key.path), decode_operation(record))


def header_indexes(txn_id: TxnID, document: TransactionHeader) -> tuple[IndexEntry, ...]:
    """Return the one index entry of a header: by deadline while open, then by final state and time."""
    if document.finalized_ms is None:
        return (IndexEntry(TXN_BY_DEADLINE, index_keys.encode(document.timeout_ms, str(txn_id))),)
    key = index_keys.encode(document.state, document.finalized_ms, str(txn_id))
    return (IndexEntry(TXN_BY_FINAL_STATE, key),)


def participants_of(operations: Iterable[StoredOperation]) -> frozenset[Participant]:
    """Return the participants that the operations name."""
    return frozenset(part.participant for part in parts_of(operations))


def parts_of(operations: Iterable[StoredOperation]) -> frozenset[Part]:
    """Return which branch took part at which participant, by the operations."""
    found = set()
    for operation in operations:
        document = operation.document
        if isinstance(document, WriteOperation):
            found.add(Part(document.branch, Participant(document.segment)))
        elif isinstance(document, AckOperation):
            found.add(Part(document.branch, Participant(document.segment, document.subscription)))
    return frozenset(found)


# -- acknowledgments ----------------------------------------------------------------------------------


def ack_document(ack: Ack) -> AckDocument:
    """Return the stored form of one acknowledgment."""
    indexes = None if ack.batch_indexes is None else sorted(ack.batch_indexes)
    return AckDocument(position=str(ack.position), size=ack.batch_size, indexes=indexes)


def acks_of(document: AckOperation) -> tuple[Ack, ...]:
    """Return the acknowledgments in an operation."""
    return tuple(
        Ack(
            Position.parse(ack.position),
            ack.size,
            None if ack.indexes is None else frozenset(ack.indexes),
            document.cumulative,
        )
        for ack in document.acks
    )


def processed_document(processed: ProcessedRange | None) -> ProcessedRangeDocument | None:
    """Return the stored form of the range that a batch consumed of one segment."""
    if processed is None:
        return None
    return ProcessedRangeDocument(
        query=processed.query,
        batch=processed.batch,
        start=str(processed.start),
        end=str(processed.end),
        epoch=processed.epoch,
    )


def processed_of(document: ProcessedRangeDocument | None) -> ProcessedRange | None:
    """Return the range that a batch consumed of one segment."""
    if document is None:
        return None
    start, end = Position.parse(document.start), Position.parse(document.end)
    return ProcessedRange(document.query, document.batch, start, end, document.epoch)
