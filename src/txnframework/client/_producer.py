"""Producers: idempotent, batching, routing by hash, and following splits inside a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from txnframework.broker import Host
from txnframework.client._arguments import INT64_MAX, header_pairs, several_values, whole_number
from txnframework.client._beyond_window import BeyondWindow
from txnframework.client._calls import Retrying, close_after, naming_deletion, require_open
from txnframework.client._lane import Lane
from txnframework.client._messages import MessageID
from txnframework.client._sending import Outgoing, Room, Sending, hash_of, size_of
from txnframework.client._transaction import TransactionPart, part_of
from txnframework.errors import Closed, InvalidInput, LedgerSealed, TopicNotFound
from txnframework.model.entries import EntryMessage
from txnframework.model.ids import Branch
from txnframework.model.layout import Layout, SegmentState
from txnframework.model.names import SegmentName, TopicName

CLOCK_SHIFT_BITS = 20
"""Room for a million messages in each millisecond before sequence ids of two lives of a name could meet."""


@dataclass(frozen=True, slots=True)
class _Common:
    """What all messages of a call have in common; ``sequence_id`` is the first one's, None: the producer counts."""

    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    sequence_id: int | None


class Producer:
    """
    Writes to one topic, or to one segment of it; made by ``Client.producer``.

    Sending the same sequence id again, from whatever process uses the same name, stores the message once, as long as it
    is among the producer's last messages of its segment: 10,000 by default, ``deduplication_window_sequences`` of the
    ledger store. An older one is stored again; ``txnframework_sends_beyond_window_total`` counts it. Concurrent sends
    share entries. Messages with one key keep their order, as long as one send is awaited before the next one
    with that key is begun or all go through one producer.
    """

    def __init__(
        self, host: Host, retrying: Retrying, target: TopicName | SegmentName, layout: Layout, name: str | None
    ) -> None:
        environment = host.environment
        self.topic = str(target)
        self.name = name or f"producer-{environment.random_bits(64):016x}"
        # A new name begins at 0. One that was used before must not meet the ids of its earlier lives, or new messages
        # would be taken for old ones.
        fresh = environment.now_ms() << CLOCK_SHIFT_BITS | environment.random_bits(CLOCK_SHIFT_BITS)
        self._next_sequence = fresh if name else 0
        self._host = host
        self._retrying = retrying
        self._bounds = host.config.client
        self._only = target if isinstance(target, SegmentName) else None
        self._follow(layout)
        self._lanes: dict[int, Lane] = {}
        self._beyond = BeyondWindow(host.metrics, self.name)
        self._room = Room(self._bounds.sends_in_flight_max)
        self._sends = 0
        self._rerouting: asyncio.Task[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Producer {self.name} of {self.topic}{', closed' if self._closed else ''}>"

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        sequence_id: int | None = None,
        txn: TransactionPart | None = None,
    ) -> MessageID:
        """
        Return where the message stands, once it is durable.

        ``value`` None sends a null: it deletes ``key``, for compaction and for programs that keep the latest value of
        each key. A null is not the same as an empty value.
        ``sequence_id`` may be chosen by the caller, who then lets it grow from message to message and sends a message
        again under the same one, before the deduplication window has passed it; without it the producer counts.

        :raises InvalidInput: the message is too large, or the sequence id is out of range.
        :raises TransactionConflict: the transaction has ended, or another open one holds a copy of this message.
        :raises NotTransactionOwner: the transaction belongs to another principal; nothing was stored.
        :raises OutcomeUnknown: as for a cancelled call, it may stand there; send it again with the same sequence id.
        """
        (sent,) = await self._send((value,), _Common(key, header_pairs(headers), sequence_id), txn)
        return sent

    async def send_many(
        self,
        values: Iterable[bytes | None],
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        sequence_id: int | None = None,
        txn: TransactionPart | None = None,
    ) -> tuple[MessageID, ...]:
        """
        Send in order, in as few entries as fit; raises as ``send`` does, after all of them have come to an end.

        ``key`` and ``headers`` are those of every message. ``sequence_id`` may be chosen, as for ``send``: it is the
        first message's, and the others count on from it; the call after it goes on with ``sequence_id`` and how many
        they were. Where messages of one call go to several segments, they share fewer entries with it than without.

        :raises InvalidInput: also for one that is too large: then none is sent.
        :raises OutcomeUnknown: some or all of them may stand there; send the same ones again, in the same order and
            with the same sequence id, and those that stand there are confirmed.
        """
        return await self._send(several_values(values), _Common(key, header_pairs(headers), sequence_id), txn)

    async def close(self) -> None:
        """
        Wait for sends in flight, then let go; may be repeated. Cancelled: it takes nothing more, and what is in flight
        goes on.
        """
        self._closed = True
        async with self._room.turn:
            pass  # whoever called ``send`` before has found room
        while self._rerouting is not None or any(lane.busy for lane in self._lanes.values()):
            if self._rerouting is not None:
                await asyncio.wait({self._rerouting})
            for lane in tuple(self._lanes.values()):
                await lane.idle()
        # Nothing is under way that could still send what waits.
        for lane in self._lanes.values():
            lane.give_up(Closed(f"producer {self.name} was closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_after(error, self.close)

    async def _send(
        self, values: Sequence[bytes | None], common: _Common, txn: TransactionPart | None
    ) -> tuple[MessageID, ...]:
        """Send as one operation of a transaction, or outside of any."""
        operation: AbstractContextManager[Branch | None] = nullcontext() if txn is None else part_of(txn).operation()
        async with naming_deletion(self._host, lambda: (self._layout,)):
            with operation as branch:
                if self._closed:
                    raise Closed(f"producer {self.name} was closed")
                require_open(self._host)
                self._check(values, common)
                return await self._sent(values, common, branch, "" if txn is None else txn.principal)

    async def _sent(
        self, values: Sequence[bytes | None], common: _Common, branch: Branch | None, principal: str
    ) -> tuple[MessageID, ...]:
        """Put the messages on their way as they find room; return where they stand."""
        first = common.sequence_id
        chosen = first is not None
        sending = Sending(self._room, len(values))
        try:
            async with self._room.turn:
                at = 0
                while at < len(values):
                    upto = at + await sending.room_for(len(values) - at)
                    now_ms = self._host.environment.now_ms()
                    for number in range(at, upto):
                        # Counted here and not before: the ids of messages that go to one segment grow in the order
                        # they are put.
                        sequence = self._next_sequence if first is None else first + number
                        if sequence > INT64_MAX:
                            raise InvalidInput(
                                f"producer {self.name} has used the last sequence id, 2**63 - 1: send under another"
                                " name, or choose the sequence ids"
                            )
                        self._next_sequence = max(self._next_sequence, sequence + 1)
                        self._sends += 1
                        message = EntryMessage(common.key, values[number], common.headers, sequence, now_ms)
                        self._put(Outgoing(message, branch, chosen, sending, number, self._sends, principal=principal))
                    at = upto
            return await sending.ended()
        finally:
            sending.give_up()

    def _check(self, values: Sequence[bytes | None], common: _Common) -> None:
        """Refuse what cannot be stored before it shares an entry with what can."""
        if not all(isinstance(value, bytes | None) for value in (*values, common.key)):
            raise InvalidInput("a message's value and key are bytes or None")
        further = max(0, len(values) - 1)
        if common.sequence_id is not None:
            whole_number(common.sequence_id, "sequence_id", 0, INT64_MAX - further)
        largest = max((value for value in values if value is not None), key=len, default=b"")
        size = size_of(EntryMessage(common.key, largest, common.headers, 0, 0))
        if size > self._bounds.message_bytes_max:
            raise InvalidInput(
                f"a message of {size} bytes is larger than client.message_bytes_max ({self._bounds.message_bytes_max})"
            )

    # -- routing --------------------------------------------------------------------------------------

    def _follow(self, layout: Layout) -> None:
        """Route by this layout; where all messages go to one segment, without looking at each of them."""
        self._layout = layout
        active = layout.active()
        if self._only is not None:
            self._sole: int | None = self._only.segment_id
        else:
            self._sole = active[0].id if len(active) == 1 else None

    def _put(self, outgoing: Outgoing) -> None:
        segment_id = self._sole
        if segment_id is None:
            segment_id = self._layout.route(hash_of(outgoing.message, self.name)).id
        lane = self._lanes.get(segment_id)
        if lane is None:
            lane = self._lanes[segment_id] = self._lane(segment_id)
        lane.put(outgoing)

    def _lane(self, segment_id: int) -> Lane:
        layout = self._layout
        ancestors = tuple((str(layout.name_of(one.id)), one) for one in layout.ancestors(segment_id))
        name = str(layout.name_of(segment_id))
        sealed = self._reroute_soon if self._only is None else None
        return Lane(self._host, self._retrying, self.name, name, ancestors, sealed, layout.life, self._beyond)

    def _reroute_soon(self) -> None:
        if self._rerouting is None:
            self._rerouting = asyncio.ensure_future(self._reroute())
            self._rerouting.add_done_callback(self._rerouted)

    def _rerouted(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step never runs, so nothing in _reroute could have told the senders.
        if self._rerouting is task:
            self._rerouting = None
            self._fail_stopped()

    def _fail_stopped(self) -> None:
        for lane in self._lanes.values():
            if lane.stopped:
                lane.fail(Closed(f"producer {self.name} was stopped while it followed a change of {self.topic}"))

    async def _reroute(self) -> None:
        """Finish the change that sealed a segment, then send what stopped there to the children, in order."""
        try:
            while stopped := {number: lane for number, lane in self._lanes.items() if lane.stopped}:
                try:
                    layout = await self._retrying.run(lambda: self._host.topics.finish_changes(self._layout.topic))
                except Exception as error:  # whoever sends is to know; later sends try again
                    for lane in stopped.values():
                        lane.fail(error)
                    continue
                if layout.life != self._layout.life:
                    # A topic of this name was made since: what was sent to this one is not meant for it.
                    for lane in stopped.values():
                        lane.fail(TopicNotFound(str(layout.topic), deleted=True))
                    continue
                await self._move_to(layout)
                for number, lane in stopped.items():
                    if number in self._lanes:  # sealed or gone, but not by a change of the layout: without children
                        lane.fail(lane.refused or LedgerSealed(str(layout.name_of(number))))
        except BaseException:
            self._fail_stopped()
            raise
        finally:
            self._rerouting = None

    async def _move_to(self, layout: Layout) -> None:
        stale: dict[int, Lane] = {}
        # What is under way in a merged segment's other parent comes to an end before later messages go to the child:
        # otherwise one key's messages could overtake each other. Meanwhile sends still follow the old layout, and may
        # open a lane to another segment that was replaced: so again, until there is none.
        while found := {
            number: lane
            for number, lane in self._lanes.items()
            if number not in stale and layout.segments[number].state is SegmentState.REPLACED
        }:
            stale |= found
            for lane in found.values():
                lane.stopped = True
            for lane in found.values():
                await lane.idle()
        self._follow(layout)
        for number in stale:
            del self._lanes[number]
        # Those of two parents that were merged, in the order they were sent: an entry claims every number between its
        # first and its last one, so the second parent's would be refused after the first one's.
        for outgoing in sorted((one for lane in stale.values() for one in lane.waiting), key=_order):
            self._put(outgoing)


def _order(outgoing: Outgoing) -> int:
    return outgoing.order
