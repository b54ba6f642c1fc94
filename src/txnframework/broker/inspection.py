"""Descriptions of topics, subscriptions and leases, for people who operate a system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txnframework.broker.backlog import Lag, SegmentLag, lag_of
from txnframework.broker.coordination import held_leases, holder_of, lease_page
from txnframework.broker.cursors import cursor_on
from txnframework.broker.dispatch.durable_counts import recovered
from txnframework.broker.lease_names import dispatching_lease, dispatching_leases
from txnframework.broker.segment_cache import SegmentCache
from txnframework.broker.segments import OpenSegment
from txnframework.broker.undecided_messages import count_messages
from txnframework.errors import SubscriptionNotFound
from txnframework.interfaces import IMetadataStore
from txnframework.model import paths, records
from txnframework.model.cursor import Cursor
from txnframework.model.ids import TxnID
from txnframework.model.layout import Layout, Segment
from txnframework.model.names import TopicName
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.records import DeliveryCountsRecord


@dataclass(frozen=True, slots=True)
class SegmentDescription:
    """
    One segment of a topic, and its messages.

    * ``segment``: its hash range, state, parents and children; ``name``: its full name.
    * ``sealed``: it accepts no messages any more.
    * ``messages``: the number of stored messages. ``last``: the position of the last one.
    * ``readable``: the position up to which everything is decided (the max read position).
    * ``undecided``: the number of messages after it; the first of them is of an open transaction.

    A planned segment may have no ledger yet. Then it has no messages, and both positions are ``EARLIEST``.
    """

    segment: Segment
    name: str
    sealed: bool = False
    messages: int = 0
    last: Position = EARLIEST
    readable: Position = EARLIEST
    undecided: int = 0


@dataclass(frozen=True, slots=True)
class SubscriptionDescription:
    """
    One subscription of a topic.

    * ``lag``: its backlog, by segment.
    * ``holders``: the processes that dispatch its messages, by segment, as ``Client.dispatchers`` returns them.
    * ``redelivered``: the number of unacknowledged messages that were delivered before. Only deliveries to consumers
      with a dead-letter rule are counted. ``redeliveries_max``: how often the most frequent of them was delivered.
    """

    subscription: str
    lag: Lag
    holders: Mapping[str, str]
    redelivered: int
    redeliveries_max: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The segments of a topic, parents before their children, and its subscriptions in the order of their names."""

    layout: Layout
    segments: tuple[SegmentDescription, ...]
    subscriptions: tuple[SubscriptionDescription, ...]


@dataclass(frozen=True, slots=True)
class SubscriptionPosition:
    """
    The position of a subscription on one segment.

    * ``mark_delete``: the position up to which everything is acknowledged.
    * ``acknowledged``: inclusive ranges of entries after it that are acknowledged; ``partial``: the acknowledged
      indexes of batches after it, by entry.
    * ``open_transactions``: those with acknowledgments here that have not ended.
    * ``incarnation``: grows when the subscription is created anew or moved.
    """

    segment: str
    mark_delete: Position
    acknowledged: tuple[tuple[Position, Position], ...]
    partial: Mapping[Position, frozenset[int]]
    open_transactions: tuple[TxnID, ...]
    incarnation: int


@dataclass(frozen=True, slots=True)
class HeldLease:
    """
    A lease that is held, and its holder: ``on CLIENT@HOST:PID in SESSION``, after the name of a consumer that has one.

    The name begins with the purpose of the lease: ``session SESSION`` of a process with transactions,
    ``coordinator NAME host HOST`` of a host that serves coordinators, ``coordinator NAME id ID`` of one coordinator,
    ``sweep NAME`` of the host that sweeps, ``dispatch SUBSCRIPTION of SEGMENT``. Other names have no meaning for
    programs. The holders of ``coordinator`` leases are numbers of hosts.
    """

    name: str
    holder: str


class Inspection:
    """Describes topics, subscriptions and leases. Segments are opened for the duration of a call only."""

    def __init__(self, store: IMetadataStore, segments: SegmentCache) -> None:
        self._store = store
        self._segments = segments

    async def topic(self, layout: Layout) -> TopicDescription:
        """Return the description of a topic; each segment is opened once."""
        lags: dict[str, list[SegmentLag]] = {name: [] for name in layout.subscriptions}
        counts: dict[str, list[int]] = {name: [] for name in layout.subscriptions}
        segments = {one.id: SegmentDescription(one, str(layout.name_of(one.id))) for one in layout.in_order()}
        for segment_id in layout.made():
            # Cursors first: they never pass the max read position, so the one that is read afterwards is not before
            # them.
            cursors = {one: await cursor_on(self._store, layout, segment_id, one) for one in layout.subscriptions}
            async with self._segments.visit(segments[segment_id].name) as opened:
                for name, cursor in cursors.items():
                    lags[name].append(await lag_of(opened, cursor))
                segments[segment_id] = await _described(opened, segments[segment_id].segment)
            for name, cursor in cursors.items():
                counts[name] += await self._redeliveries(opened.name, name, cursor)
        subscriptions = [
            SubscriptionDescription(
                name,
                Lag(tuple(lags[name])),
                await self.holders(layout, name),
                len(counts[name]),
                max(counts[name], default=0),
            )
            for name in layout.subscriptions
        ]
        return TopicDescription(layout, tuple(segments.values()), tuple(subscriptions))

    async def subscription(self, layout: Layout, name: str) -> tuple[SubscriptionPosition, ...]:
        """
        Return the positions of a subscription on the segments of its topic, parents before their children.

        Acknowledgments of transactions that have ended are settled first.

        :raises SubscriptionNotFound: the topic does not list the subscription.
        """
        if name not in layout.subscriptions:
            raise SubscriptionNotFound(str(layout.topic), name)
        return tuple([await self._position(name, str(layout.name_of(one)), layout.life) for one in layout.made()])

    async def holders(self, layout: Layout, subscription: str) -> dict[str, str]:
        """Return, by segment, the process that dispatches a subscription's messages; other segments are left out."""
        topic: TopicName = layout.topic
        leases = await held_leases(self._store, dispatching_leases(topic, subscription))
        segments = (str(layout.name_of(segment.id)) for segment in layout.in_order())
        held = ((one, leases.get(dispatching_lease(one, subscription))) for one in segments)
        return {one: holder_of(lease) for one, lease in held if lease is not None}

    async def leases(self, prefix: str, after: str, leases_max: int) -> tuple[HeldLease, ...]:
        """
        Return the first held leases behind ``after`` whose names begin with ``prefix``; a shorter page is the last.

        ``after``: empty for the first page.
        """
        found = await lease_page(self._store, prefix, after, leases_max)
        return tuple(HeldLease(name, holder_of(lease)) for name, lease in found.items())

    async def _position(self, name: str, segment: str, life: int) -> SubscriptionPosition:
        async with self._segments.visit_subscription(name, segment, life) as opened:
            pending = await opened.pending_acks.recover()
            cursor = await opened.cursor.load()  # last, so that acknowledgments that were settled meanwhile are in it
        return SubscriptionPosition(
            segment,
            cursor.mark_delete,
            tuple(cursor.deleted),
            dict(cursor.partial),
            tuple(sorted(pending.open)),
            cursor.incarnation,
        )

    async def _redeliveries(self, segment: str, subscription: str, cursor: Cursor) -> list[int]:
        record = await self._store.get(paths.delivery_counts_key(segment, subscription))
        stored = None if record is None else records.decode(DeliveryCountsRecord, record)
        return list(recovered(stored, cursor).counts.values())


async def _described(opened: OpenSegment, segment: Segment) -> SegmentDescription:
    # The max read position first: it only moves forward, up to the last position.
    readable = await opened.buffer.max_read_position()
    tail = await opened.ledger.tail()
    return SegmentDescription(
        segment,
        opened.name,
        tail.sealed,
        await count_messages(opened, EARLIEST, tail.last_confirmed),
        tail.last_confirmed,
        readable,
        await count_messages(opened, readable, tail.last_confirmed),
    )
