"""
The documents in the metadata store: JSON with a format number, one class per kind of record.

A document of an unknown format is refused. A damaged document is reported with its key and the field that is wrong.
Their content is never guessed. Positions are written as ``ledger:entry``, transaction ids as 32 hex digits, so that the
records can be read with the backend's own tools.

============================================  =======================  ================================================
key                                           document                 partition
============================================  =======================  ================================================
``/txn/<txn>``                                ``TransactionHeader``    the transaction
``/txn-op/<txn>/<number>``                    ``Operation``            the transaction
``/txn-aborted/<segment>/<ledger>/<txn>/...`` ``AbortRecord``          the segment
``/txn-trimmed/<segment>``                    ``TrimmedRecord``        the segment
``/txn-app/<application>``                    ``ApplicationRecord``    the application
``/subscription/<topic>/<name>``              ``SubscriptionRecord``   the topic
``/cursor/<segment>/<subscription>``          ``CursorRecord``         the segment
``/deliveries/<segment>/<subscription>``      ``DeliveryCountsRecord`` the segment
``/compacted/<segment>``                      ``CompactedRecord``      the segment
``/topic/<tenant>/<namespace>/<name>``        ``TopicRecord``          the topic
``/ids/<coordinator>``                        ``IdBlock``              its own
``/restore``                                  ``RestoreRecord``        its own
``/copy``                                     ``CopyRecord``           its own
``/copied``                                   ``CopiedRecord``         its own
============================================  =======================  ================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeVar

import msgspec

from txnframework.errors import CorruptRecord, UnknownFormat
from txnframework.model.document import (
    ACK_FORMAT,
    CO_COMMIT_FORMAT,
    CURSOR_FORMAT,
    FORMAT,
    MIGRATION_FORMAT,
    Document,
    Natural,
)
from txnframework.model.metadata import Record
from txnframework.model.topic_documents import (
    CompactedRecord,
    CursorRecord,
    DeliveryCountsRecord,
    HistoryDocument,
    RegistrationDocument,
    SegmentDocument,
    SubscriptionRecord,
    TopicRecord,
    topic_format,
)
from txnframework.model.transaction_documents import (
    AbortRecord,
    AckDocument,
    AckOperation,
    AnyOperation,
    ApplicationOperation,
    ApplicationRecord,
    CommittedBatchDocument,
    Operation,
    ProcessedRangeDocument,
    SourceRangeDocument,
    TransactionHeader,
    TrimmedRecord,
    WriteOperation,
)

__all__ = [
    "CO_COMMIT_FORMAT",
    "FORMAT",
    "MIGRATION_FORMAT",
    "UNREADABLE",
    "AbortRecord",
    "AckDocument",
    "AckOperation",
    "AnyOperation",
    "ApplicationOperation",
    "ApplicationRecord",
    "CommittedBatchDocument",
    "CompactedRecord",
    "CopiedRecord",
    "CopyRecord",
    "CopyStep",
    "CursorRecord",
    "DeliveryCountsRecord",
    "Document",
    "HistoryDocument",
    "IdBlock",
    "Natural",
    "Operation",
    "ProcessedRangeDocument",
    "RegistrationDocument",
    "RestoreRecord",
    "SegmentDocument",
    "SourceRangeDocument",
    "SubscriptionRecord",
    "TopicRecord",
    "TransactionHeader",
    "TrimmedRecord",
    "WriteOperation",
    "decode",
    "decode_operation",
    "encode",
]

UNREADABLE: Final = (ValueError, RecursionError)
"""
The exceptions of decoding JSON: msgspec's own errors and those of UTF-8 are ValueErrors, and its depth is unbounded.
"""


class IdBlock(Document):
    """Every transaction number below ``next`` may have been assigned."""

    next: Natural


class RestoreRecord(Document):
    """
    A restore: its pair of stores takes the identity ``to``; it is finished when the metadata store has that identity.

    ``ledgers``: the ledger store's identity before. ``restored`` and ``forced``: the operator's request; ``at_ms``: its
    time.
    """

    ledgers: str
    to: str
    restored: str = ""
    forced: bool = False
    at_ms: Natural = 0


CopyStep = Annotated[str, msgspec.Meta(pattern=r"\A(begun|copying|verified)\Z")]


class CopyRecord(Document):
    """
    A copy of another deployment into this one; it is finished when the metadata store has the identity ``to``.

    ``source``: the identity of the other metadata store. ``step``: ``begun``, ``copying`` once the source is closed, or
    ``verified``. ``upto``: every ledger up to this name is copied. ``keep_source``: the source is opened again.
    """

    source: str
    to: str
    step: CopyStep = "begun"
    upto: str = ""
    keep_source: bool = False


class CopiedRecord(Document):
    """
    A copy of this deployment to the identity ``to``; it is stored before this deployment is closed.

    ``is_shared``: the copy has the same ledger store. ``is_finished``: the copy may be in use.
    """

    to: str
    is_shared: bool = False
    is_finished: bool = False


class _FormatOnly(msgspec.Struct):
    format: int
    kind: str = ""


D = TypeVar("D")


encode: Callable[[Document], bytes] = msgspec.json.encode
"""Return the JSON of a document."""


def decode(kind: type[D], record: Record) -> D:
    """Return the document in ``record``; raises UnknownFormat, or CorruptRecord, which names key and field."""
    path = record.key.path
    try:
        shown = msgspec.json.decode(record.value, type=_FormatOnly)
    except UNREADABLE as error:
        raise CorruptRecord(path, "format", str(error)) from error
    found = shown.format
    known = {ACK_FORMAT} if shown.kind == _ACK_KIND else _FORMATS.get(kind, {FORMAT})
    if found not in known:
        raise UnknownFormat(f"record {path}", found)
    try:
        document = msgspec.json.decode(record.value, type=kind)
    except UNREADABLE as error:
        reason, _, field = str(error).partition(" - at `")
        raise CorruptRecord(path, field.rstrip("`") or "$", reason) from error
    if found != _format_of(document):
        raise UnknownFormat(f"record {path}", found)
    return document


_ACK_KIND = AckOperation.__struct_config__.tag

_FORMATS: Final[dict[object, set[int]]] = {
    TransactionHeader: {FORMAT, CO_COMMIT_FORMAT},
    TopicRecord: {FORMAT, MIGRATION_FORMAT},
    CursorRecord: {CURSOR_FORMAT},
}
"""The formats of the kinds that have others than ``FORMAT``."""


def _format_of(document: object) -> int:
    """Return the format that a document with these fields must have."""
    if isinstance(document, TransactionHeader):
        return FORMAT if document.co_commit is msgspec.UNSET else CO_COMMIT_FORMAT
    if isinstance(document, TopicRecord):
        return topic_format(document)
    if isinstance(document, CursorRecord):
        return CURSOR_FORMAT
    if isinstance(document, AckOperation):
        return ACK_FORMAT
    return FORMAT


def decode_operation(record: Record) -> AnyOperation:
    """Return the operation in ``record``, of any kind."""
    return decode(AnyOperation, record)  # type: ignore[arg-type]
