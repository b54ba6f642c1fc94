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
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from txnframework.errors import CorruptRecord, UnknownFormat
from txnframework.model.ids import TxnText
from txnframework.model.metadata import Record
from txnframework.model.positions import PositionText
from txnframework.model.topic_migration import MigrationDocument, OriginDocument

UNREADABLE: Final = (ValueError, RecursionError)
"""
The exceptions of decoding JSON: msgspec's own errors and those of UTF-8 are ValueErrors, and its depth is unbounded.
"""

Natural = Annotated[int, msgspec.Meta(ge=0)]
TransactionState = Annotated[str, msgspec.Meta(pattern=r"\A(OPEN|COMMITTED|ABORTED)\Z")]
SegmentStateText = Annotated[str, msgspec.Meta(pattern=r"\A(active|planned|replaced)\Z")]
HashValue = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]

FORMAT = 2
"""
The format of all documents, and of the index entries that are written with them; it changes with either.

2: write operations are indexed by segment and transaction, abort records by how far they reach.
"""

CO_COMMIT_FORMAT = 3
"""The format of a header with ``co_commit``. A release that does not know this rule must not commit the transaction."""

MIGRATION_FORMAT = 4
"""The format of a topic's record that a migration changed. A release that does not know migrations must not use it."""


class Document(msgspec.Struct, kw_only=True, omit_defaults=False, forbid_unknown_fields=True):
    """Base class of all documents."""

    format: int = FORMAT


class TransactionHeader(Document):
    """
    A transaction.

    ``state``: OPEN, COMMITTED or ABORTED. ``branches`` (COMMITTED only): those that count. ``co_commit``: only the
    application's database transaction may commit it; absent from all other headers, and ``format`` 3 goes with it.
    """

    state: TransactionState
    timeout_ms: Natural
    created_ms: Natural
    finalized_ms: Natural | None = None
    principal: str = ""
    session: str | None = None
    branches: list[Natural] | None = None
    co_commit: Literal[True] | msgspec.UnsetType = msgspec.UNSET


class SourceRangeDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a batch consumed of one subscription: positions by segment."""

    topic: str
    subscription: str
    start: dict[str, PositionText]
    end: dict[str, PositionText]


class ProcessedRangeDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a batch consumed of one segment."""

    query: str
    batch: Natural
    start: PositionText
    end: PositionText
    epoch: Natural


class AckDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One acknowledged position; ``indexes`` None: the whole entry."""

    position: PositionText
    size: Annotated[int, msgspec.Meta(ge=1)] = 1
    indexes: list[Natural] | None = None


class Operation(Document, tag_field="kind"):
    """What one branch of a transaction did; base class of the three kinds."""

    branch: Natural


class WriteOperation(Operation, tag="write"):
    """
    ``branch`` may append to ``ledger`` of ``segment``; ``after``: the last confirmed position read before this write.
    """

    segment: str
    ledger: Natural
    after: PositionText


class AckOperation(Operation, tag="ack"):
    """
    ``branch`` acknowledges ``acks`` for ``subscription`` of ``segment``.

    ``admitted`` False: written to a store without atomic batches and not checked again yet; never applied in this
    state. ``processed``: the batch, with a pipeline's cumulative ack.
    """

    segment: str
    subscription: str
    incarnation: Natural
    acks: list[AckDocument]
    cumulative: bool = False
    admitted: bool = True
    processed: ProcessedRangeDocument | None = None


class ApplicationOperation(Operation, tag="app"):
    """
    The transaction carries batch ``version`` of ``query``. ``ranges``: the ranges that the batch consumed, recorded
    with the commit.
    """

    application: str
    run: str
    query: str
    version: Annotated[int, msgspec.Meta(ge=-1)]
    ranges: list[SourceRangeDocument] | None = None


AnyOperation = WriteOperation | AckOperation | ApplicationOperation


class AbortRecord(Document):
    """The branch's entries in the ledger that the key names are aborted; all of them are after ``after``."""

    after: PositionText


class TrimmedRecord(Document):
    """
    Every ledger of the segment below ``ledger`` was trimmed by ``at_ms``; its abort records are kept from that time on.

    ``collected``: the abort records of ledgers below this one are deleted. If these ledgers return from a backup, an
    entry without a record is not a committed one. ``ledger`` 0: no abort records wait for deletion.
    """

    ledger: Natural
    at_ms: Natural
    collected: Natural = 0


class CommittedBatchDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A committed batch."""

    query: str
    version: Annotated[int, msgspec.Meta(ge=-1)]
    ranges: list[SourceRangeDocument] = msgspec.field(default_factory=list)


class ApplicationRecord(Document):
    """
    An application: its current run, its past runs, the batch that was begun last, and those that were committed last.
    """

    run: str
    past_runs: list[str] = msgspec.field(default_factory=list)
    query: str = ""
    version: Annotated[int, msgspec.Meta(ge=-1)] = -1
    txn: TxnText | None = None
    committed: list[CommittedBatchDocument] = msgspec.field(default_factory=list)


class RegistrationDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a batch in progress reads of the subscription: positions and cursor incarnations by segment."""

    query: str
    run: str
    batch: Natural
    epoch: Natural
    start: dict[str, PositionText]
    end: dict[str, PositionText]
    incarnations: dict[str, Natural]


class HistoryDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A range of one segment that a batch acknowledged."""

    segment: str
    query: str
    batch: Natural
    start: PositionText
    end: PositionText


class SubscriptionRecord(Document):
    """
    A subscription of a topic.

    ``epoch`` and ``token``: those of the takeover that holds it. ``registrations`` and ``history`` are bounded.
    ``deleted``: unsubscribed; the record stays so that its version never starts over.
    """

    epoch: Natural = 0
    token: str = ""
    deleted: bool = False
    registrations: list[RegistrationDocument] = msgspec.field(default_factory=list)
    history: list[HistoryDocument] = msgspec.field(default_factory=list)


class CursorRecord(Document):
    """
    The progress of a subscription on a segment.

    ``incarnation``: new on creation and on seek. ``deleted``: ranges ``[first, last]`` acknowledged one by one beyond
    ``mark_delete``. ``partial``: by position, the acknowledged indexes of a batch that is partly acknowledged.
    ``tombstone``: unsubscribed.
    """

    incarnation: Natural
    mark_delete: PositionText
    deleted: list[tuple[PositionText, PositionText]] = msgspec.field(default_factory=list)
    partial: dict[PositionText, list[Natural]] = msgspec.field(default_factory=dict)
    tombstone: bool = False


class DeliveryCountsRecord(Document):
    """
    How often unacknowledged messages of a subscription were delivered on a segment.

    ``counts``: earlier deliveries by position, at least 1. ``dispatch``: the token of the dispatch in progress; empty
    after it has ended by itself. ``handed_out``: messages that it recorded before they were received. ``alone``: its
    consumer had no other message.
    """

    incarnation: Natural
    dispatch: str = ""
    counts: dict[PositionText, Natural] = msgspec.field(default_factory=dict)
    handed_out: list[PositionText] = msgspec.field(default_factory=list)
    alone: bool = False


class CompactedRecord(Document):
    """
    The compaction of a segment: ``ledger`` contains the kept messages of everything up to ``upto``.

    The ``further`` ledgers follow it, if several processes wrote the result. ``compactor`` and ``order`` say how it was
    made. ``attempt`` is the number of the attempt that began last, and ``token`` identifies its owner; no attempt with
    a lower number can still finish.
    """

    ledger: str = ""
    further: list[str] = msgspec.field(default_factory=list)
    upto: PositionText = "0:-1"
    compactor: str = ""
    order: str = ""
    attempt: Natural = 0
    token: str = ""


class SegmentDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A segment of a topic: its inclusive hash range, its state, its parents and its children."""

    id: Natural
    start: HashValue
    end: HashValue
    state: SegmentStateText
    parents: list[Natural] = msgspec.field(default_factory=list)
    children: list[Natural] = msgspec.field(default_factory=list)


class TopicRecord(Document):
    """
    A topic: the graph of its segments, changed by compare-and-set, and the names of its subscriptions.

    ``starting``: the subscriptions whose cursors are being created, and where they begin, by segment id; elsewhere they
    begin at the first entry. ``deleted``: the topic is deleted. Its segments and subscriptions are named until their
    stored data is removed. The record stays, so that no topic of this name uses their ids again.

    ``life``: the number of topics that had this name, this one included. ``last_ledger``: while a persistent topic is
    being removed, the last ledger id of this life; the removal goes no further, because the topic's names may return.
    ``families``: the transaction families that were used on the topic and left records that other families do not find,
    or take for committed. A family is written here before its first transaction. A process that serves the topic
    through another family does not open it. A process without any family does not dispatch it.

    ``migration``, ``origin``, ``reserved_for``: see ``Layout``; absent from all other records, and ``format`` 4 goes
    with them.
    """

    epoch: Natural
    next_id: Natural
    segments: list[SegmentDocument]
    subscriptions: list[str] = msgspec.field(default_factory=list)
    starting: dict[str, dict[Natural, PositionText]] = msgspec.field(default_factory=dict)
    deleted: bool = False
    life: Natural = 1
    last_ledger: Natural | None = None
    families: list[str] = msgspec.field(default_factory=list)
    migration: MigrationDocument | msgspec.UnsetType = msgspec.UNSET
    origin: OriginDocument | msgspec.UnsetType = msgspec.UNSET
    reserved_for: str | msgspec.UnsetType = msgspec.UNSET


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


D = TypeVar("D")


encode: Callable[[Document], bytes] = msgspec.json.encode
"""Return the JSON of a document."""


def decode(kind: type[D], record: Record) -> D:
    """Return the document in ``record``; raises UnknownFormat, or CorruptRecord, which names key and field."""
    path = record.key.path
    try:
        found = msgspec.json.decode(record.value, type=_FormatOnly).format
    except UNREADABLE as error:
        raise CorruptRecord(path, "format", str(error)) from error
    if found != FORMAT and (kind, found) not in _OTHER_FORMATS:
        raise UnknownFormat(f"record {path}", found)
    try:
        document = msgspec.json.decode(record.value, type=kind)
    except UNREADABLE as error:
        reason, _, field = str(error).partition(" - at `")
        raise CorruptRecord(path, field.rstrip("`") or "$", reason) from error
    if found != _format_of(document):
        raise UnknownFormat(f"record {path}", found)
    return document


_OTHER_FORMATS: frozenset[tuple[object, int]] = frozenset(
    {(TransactionHeader, CO_COMMIT_FORMAT), (TopicRecord, MIGRATION_FORMAT)}
)


def _format_of(document: object) -> int:
    """Return the format that a document with these fields must have."""
    if isinstance(document, TransactionHeader):
        return FORMAT if document.co_commit is msgspec.UNSET else CO_COMMIT_FORMAT
    if isinstance(document, TopicRecord):
        fields = (document.migration, document.origin, document.reserved_for)
        return FORMAT if all(one is msgspec.UNSET for one in fields) else MIGRATION_FORMAT
    return FORMAT


def decode_operation(record: Record) -> AnyOperation:
    """Return the operation in ``record``, of any kind."""
    return decode(AnyOperation, record)  # type: ignore[arg-type]
