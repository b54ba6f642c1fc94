"""The messages of all segments that were delivered to a consumer and not received yet; without I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from txnframework.broker import DurableCounts, NumberedDelivery, SubscriptionRef
from txnframework.client._messages import Message
from txnframework.model.positions import Position


class OrderKey(NamedTuple):
    """Messages of which none may overtake another: those of a segment, or those of a key in it."""

    segment: str
    message_key: bytes | None


class Source(Protocol):
    """A segment's side of the inbox: ``Feed``."""

    place: SubscriptionRef
    follows: Callable[[], bool] | None
    counting: DurableCounts | None

    def permit_more(self) -> None:
        """Let the dispatch deliver another message."""

    def take(self, message: Message, number: int, *, is_replaced: bool = False) -> bool:
        """Return whether the user gets this delivery."""

    async def record(self, deliveries: tuple[NumberedDelivery, ...], *, alone: bool) -> None:
        """Record deliveries before the user receives them."""


@dataclass(eq=False, slots=True)
class Delivery:
    """
    A message with the number of its delivery.

    ``place``: it came to the inbox before those with a higher one. ``is_replaced``: the dispatch may deliver another
    message instead, because this one waits for its key.
    """

    feed: Source
    message: Message
    number: int
    place: int
    is_replaced: bool = False


class Inbox:
    """
    Delivered messages of all segments that were not received yet, in the order of delivery.

    With ``order_key``, each message belongs to a key, or to none. While a key is held, its messages are not taken, and
    others are. What a held key has does not use up what the dispatch may deliver, except where no other message can be
    delivered. So the limit of unacknowledged messages is the only limit of a held key.
    """

    def __init__(self) -> None:
        self.paused = False
        """Whether the consumer is paused: segments that are attached now deliver nothing."""
        self.ready: Callable[[Source], bool] | None = None
        """Whether messages of a segment may be taken now; None: all may. The others stay in their places."""
        self.order_key: Callable[[Message], OrderKey | None] | None = None
        """The key of a message; None: messages have no keys. ``forget_keys`` unsets it."""
        self.unrecorded: tuple[Source, tuple[NumberedDelivery, ...]] | None = None
        """The deliveries that must be recorded before ``take`` returns them; it returned none."""
        # By segment. Each call takes from the next one, so that handlers at work at a time have messages of several.
        self._waiting: dict[Source, deque[Delivery]] = {}
        self._places = count()
        # The place of the first message of each segment whose ancestors' messages precede its own. All of those came to
        # the inbox before.
        self._first: WeakKeyDictionary[Source, int] = WeakKeyDictionary()
        self._held: set[OrderKey] = set()
        # For each key: its messages that were passed over while it was held. Later ones are still in ``_waiting``.
        self._passed: dict[OrderKey, deque[Delivery]] = {}
        # The keys of ``_passed`` that are not held any more, in the order in which they were freed.
        self._freed: dict[OrderKey, None] = {}

    def put(self, feed: Source, message: Message, number: int) -> None:
        """Add the delivery with this number."""
        if feed not in self._waiting:
            self._waiting[feed] = deque()
        place = next(self._places)
        if feed.follows is not None:
            self._first.setdefault(feed, place)
        self._waiting[feed].append(Delivery(feed, message, number, place))

    # -- keys -----------------------------------------------------------------------------------------

    def hold(self, keys: Iterable[OrderKey]) -> None:
        """Let no message of these keys be taken until ``free``."""
        for key in keys:
            self._held.add(key)
            self._freed.pop(key, None)

    def free(self, keys: Iterable[OrderKey]) -> None:
        """Let messages of these keys be taken again."""
        for key in keys:
            self._held.discard(key)
            if key in self._passed:
                self._freed[key] = None

    def forget_keys(self) -> None:
        """Free all keys, and give the messages no keys any more."""
        for queue in self._passed.values():
            self._waiting.setdefault(queue[0].feed, deque()).extendleft(reversed(queue))
        self._passed.clear()
        self._freed.clear()
        self._held.clear()
        self.order_key = None

    def count_free(self) -> int:
        """Return the number of messages that were not passed over, or whose key was freed since."""
        return sum(map(len, self._waiting.values())) + sum(len(self._passed[key]) for key in self._freed)

    def _key(self, one: Delivery) -> OrderKey | None:
        return None if self.order_key is None else self.order_key(one.message)

    def _pass_over(self, key: OrderKey, one: Delivery) -> None:
        if key not in self._passed:
            self._passed[key] = deque()
            if key not in self._held:
                self._freed[key] = None
        self._passed[key].append(one)
        if key.message_key is not None and not one.is_replaced:  # other keys may follow
            one.is_replaced = True
            one.feed.permit_more()

    # -- taking ---------------------------------------------------------------------------------------

    def take(self, messages_max: int) -> tuple[Message, ...]:
        """Remove and return the first messages, without those that were withdrawn in the meantime."""
        taken: list[Message] = []
        self.unrecorded = None
        while self._freed and len(taken) < messages_max:
            key = next(iter(self._freed))
            queue = self._passed[key]
            if not _follows(queue[0].feed) or not self._take_first(queue, taken, messages_max):
                return tuple(taken)
            if not queue:
                del self._passed[key], self._freed[key]
        self._take_waiting(taken, messages_max)
        return tuple(taken)

    def _take_waiting(self, taken: list[Message], messages_max: int) -> None:
        for feed, queue in tuple(self._waiting.items()):
            if len(taken) >= messages_max:
                return
            if not _follows(feed) or not (self.ready is None or self.ready(feed)) or self._is_preceded(feed):
                continue
            is_last = False
            while queue and len(taken) < messages_max and not is_last:
                key = self._key(queue[0])
                if key is not None and (key in self._held or key in self._passed):
                    self._pass_over(key, queue.popleft())
                else:
                    is_last = not self._take_first(queue, taken, messages_max)
            del self._waiting[feed]
            if queue:
                self._waiting[feed] = queue
            if is_last:
                return

    def _is_preceded(self, feed: Source) -> bool:
        """Return whether a message that came before those of a segment was not taken: it may be of an ancestor."""
        first = self._first.get(feed)
        return first is not None and any(
            queue[0].place < first for other, queue in self._waiting.items() if queue and other is not feed
        )

    def _take_first(self, queue: deque[Delivery], taken: list[Message], messages_max: int) -> bool:
        """Take the first message of a queue, unless it was withdrawn; return False if nothing may be taken after it."""
        one = queue[0]
        counting, position = one.feed.counting, one.message.id.position
        is_suspect = counting is not None and position in counting.suspects
        if counting is not None and (counting.must_record(position, one.number) or (taken and is_suspect)):
            if not taken:  # a suspect is received alone
                self.unrecorded = one.feed, tuple(self._unrecorded(queue, counting, messages_max))
            return False
        queue.popleft()
        if one.feed.take(one.message, one.number, is_replaced=one.is_replaced):
            taken.append(one.message)
            return not is_suspect
        return True

    def _unrecorded(
        self, queue: deque[Delivery], counting: DurableCounts, messages_max: int
    ) -> Iterator[NumberedDelivery]:
        """Return the deliveries to record before the next ones are taken: one suspect, or several other ones."""
        first = queue[0]
        yield first.message.id.position, first.number
        if first.message.id.position in counting.suspects:
            return
        for later in islice(queue, 1, messages_max):
            position = later.message.id.position
            if position in counting.suspects or self._key(later) in self._held:
                return
            if not counting.must_record(position, later.number):
                return
            yield position, later.number

    # -- removing -------------------------------------------------------------------------------------

    def positions(self, feed: Source) -> frozenset[Position]:
        """Return the positions of the messages of one segment."""
        return frozenset(one.message.id.position for one in self._all() if one.feed is feed)

    def purge(self, feed: Source) -> frozenset[Position]:
        """Remove the messages of one segment, and return their positions."""
        return frozenset(one.message.id.position for one in self.remove(feed))

    def remove(self, feed: Source, key: OrderKey | None = None) -> list[Delivery]:
        """Remove and return the messages of one segment, or of one key in it."""

        def is_meant(one: Delivery) -> bool:
            return one.feed is feed and (key is None or self._key(one) == key)

        removed: list[Delivery] = []
        for passed in tuple(self._passed) if key is None else (key,):
            queue = self._passed.get(passed)
            if queue is None or queue[0].feed is not feed:  # the messages of a key are of one segment
                continue
            removed += queue
            del self._passed[passed]
            self._freed.pop(passed, None)
        before = self._waiting.pop(feed, deque())
        waiting = [one for one in before if is_meant(one)]
        if len(waiting) < len(before):
            self._waiting[feed] = deque(one for one in before if not is_meant(one))
        return removed + waiting

    def purge_all(self) -> dict[Source, frozenset[Position]]:
        """Remove all messages, and return their positions; ``purge`` of each segment looks at all messages."""
        found: dict[Source, set[Position]] = {}
        for one in self._all():
            found.setdefault(one.feed, set()).add(one.message.id.position)
        self._waiting.clear()
        self._passed.clear()
        self._freed.clear()
        return {feed: frozenset(positions) for feed, positions in found.items()}

    def _all(self) -> Iterator[Delivery]:
        return chain(*self._waiting.values(), *self._passed.values())


def _follows(feed: Source) -> bool:
    """Return False if an ancestor's messages were withdrawn: those of this segment will be withdrawn too."""
    return feed.follows is None or feed.follows()
