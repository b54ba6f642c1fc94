"""Open segments, and open subscriptions on them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from txnframework.broker.cursors import StoredCursor
from txnframework.interfaces import IManagedLedger, IPendingAckStore, ITransactionBuffer
from txnframework.model.layout import FIRST_LIFE
from txnframework.model.names import TopicName
from txnframework.model.topic_migration import MigrationOrigin


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """
    A segment: ``ledger`` for facts about it, ``buffer`` for every append and every read.

    ``topic``: the topic to which the segment belongs, in its life ``life``. ``origin``: the topic to which it belonged
    before a migration; then it takes no more entries. ``name_may_return``: the topic may migrate, or a new topic may
    have a segment of the same name after its deletion.
    """

    name: str
    ledger: IManagedLedger
    buffer: ITransactionBuffer
    topic: TopicName
    life: int = FIRST_LIFE
    origin: MigrationOrigin | None = None
    name_may_return: bool = False

    @property
    def context_life(self) -> int:
        """The life in the contexts of the plugins: a segment whose name never returns has one."""
        return self.life if self.name_may_return else FIRST_LIFE

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
