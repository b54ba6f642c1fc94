"""Records of a pending-ack log: JSON; transactions by their ids, positions as ``ledger:entry``."""

from __future__ import annotations

import msgspec

from txnframework.model import Ack, Position, ProcessedRange
from txnframework.model.ids import TxnText
from txnframework.model.positions import PositionText
from txnframework.model.records import Natural
from txnframework_legacy.log import LogRecord
from txnframework_legacy.log.format import decode_record


class AckDocument(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One acknowledgment."""

    position: PositionText
    size: int = 1
    indexes: list[Natural] | None = None
    cumulative: bool = False


class ProcessedDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The range of the topic that a batch of a query processed."""

    query: str
    batch: Natural
    start: PositionText
    end: PositionText
    epoch: Natural


class AckRecord(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base class of the records."""


class Acked(AckRecord, tag="ACK"):
    """A branch acknowledges; ``token`` identifies the call."""

    txn: TxnText
    branch: Natural
    token: int
    incarnation: Natural
    acks: list[AckDocument]
    processed: ProcessedDocument | None = None


class Withdrawn(AckRecord, tag="WITHDRAW"):
    """The call ``token`` of this transaction was too late: it holds nothing."""

    txn: TxnText
    token: int


class Settled(AckRecord, tag="SETTLE"):
    """The acknowledgments that the transaction held at or before ``upto`` are applied to the cursor or released."""

    txn: TxnText
    upto: PositionText


class HeldDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The acknowledgments of a call, and the entry that stored them."""

    entry: PositionText
    acked: Acked


class Base(AckRecord, tag="BASE"):
    """The holds where ledger ``ledger`` begins; the record is stored in that ledger."""

    ledger: Natural
    held: list[HeldDocument]


AnyRecord = Acked | Withdrawn | Settled | Base
_DECODER: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)


def encode(record: AnyRecord) -> bytes:
    """Return the stored form of a record."""
    return msgspec.json.encode(record)


def decode(record: LogRecord, log: str) -> AnyRecord:
    """
    Return a record of ``log``.

    :raises CorruptEntry: the data is not a valid record.
    """
    return decode_record(_DECODER, record, log)


def document_of(ack: Ack) -> AckDocument:
    """Return the stored form of an acknowledgment."""
    indexes = None if ack.batch_indexes is None else sorted(ack.batch_indexes)
    return AckDocument(position=str(ack.position), size=ack.batch_size, indexes=indexes, cumulative=ack.cumulative)


def ack_of(document: AckDocument) -> Ack:
    """Return the acknowledgment that a document holds."""
    indexes = None if document.indexes is None else frozenset(document.indexes)
    return Ack(Position.parse(document.position), document.size, indexes, document.cumulative)


def processed_document_of(processed: ProcessedRange | None) -> ProcessedDocument | None:
    """Return the stored form of a processed range."""
    if processed is None:
        return None
    start, end = str(processed.start), str(processed.end)
    return ProcessedDocument(query=processed.query, batch=processed.batch, start=start, end=end, epoch=processed.epoch)


def processed_of(document: ProcessedDocument | None) -> ProcessedRange | None:
    """Return the processed range that a document holds."""
    if document is None:
        return None
    start, end = Position.parse(document.start), Position.parse(document.end)
    return ProcessedRange(document.query, document.batch, start, end, document.epoch)
