"""
Migrations of topics between families: what the records of both topics hold about one; pure.

A persistent topic becomes a topic of segments, or the other way round. Its segments keep their names, ledgers and
cursors, and become the first segments of the new topic: all are sealed, and the last one has a child that takes the
writes. A migration is *planned* in the old topic's record, which an operator may roll back. It is *decided* there,
which cannot be undone: from then on any process may finish it. Then the new topic's record is stored, and at last the
old record refers to the new one. A topic may migrate there and back any number of times.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import msgspec

from txnframework.model.names import PERSISTENT, TopicName
from txnframework.model.positions import EARLIEST, Position, PositionText

Natural = Annotated[int, msgspec.Meta(ge=0)]


class MigrationStep(Enum):
    """The state of a migration, in the record of the topic that migrates."""

    PLANNED = "planned"
    DECIDED = "decided"
    DONE = "done"


class MigrationDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A migration, in the record of the topic that migrates; see ``Migration``."""

    to: str
    step: Annotated[str, msgspec.Meta(pattern=r"\A(planned|decided|done)\Z")]
    at_ms: Natural
    recorded: PositionText


class FormerDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An earlier topic of which a topic is the continuation: its name and its life."""

    topic: str
    life: Natural


class OriginDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """
    Where a topic migrated from, in its record; see ``MigrationOrigin``.

    ``last_segment`` and ``earlier`` are absent if the topic was persistent before, and nothing else: then ``topic`` had
    the segment 0 only.
    """

    topic: str
    life: Natural
    last_ledger: Natural
    families: list[str] = msgspec.field(default_factory=list)
    last_segment: Natural | msgspec.UnsetType = msgspec.UNSET
    earlier: list[FormerDocument] | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Migration:
    """
    A migration of the topic whose layout has it, to the topic ``to``.

    ``at_ms``: when it was planned. ``recorded``: the outcomes of all transactions with entries up to this position have
    abort records.
    """

    to: TopicName
    step: MigrationStep
    at_ms: int
    recorded: Position = EARLIEST


@dataclass(frozen=True, slots=True)
class MigrationOrigin:
    """
    The topic that a topic migrated from: its name, its life, and what it left.

    ``last_segment``: the highest id of its segments. ``last_ledger``: the last ledger of the segment that has the name
    of a persistent topic. ``families``: those that wrote to its segments. Every transaction of them has ended there,
    and every branch that does not count has abort records. ``earlier``: the topics that it had migrated from, in order.
    """

    topic: TopicName
    life: int
    last_ledger: int
    families: tuple[str, ...] = ()
    last_segment: int = 0
    earlier: tuple[tuple[TopicName, int], ...] = ()

    @property
    def formers(self) -> tuple[tuple[TopicName, int], ...]:
        """The names and lives of all topics that the topic was before, in order."""
        return (*self.earlier, (self.topic, self.life))

    @property
    def is_first(self) -> bool:
        """Whether the topic was persistent before, and nothing else: its segment 0 has the name of that topic."""
        return self.topic.domain == PERSISTENT and not self.earlier


def migration_of(document: MigrationDocument) -> Migration:
    """Return the migration that a document holds."""
    recorded = Position.parse(document.recorded)
    return Migration(TopicName.parse(document.to), MigrationStep(document.step), document.at_ms, recorded)


def migration_document(migration: Migration) -> MigrationDocument:
    """Return the document that holds ``migration``."""
    return MigrationDocument(
        to=str(migration.to),
        step=migration.step.value,
        at_ms=migration.at_ms,
        recorded=str(migration.recorded),
    )


def origin_of(document: OriginDocument) -> MigrationOrigin:
    """Return the origin that a document holds."""
    return MigrationOrigin(
        TopicName.parse(document.topic),
        document.life,
        document.last_ledger,
        tuple(document.families),
        0 if document.last_segment is msgspec.UNSET else document.last_segment,
        ()
        if document.earlier is msgspec.UNSET
        else tuple((TopicName.parse(one.topic), one.life) for one in document.earlier),
    )


def origin_document(origin: MigrationOrigin) -> OriginDocument:
    """Return the document that holds ``origin``."""
    document = OriginDocument(
        topic=str(origin.topic),
        life=origin.life,
        last_ledger=origin.last_ledger,
        families=list(origin.families),
    )
    if not origin.is_first:
        document.last_segment = origin.last_segment
        document.earlier = [FormerDocument(topic=str(topic), life=life) for topic, life in origin.earlier]
    return document
