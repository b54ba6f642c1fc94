"""One segment's messages on their way into a consumer, and the acknowledgments on their way back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from txnframework.broker import Attached, Delivery, Host, Listener, Place, SegmentDispatch
from txnframework.client._messages import Message, received
from txnframework.errors import LeaseLost, Unavailable
from txnframework.model.ids import Branch
from txnframework.model.positions import Position


class Missed:
    """
    Messages of one segment that the user may have processed, and that others may have finished since.

    A consumer that stands by gets its turn again without the user's knowing. Whatever others have finished in between
    does not come again, so a cumulative acknowledgment must not pass over it. What comes again, and what the consumer
    acknowledges itself, is not missed any more. When someone seeks, all of it is void.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        # By their positions: under which branch the consumer acknowledged it itself, if it did.
        self._messages: dict[Position, Branch | None] = {}
        # That of the cursor under which they were received.
        self._incarnation = 0

    def begin_at(self, incarnation: int) -> None:
        """Messages come under this incarnation from now on; if it is another one, someone sought in between."""
        if incarnation != self._incarnation:
            self._messages.clear()
            self._incarnation = incarnation

    def add(self, messages: Mapping[Position, Branch | None], incarnation: int) -> None:
        """The lease was lost under which these were received, under this incarnation."""
        self.begin_at(incarnation)
        self._messages.update(messages)

    def received(self, position: Position) -> None:
        """A message came again."""
        self._messages.pop(position, None)

    def acknowledged(self, positions: Iterable[Position], branch: Branch | None) -> None:
        """The consumer has acknowledged these itself, outside transactions or under a branch."""
        for position in positions:
            if position in self._messages:
                if branch is None:
                    del self._messages[position]
                else:
                    self._messages[position] = branch

    def acknowledged_upto(self, upto: Position) -> None:
        """The consumer has acknowledged everything up to here, outside transactions."""
        self.acknowledged([one for one in self._messages if one <= upto], None)

    def clear(self) -> None:
        """The user wants everything again."""
        self._messages.clear()

    async def resolve(self) -> None:
        """Ask for the outcomes of the transactions in which the consumer acknowledged some of it."""
        for branch in sorted({one for one in self._messages.values() if one is not None}):
            if self._host.outcomes.counts(branch) is None:
                await self._host.outcomes.ask(await self._host.coordinator_for(branch.txn_id), branch)

    def first(self, upto: Position | None = None) -> Position | None:
        """Return the first of them, up to here; what was acknowledged in a transaction that counts is none of them."""
        counts = self._host.outcomes.counts
        self._messages = {at: one for at, one in self._messages.items() if one is None or not counts(one)}
        first = min(self._messages, default=None)
        return None if first is None or (upto is not None and first > upto) else first


class Inbox:
    """What was delivered and not received yet, over all segments, in the order of delivery."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Feed, Message, int]] = deque()

    def put(self, feed: Feed, message: Message, number: int) -> None:
        """Add the delivery with this number."""
        self._waiting.append((feed, message, number))

    def take(self, messages_max: int) -> tuple[Message, ...]:
        """Remove and return the first messages; those that were taken back meanwhile are left out."""
        taken: list[Message] = []
        asked: Feed | None = None
        while self._waiting and len(taken) < messages_max:
            feed, message, number = self._waiting[0]
            if feed is not asked and not feed.follows():
                break  # what was to come before it was taken back, and so will this be
            asked = feed
            self._waiting.popleft()
            if feed.take(message, number):
                taken.append(message)
        return tuple(taken)

    def positions(self, feed: Feed) -> frozenset[Position]:
        """Return where the messages of one segment stand."""
        return frozenset(message.id.position for owner, message, _ in self._waiting if owner is feed)

    def purge(self, feed: Feed) -> frozenset[Position]:
        """Remove the messages of one segment; return where they stand."""
        positions = self.positions(feed)
        self._waiting = deque(one for one in self._waiting if one[0] is not feed)
        return positions


class Feed:
    """
    A consumer's place at one segment.

    ``delivered`` is called when there is a message, ``changed`` for whatever else may be new: an end, progress.
    ``follows``: whether what was delivered of it may be handed out, as far as the segments before it matter.
    ``missed``: what the consumer received of it before, under leases that were lost.
    """

    def __init__(
        self,
        place: Place,
        inbox: Inbox,
        delivered: Callable[[], None],
        changed: Callable[[], None],
        follows: Callable[[], bool],
        missed: Missed,
    ) -> None:
        self.place = place
        self.missed = missed
        self.follows = follows
        self.attached: Attached | None = None
        self.finished = False
        """All of the segment is acknowledged; there will never be more."""
        self.lost = False
        """Another process may dispatch the segment now; this consumer stands by."""
        self.error: Exception | None = None
        self.incarnation = 0
        """Once it is finished: that of the cursor. It has another one when someone has sought since."""
        self.sought = True
        """Someone may have sought since the segments before this one were looked at."""
        self.first_lost: Position | None = None
        """Once it is finished: the first message that this consumer had, and others acknowledged."""
        self.tried = asyncio.Event()
        """It was tried to attach it."""
        self.last_seen: Position | None = None
        self._inbox = inbox
        self._delivered = delivered
        self._changed = changed
        self._missed_noted = False

    @property
    def dispatch(self) -> SegmentDispatch | None:
        """
        What acknowledges here: the dispatch, as long as this consumer is at it and its lease is not lost.

        Whoever acknowledges in the moment in which the lease ends does it as any process may.
        """
        dispatch = None if self.attached is None else self.attached.dispatch
        return None if dispatch is not None and isinstance(dispatch.ended, LeaseLost) else dispatch

    @property
    def holds(self) -> bool:
        """Whether what was delivered of it is still this consumer's."""
        return self.finished or (self.attached is not None and self.attached.dispatch.ended is None)

    @property
    def may_be_followed(self) -> bool:
        """
        Whether what descends from the segment may come: all of it was delivered, and no other consumer has any of it.

        Otherwise one could get what follows, in order, on what another one has not finished.
        """
        return self.finished or (
            self.attached is not None and self.attached.dispatch.drained_by(self.attached.consumer_id)
        )

    @property
    def done(self) -> bool:
        """Whether everything of the segment is acknowledged."""
        return self.finished or (self.attached is not None and self.attached.dispatch.done)

    def listener(self) -> Listener:
        """Return what the dispatch calls."""
        return Listener(self._deliver, self._reset, self._changed, self._ended)

    def attach_to(self, attached: Attached) -> None:
        """This is the consumer's place from now on: what is delivered there may be taken."""
        self.attached = attached
        self.missed.begin_at(attached.dispatch.incarnation)

    def take(self, message: Message, number: int) -> bool:
        """Return whether the user gets this delivery; in any case another one may come."""
        if self.attached is None:
            return False
        self.attached.dispatch.permit(self.attached.consumer_id, 1)
        if not self.attached.dispatch.hand_out(self.attached.consumer_id, message.id.position, number):
            return False
        at = message.id.position
        self.missed.received(at)
        self.last_seen = at if self.last_seen is None else max(self.last_seen, at)
        return True

    async def finish(self) -> None:
        """All of the segment is acknowledged: note whether others acknowledged what the user has seen."""
        self.finished = True
        if self.attached is not None:
            self.incarnation = self.attached.dispatch.incarnation
        if self.attached is not None and self.last_seen is not None:
            attached = self.attached
            try:
                self.first_lost = await attached.dispatch.first_lost(self.last_seen, attached.consumer_id)
            except Unavailable:
                self.first_lost = self.last_seen  # it may be: nobody could tell

    def renounce(self) -> frozenset[Position]:
        """
        The user wants everything again that was not acknowledged: it has seen nothing of that yet.

        Return where the messages stand that it really did not see, taken back as ``withdraw`` does.
        """
        self.last_seen = self.first_lost = None
        self.missed.clear()
        return self.withdraw()

    def lose(self) -> None:
        """
        Its lease is lost: others get what the user has seen and not acknowledged.

        That is noted once: what the user acknowledges from now on is not missed.
        """
        if self.attached is not None and not self._missed_noted:
            self._missed_noted = True
            dispatch = self.attached.dispatch
            self.missed.add(dispatch.left_behind(self.attached.consumer_id), dispatch.incarnation)

    def unseen(self) -> frozenset[Position]:
        """Return where the messages stand that the user did not see."""
        return self._inbox.positions(self)

    def withdraw(self) -> frozenset[Position]:
        """Take back what the user did not see; others may come instead. Return where it stands."""
        positions = self._inbox.purge(self)
        if self.attached is not None:
            self.attached.dispatch.permit(self.attached.consumer_id, len(positions))
        return positions

    def _deliver(self, delivery: Delivery) -> None:
        place = self.place
        how = delivery.redelivery_count, delivery.incarnation, delivery.tenure
        message = received(place.topic, place.segment, delivery.held, *how)
        self._inbox.put(self, message, delivery.number)
        self._delivered()

    def _reset(self) -> None:
        self.withdraw()
        self.last_seen = None
        self.missed.clear()
        self.sought = True
        self._changed()

    def _ended(self, error: Exception) -> None:
        self.error = error
        if isinstance(error, LeaseLost) and not self.finished:
            self.lose()  # at once: it may take long until the consumer gives up its place
        self._changed()


def by_segment(messages: Iterable[Message]) -> dict[str, list[Message]]:
    """Return messages by the segment that they stand in."""
    found: dict[str, list[Message]] = {}
    for message in messages:
        found.setdefault(message.id.segment, []).append(message)
    return found
