"""Typed views of the operation records of this family; pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import msgspec

from txnframework.model.ack_overlap import AckIndex
from txnframework.model.acks import Ack, ProcessedRange
from txnframework.model.ids import Branch, TxnID
from txnframework.model.metadata import Record
from txnframework.model.paths import txn_id_of
from txnframework.model.positions import Position
from txnframework.model.records import (
    AckDocument,
    AckOperation,
    AnyOperation,
    ProcessedRangeDocument,
    WriteOperation,
    decode_operation,
)
from txnframework.model.transactions import Part, Participant


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


def operation_of(record: Record) -> StoredOperation:
    """Return the operation in ``record``."""
    return StoredOperation(record, txn_id_of(record.key.path), decode_operation(record))


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
