"""The messages of one segment on their way to a consumer, and the state of its acknowledgments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from txnframework.broker import (
    Attachment,
    DurableCounts,
    HeldMessage,
    Listener,
    NumberedDelivery,
    SubscriptionRef,
)
from txnframework.client._messages import Message, received
from txnframework.client._subscription.inbox import Inbox, OrderKey
from txnframework.client._subscription.lost_messages import LostLeaseMessages
from txnframework.errors import LeaseLost, Unavailable
from txnframework.model.positions import Position


class Feed:
    """
    The state of a consumer at one segment.

    * ``delivered`` is called for each message, ``changed`` for any other change, such as an end or progress.
    * ``follows`` returns whether its messages may be handed out now, given the state of the ancestor segments; None:
      they always may.
    * ``missed`` holds the messages that the consumer received under leases that were lost.
    """

    def __init__(
        self,
        place: SubscriptionRef,
        inbox: Inbox,
        delivered: Callable[[], None],
        changed: Callable[[], None],
        follows: Callable[[], bool] | None,
        missed: LostLeaseMessages,
        counts_durably: bool = False,
    ) -> None:
        self.counting: DurableCounts | None = None
        """The counts in the store, if this consumer needs them."""
        self._counts_durably = counts_durably
        self.place = place
        self.missed = missed
        self.follows = follows
        self.attached: Attachment | None = None
        self.finished = False
        """Everything in the segment is acknowledged, and the segment is sealed."""
        self.lost = False
        """The lease was lost: another process may dispatch the segment now, and this consumer stands by."""
        self.error: Exception | None = None
        self.incarnation = 0
        """The cursor's incarnation when the segment was finished; the cursor has another one after a seek."""
        self.sought = True
        """A seek may have happened since the ancestor segments were checked."""
        self.first_lost: Position | None = None
        """After the end of the segment: the first message that this consumer received and others acknowledged."""
        self.given_up_ms: int | None = None
        """When the segment is given up at the latest, because another process is to dispatch it; None: it is kept."""
        self.tried = asyncio.Event()
        """Set after the first attempt to attach."""
        self.last_seen: Position | None = None
        self._inbox = inbox
        self._delivered = delivered
        self._changed = changed
        self._missed_noted = False

    @property
    def present(self) -> Attachment | None:
        """
        The attachment through which this consumer acknowledges, while its lease is held.

        After the loss of the lease this is None, and the consumer acknowledges as any process may.
        """
        attached = self.attached
        return None if attached is not None and isinstance(attached.dispatch.ended, LeaseLost) else attached

    @property
    def holds(self) -> bool:
        """Whether messages that were delivered from the segment still belong to this consumer."""
        return self.finished or (self.attached is not None and self.attached.dispatch.ended is None)

    @property
    def may_be_followed(self) -> bool:
        """
        Whether the children may be attached: everything was delivered, and no other consumer has any of it.

        Otherwise a consumer could receive later messages before another consumer has finished the earlier ones.
        """
        return self.finished or (self.attached is not None and self.attached.is_last)

    @property
    def done(self) -> bool:
        """Whether everything in the segment is acknowledged."""
        return self.finished or (self.attached is not None and self.attached.is_done)

    @property
    def is_running(self) -> bool:
        """Whether this consumer is attached, and the dispatch has not ended."""
        return self.attached is not None and self.attached.dispatch.ended is None

    def retire(self, until_ms: int) -> None:
        """
        Hand out nothing more, so that the segment can be given up.

        :param until_ms: when it is given up at the latest, by the monotonic clock.
        """
        if self.attached is not None:
            self.given_up_ms = until_ms
            self.attached.retire(self.withdraw())

    def is_quiet(self, now_ms: int) -> bool:
        """Return whether the segment may be given up: what was handed out is acknowledged, or the time is over."""
        if self.attached is None or self.given_up_ms is None:
            return False
        return self.attached.is_quiet or now_ms >= self.given_up_ms

    def finish_unseen(self, incarnation: int) -> None:
        """Mark the segment as finished by other processes, under this incarnation of the cursor."""
        self.finished, self.incarnation = True, incarnation
        self.tried.set()

    def listener(self) -> Listener:
        """Return the callbacks for the dispatch."""
        return Listener(self._deliver, self._reset, self._changed, self._ended)

    def attach_to(self, attached: Attachment) -> None:
        """Set the dispatch from which messages may now be taken."""
        self.attached = attached
        self.counting = attached.dispatch.counting if self._counts_durably else None
        if self._inbox.paused:
            self.pause()
        self.missed.begin_at(attached.dispatch.incarnation)

    def permit_more(self) -> None:
        """Let the dispatch deliver another message, because one that was delivered waits for its key."""
        if self.attached is not None:
            self.attached.permit(1)

    def take(self, message: Message, number: int, *, is_replaced: bool = False) -> bool:
        """
        Return whether the user gets this delivery; in either case the dispatch may deliver another message.

        ``is_replaced``: ``permit_more`` was called for it.
        """
        if self.attached is None:
            return False
        at = message.id.position
        if is_replaced:
            self.attached.permit(-1)
        if not self.attached.hand_out(at, number):
            return False
        if self.missed.messages:
            self.missed.received(at)
        self.last_seen = at if self.last_seen is None else max(self.last_seen, at)
        return True

    async def finish(self) -> None:
        """Mark the segment as finished, and note whether others acknowledged a message that the user received."""
        self.finished = True
        if self.attached is not None:
            self.incarnation = self.attached.dispatch.incarnation
        if self.attached is not None and self.last_seen is not None:
            attached = self.attached
            try:
                self.first_lost = await attached.first_lost(self.last_seen)
            except Unavailable:
                self.first_lost = self.last_seen  # the safe assumption, because the store could not be asked

    def renounce(self) -> frozenset[Position]:
        """
        Reset the state for a redelivery of all unacknowledged messages, as if the user had received none.

        Return the positions of the messages that the user did not receive; they are withdrawn as in ``withdraw``.
        """
        self.last_seen = self.first_lost = None
        self.missed.clear()
        return self.withdraw()

    def lose(self) -> None:
        """
        Handle the loss of the lease: others now get the messages that the user received and did not acknowledge.

        These messages are recorded once; messages that the user acknowledges afterwards are not missed.
        """
        if self.attached is not None and not self._missed_noted:
            self._missed_noted = True
            self.missed.add(self.attached.left_behind(), self.attached.dispatch.incarnation)

    def pause(self) -> None:
        """Stop deliveries; the messages that the user has not received go to other consumers."""
        if self.attached is not None:
            self.attached.pause(self.withdraw())

    def resume(self) -> None:
        """Start deliveries again after ``pause``."""
        if self.attached is not None:
            self.attached.resume()

    @property
    def given(self) -> int:
        """The number of messages that the user has received and not finished, if the store counts deliveries."""
        if self.counting is None or self.attached is None:
            return 0
        return self.counting.given(self.attached.consumer_id)

    async def record(self, deliveries: tuple[NumberedDelivery, ...], *, alone: bool) -> None:
        """Record deliveries before the user receives them; ``alone``: no segment gave this consumer another message."""
        if self.counting is not None and self.attached is not None:
            await self.counting.record(self.attached.dispatch.incarnation, deliveries, alone=alone)

    def unseen(self) -> frozenset[Position]:
        """Return the positions of the messages that the user has not received."""
        return self._inbox.positions(self)

    def withdraw(self, key: OrderKey | None = None) -> frozenset[Position]:
        """
        Remove the messages that the user has not received, permit others instead, and return the positions.

        :param key: remove those of this key only.
        """
        removed = self._inbox.remove(self, key)
        if self.attached is not None:
            self.attached.permit(sum(not one.is_replaced for one in removed))
        return frozenset(one.message.id.position for one in removed)

    def _deliver(self, held: HeldMessage, incarnation: int, tenure: object) -> None:
        place = self.place
        names = place.topic, place.segment, place.subscription
        message = received(*names, held, held.redeliveries, incarnation, tenure)
        self._inbox.put(self, message, held.delivery)
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
            self.lose()  # now, because it may take long until the consumer detaches
        self._changed()
