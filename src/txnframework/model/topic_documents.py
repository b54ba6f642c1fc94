"""The documents of topics: their segments, subscriptions, cursors and compactions; see ``records``."""

from __future__ import annotations

from typing import Annotated

import msgspec

from txnframework.model.document import CURSOR_FORMAT, FORMAT, MIGRATION_FORMAT, Document, Natural
from txnframework.model.positions import PositionText
from txnframework.model.topic_migration import MigrationDocument, OriginDocument

SegmentStateText = Annotated[str, msgspec.Meta(pattern=r"\A(active|planned|replaced)\Z")]
_ENTRY = "(?:0|[1-9][0-9]{0,18}):(?:0|[1-9][0-9]{0,18})"
_COUNT = "[1-9][0-9]{0,18}"
_MORE = rf"(?:\+{_COUNT})?"
_GAP = "(?:[2-9]|[1-9][0-9]{1,18})"  # ranges with a distance of 1 are one range
_BITS = "/[1-9a-f][0-9a-f]*"
RangesText = Annotated[str, msgspec.Meta(pattern=rf"\A{_ENTRY}{_MORE}(?: {_GAP}{_MORE})*\Z")]
PartialText = Annotated[str, msgspec.Meta(pattern=rf"\A{_ENTRY}{_BITS}(?: {_COUNT}{_BITS})*\Z")]
HashValue = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]


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


class CursorRecord(Document, kw_only=True):
    """
    The progress of a subscription on a segment.

    ``incarnation``: new on creation and on seek. ``deleted``: entries acknowledged one by one beyond ``mark_delete``;
    each text has the ranges of one ledger (see ``RangeChunk``). ``partial``: batches that are partly acknowledged, with
    their acknowledged indexes (see ``PartialChunk``). ``tombstone``: unsubscribed. ``family``: only transactions of
    this family may acknowledge, since the topic migrated to it; absent from all other records.
    """

    incarnation: Natural
    mark_delete: PositionText
    deleted: list[RangesText] = msgspec.field(default_factory=list)
    partial: list[PartialText] = msgspec.field(default_factory=list)
    tombstone: bool = False
    family: str | msgspec.UnsetType = msgspec.UNSET
    format: int = CURSOR_FORMAT


class DeliveryCountsRecord(Document):
    """
    How often unacknowledged messages of a subscription were delivered on a segment.

    ``counts``: earlier deliveries by position, at least 1. ``dispatch``: the token of the dispatch in progress; empty
    after it has ended by itself. ``handed_out``: messages that it recorded before they were received. ``alone``: its
    consumer had no other message. ``presumed``: by the token of an earlier dispatch that did not end by itself, the
    message that its consumer had alone. A process that lives removes its own; the rest counts. Absent if there is none.
    """

    incarnation: Natural
    dispatch: str = ""
    counts: dict[PositionText, Natural] = msgspec.field(default_factory=dict)
    handed_out: list[PositionText] = msgspec.field(default_factory=list)
    alone: bool = False
    presumed: dict[str, PositionText] | msgspec.UnsetType = msgspec.UNSET


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


def topic_format(record: TopicRecord) -> int:
    """Return the format that a record with these fields must have."""
    if record.migration is record.origin is record.reserved_for is msgspec.UNSET:
        return FORMAT
    return MIGRATION_FORMAT
