"""
The segments of a topic: a graph over the 16-bit hash space, and pure functions on it.

A segment is ``active`` (producers write to it), ``planned`` (its children are named, and it is about to be sealed) or
``replaced`` (sealed, and its children take the writes). A change is planned first, then the parents are sealed, then
the change is marked as done. A crash in between leaves a plan that any process can finish, never a sealed segment
without children.

A persistent topic has one segment, which has the topic's own name. A topic that was persistent before has this segment
as its first one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

import msgspec

from txnframework.errors import LayoutConflict
from txnframework.model.names import ONLY_SEGMENT_ID, PERSISTENT, SegmentName, TopicName, segment_id_of
from txnframework.model.positions import Position
from txnframework.model.records import SegmentDocument, TopicRecord
from txnframework.model.topic_documents import topic_format
from txnframework.model.topic_migration import (
    Migration,
    MigrationOrigin,
    MigrationStep,
    migration_document,
    migration_of,
    origin_document,
    origin_of,
)

HASH_MAX = 0xFFFF
_start_of = attrgetter("start")
FIRST_LIFE = 1


class SegmentState(Enum):
    """The state of a segment."""

    ACTIVE = "active"
    PLANNED = "planned"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment: its inclusive hash range ``start`` to ``end``, its parents and its children."""

    id: int
    start: int
    end: int
    state: SegmentState = SegmentState.ACTIVE
    parents: tuple[int, ...] = ()
    children: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """
    All segments of ``topic`` by id; ``epoch`` grows with every change.

    ``starting``: the subscriptions whose cursors are being created, and after which position they begin on a segment.
    On a segment that is not named they begin at the first entry. ``deleted``: the topic is deleted. Its segments and
    subscriptions are named until their stored data is removed. ``life``: the number of topics that had this name, this
    one included. ``last_ledger``: while a persistent topic is being removed, the last ledger id of this life.
    ``families``: those whose transactions were used on the topic and left records that other families cannot find.

    ``migration``: the migration of a persistent topic to a topic of segments. ``origin``: the persistent topic that
    this topic migrated from, whose segment is its first segment, under its old name. ``reserved_for``: the name is
    reserved for the migration of this topic; until then it counts as deleted.
    """

    topic: TopicName
    epoch: int
    next_id: int
    segments: dict[int, Segment]
    subscriptions: tuple[str, ...] = ()
    starting: Mapping[str, Mapping[int, Position]] = field(default_factory=dict)
    deleted: bool = False
    life: int = FIRST_LIFE
    last_ledger: int | None = None
    families: tuple[str, ...] = ()
    migration: Migration | None = None
    origin: MigrationOrigin | None = None
    reserved_for: TopicName | None = None
    # What ``active`` returns, for ``route``; empty before its first call.
    _by_start: list[Segment] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def moved_to(self) -> TopicName | None:
        """The topic that this topic has become; None: it has not migrated."""
        migration = self.migration
        return migration.to if migration is not None and migration.step is MigrationStep.DONE else None

    @property
    def is_migrating(self) -> bool:
        """Whether a migration is decided and not done, so that any process may finish it."""
        return self.migration is not None and self.migration.step is MigrationStep.DECIDED

    def continues(self, before: Layout) -> bool:
        """Return whether this is a later layout of the same topic, also after it migrated."""
        return (before.topic, before.life) in ((self.topic, self.life), self.created_as)

    @property
    def created_as(self) -> tuple[TopicName, int]:
        """The name and the life that the topic was created with, which a migration does not change."""
        return (self.topic, self.life) if self.origin is None else (self.origin.topic, self.origin.life)

    @property
    def names(self) -> tuple[TopicName, ...]:
        """The name of the topic, after the one that it had before a migration."""
        return (self.topic,) if self.origin is None else (self.origin.topic, self.topic)

    @property
    def lives(self) -> tuple[int, ...]:
        """The life of the topic, after the one that it had before a migration."""
        return (self.life,) if self.origin is None else (self.origin.life, self.life)

    def is_adopted(self, segment_id: int) -> bool:
        """Return whether a segment is the one of the persistent topic that this topic migrated from."""
        return self.origin is not None and segment_id == ONLY_SEGMENT_ID

    @property
    def name_returns(self) -> bool:
        """Whether a segment of the next topic of this name has the same name as one of this topic's segments."""
        return self.topic.domain == PERSISTENT

    def has(self, name: SegmentName | TopicName) -> bool:
        """Return whether a segment has this name."""
        segment_id = segment_id_of(name)
        return segment_id in self.segments and self.name_of(segment_id) == name

    def name_of(self, segment_id: int) -> SegmentName | TopicName:
        """Return the full name of a segment; the segment of a persistent topic has the topic's name."""
        segment, topic = self.segments[segment_id], self.topic
        if self.origin is not None and segment_id == ONLY_SEGMENT_ID:
            return self.origin.topic
        if topic.domain == PERSISTENT:
            return topic
        return SegmentName(topic.tenant, topic.namespace, topic.name, segment.start, segment.end, segment.id)

    def segment_of(self, name: SegmentName | TopicName) -> Segment:
        """
        Return the segment called ``name``.

        :raises LayoutConflict: the topic has no such segment.
        """
        segment = self.segments.get(segment_id_of(name))
        if segment is None or not self.has(name):
            raise LayoutConflict(str(self.topic), f"there is no segment {name}")
        return segment

    def route(self, key_hash: int) -> Segment:
        """
        Return the segment for new messages with this hash: the active segment whose range contains the hash.

        While a change is planned, the parent is still returned. A caller that finds it sealed finishes the change and
        routes again.
        """
        if not self._by_start:
            self._by_start[:] = self.active()
        at = bisect_right(self._by_start, key_hash, key=_start_of)
        if at and key_hash <= self._by_start[at - 1].end:
            return self._by_start[at - 1]
        raise LayoutConflict(str(self.topic), f"no segment covers hash {key_hash:04x}")

    def _takes_writes(self, segment: Segment) -> bool:
        if segment.state is SegmentState.REPLACED:
            return False
        return all(self.segments[parent].state is SegmentState.REPLACED for parent in segment.parents)

    def active(self) -> tuple[Segment, ...]:
        """Return the segments that take writes now, by hash range."""
        taking = (segment for segment in self.segments.values() if self._takes_writes(segment))
        return tuple(sorted(taking, key=_start_of))

    def made(self) -> tuple[int, ...]:
        """
        Return the ids of the segments that certainly have ledgers (not the planned ones), parents before children.
        """
        segments = self.segments
        return tuple(
            segment.id
            for segment in self.in_order()
            if all(segments[parent].state is SegmentState.REPLACED for parent in segment.parents)
        )

    def ancestors(self, segment_id: int) -> tuple[Segment, ...]:
        """Return all ancestors of a segment, nearest first."""
        found: dict[int, Segment] = {}
        waiting = list(self.segments[segment_id].parents)
        while waiting:
            segment = self.segments[waiting.pop(0)]
            if segment.id not in found:
                found[segment.id] = segment
                waiting.extend(segment.parents)
        return tuple(found.values())

    def descendants(self, segment_id: int) -> tuple[Segment, ...]:
        """Return all descendants of a segment, parents before children, planned ones included."""
        found = {segment_id}
        for segment in self.in_order():  # parents come first: their ids are lower
            if found.intersection(segment.parents):
                found.add(segment.id)
        return tuple(segment for segment in self.in_order() if segment.id in found and segment.id != segment_id)

    def in_order(self) -> tuple[Segment, ...]:
        """Return all segments, parents before children."""
        return tuple(segment for _, segment in sorted(self.segments.items()))


def to_record(layout: Layout) -> TopicRecord:
    """Return the document that holds ``layout``."""
    record = TopicRecord(
        epoch=layout.epoch,
        next_id=layout.next_id,
        subscriptions=list(layout.subscriptions),
        starting={
            name: {segment_id: str(at) for segment_id, at in starts.items()} for name, starts in layout.starting.items()
        },
        segments=[
            SegmentDocument(
                id=segment.id,
                start=segment.start,
                end=segment.end,
                state=segment.state.value,
                parents=list(segment.parents),
                children=list(segment.children),
            )
            for segment in layout.in_order()
        ],
        deleted=layout.deleted,
        life=layout.life,
        last_ledger=layout.last_ledger,
        families=list(layout.families),
        migration=msgspec.UNSET if layout.migration is None else migration_document(layout.migration),
        origin=msgspec.UNSET if layout.origin is None else origin_document(layout.origin),
        reserved_for=msgspec.UNSET if layout.reserved_for is None else str(layout.reserved_for),
    )
    record.format = topic_format(record)
    return record


def from_record(topic: TopicName, record: TopicRecord) -> Layout:
    """Return the layout that ``record`` holds."""
    segments = {
        found.id: Segment(
            found.id,
            found.start,
            found.end,
            SegmentState(found.state),
            tuple(found.parents),
            tuple(found.children),
        )
        for found in record.segments
    }
    starting = {
        name: {segment_id: Position.parse(at) for segment_id, at in starts.items()}
        for name, starts in record.starting.items()
    }
    return Layout(
        topic,
        record.epoch,
        record.next_id,
        segments,
        tuple(record.subscriptions),
        starting,
        record.deleted,
        record.life,
        record.last_ledger,
        tuple(record.families),
        None if isinstance(record.migration, msgspec.UnsetType) else migration_of(record.migration),
        None if isinstance(record.origin, msgspec.UnsetType) else origin_of(record.origin),
        None if isinstance(record.reserved_for, msgspec.UnsetType) else TopicName.parse(record.reserved_for),
    )
