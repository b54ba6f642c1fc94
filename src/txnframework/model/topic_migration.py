"""
Migrations of topics between families: what the records of both topics hold about one; pure.

A persistent topic becomes a topic of segments. Its only segment keeps its name, ledgers and cursors, and becomes the
first segment of the new topic: it is sealed, and has a child that takes the writes. A migration is *planned* in the old
topic's record, which an operator may roll back. It is *decided* there, which cannot be undone: from then on any process
may finish it. Then the new topic's record is stored, and at last the old record refers to the new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import msgspec

from txnframework.model.names import TopicName
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


class OriginDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where a topic migrated from, in its record; see ``MigrationOrigin``."""

    topic: str
    life: Natural
    last_ledger: Natural
    families: list[str] = msgspec.field(default_factory=list)


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
    The persistent topic that a topic migrated from: its name, its life, and what it left.

    ``last_ledger``: the last ledger of its segment. ``families``: those that wrote to the segment. Every transaction of
    them has ended there, and every branch that does not count has abort records.
    """

    topic: TopicName
    life: int
    last_ledger: int
    families: tuple[str, ...] = ()


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
        TopicName.parse(document.topic), document.life, document.last_ledger, tuple(document.families)
    )


def origin_document(origin: MigrationOrigin) -> OriginDocument:
    """Return the document that holds ``origin``."""
    return OriginDocument(
        topic=str(origin.topic),
        life=origin.life,
        last_ledger=origin.last_ledger,
        families=list(origin.families),
    )
