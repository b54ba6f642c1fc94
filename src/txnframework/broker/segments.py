"""Open segments, and open subscriptions on them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from txnframework.broker.cursors import StoredCursor
from txnframework.interfaces import IManagedLedger, IPendingAckStore, ITransactionBuffer
from txnframework.model.layout import FIRST_LIFE
from txnframework.model.names import TopicName


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """
    A segment: ``ledger`` for facts about it, ``buffer`` for every append and every read.

    ``topic``: the topic to which the segment belongs, in its life ``life``. Before a migration it belonged to one of
    the ``formers``. ``is_adopted``: it was written before the last migration, and takes no more entries.
    ``name_may_return``: after a deletion, a new topic may have a segment of the same name.
    """

    name: str
    ledger: IManagedLedger
    buffer: ITransactionBuffer
    topic: TopicName
    life: int = FIRST_LIFE
    formers: tuple[tuple[TopicName, int], ...] = ()
    is_adopted: bool = False
    name_may_return: bool = False

    @property
    def may_be_outdated(self) -> bool:
        """Whether the name may be that of another topic's segment by now, or the topic has migrated before."""
        return self.name_may_return or bool(self.formers)

    @property
    def context_life(self) -> int:
        """The life in the contexts of the plugins: a segment whose name never returns has one, until it migrates."""
        return self.life if self.may_be_outdated else FIRST_LIFE

    def is_of(self, life: int) -> bool:
        """Return whether the segment belongs to this life of its topic."""
        return self.life == life


@dataclass(frozen=True, slots=True)
class SegmentSubscription:
    """
    A subscription on one segment: its pending acknowledgments and its cursor, in the life ``life`` of its topic.
    """

    topic: str
    life: int
    name: str
    segment: str
    cursor: StoredCursor
    pending_acks: IPendingAckStore


SegmentVisit = Callable[[str], AbstractAsyncContextManager[OpenSegment]]
"""Opens a segment for the duration of a block; see ``SegmentCache.visit``."""
