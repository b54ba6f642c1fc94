"""The segments of a compaction, their state, and the transactions that they wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from txnframework.broker import EVERYTHING, CompactionResult, CopyPlan, Host, Order
from txnframework.errors import InvalidInput, TransactionNotFound
from txnframework.model.layout import Layout
from txnframework.model.names import topic_of
from txnframework.model.positions import EARLIEST, Limit
from txnframework.model.transactions import OpenQuery

OPEN_MAX: Final = 100
"""The number of open transactions that are examined to find those that block a segment."""

LEDGERS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Standing:
    """
    The state of a segment before its compaction.

    ``earlier`` is the result of an earlier compaction, ``stored_bytes`` the size of the segment. Messages after
    ``plan.upto`` are ``undecided`` because of the open transactions ``held_by``.
    """

    segment: str
    earlier: CompactionResult | None
    plan: CopyPlan
    stored_bytes: int
    undecided: bool
    held_by: tuple[str, ...]

    @property
    def looked_at(self) -> int:
        """The number of messages to examine."""
        return sum(one.messages for one in self.plan.ranges)

    @property
    def is_empty(self) -> bool:
        """Whether no message is decided yet."""
        return self.plan.upto == EARLIEST

    @property
    def is_done(self) -> bool:
        """Whether an earlier compaction has the same end, order and compactor."""
        kept = self.earlier
        return kept is not None and (kept.upto, kept.order, kept.compactor) == (
            self.plan.upto,
            self.plan.order,
            EVERYTHING,
        )


def chosen(layout: Layout, segment: int | None) -> tuple[str, ...]:
    """Return the names of the segments to compact, parents before children."""
    made = layout.made()
    if segment is not None and segment not in made:
        there = ", ".join(map(str, made))
        raise InvalidInput(f"{layout.topic} has no segment {segment}; there are {there}")
    return tuple(str(layout.name_of(one)) for one in made if segment in (None, one))


async def standing(host: Host, segment: str, order: Order, messages_max: int) -> Standing:
    """
    Return the state of a segment; changes nothing.

    :raises CommitOrderUnknown: its first messages were trimmed.
    """
    earlier = await host.compaction.attempts.kept(segment)
    plan = await host.compaction.plan(segment, earlier, order, messages_max)
    ledger = (await host.segment(segment)).ledger
    tail = await ledger.tail()
    size, last = 0, -1
    while found := await ledger.ledgers(last, LEDGERS_MAX):
        size, last = size + sum(one.bytes for one in found), found[-1].ledger_id
    undecided = plan.upto < tail.last_confirmed
    held_by = await _open_in(host, segment) if undecided else ()
    return Standing(segment, earlier, plan, size, undecided, held_by)


async def _open_in(host: Host, segment: str) -> tuple[str, ...]:
    """Return the open transactions that wrote to a segment, in the order of their deadlines."""
    coordinator = await host.coordinator(topic_of(segment).domain)
    found = []
    for one in await coordinator.list_open(OpenQuery(limit=Limit(OPEN_MAX))):
        try:
            described = await coordinator.describe(one.txn_id)
        except TransactionNotFound:  # it ended after the listing
            continue
        if any(part.participant.segment == segment for part in described.parts):
            found.append(str(one.txn_id))
    return tuple(found)
