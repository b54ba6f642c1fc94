"""Which messages an inbox returns, and how many more the dispatch may deliver."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

import pytest

from txnframework.broker import DurableCounts, NumberedDelivery, SubscriptionRef
from txnframework.client._handlers.plan import order_key
from txnframework.client._messages import Message, MessageID
from txnframework.client._subscription.inbox import Inbox, OrderKey
from txnframework.model import Position
from txnframework.model.dispatch import Ordering

SEGMENT = "segment://public/default/t/0000-ffff-0"


class Segment:
    """A segment that counts the messages that it may deliver."""

    follows: Callable[[], bool] | None = None
    counting: DurableCounts | None = None

    def __init__(self, inbox: Inbox, permits: int, name: str = SEGMENT) -> None:
        self.place = SubscriptionRef("topic://public/default/t", "s", name, "key_shared", 0)
        self.permits = permits
        self._inbox = inbox
        self._delivered = 0

    def deliver(self, key: bytes | None) -> None:
        """Deliver the next message."""
        assert self.permits > 0
        self.permits -= 1
        self._delivered += 1
        message_id = MessageID(self.place.segment, Position(1, self._delivered, 0))
        self._inbox.put(self, Message("topic://public/default/t", message_id, key, b"", {}, 0, "", 0), self._delivered)

    def permit_more(self) -> None:
        self.permits += 1

    def take(self, message: Message, number: int, *, is_replaced: bool = False) -> bool:
        self.permits += not is_replaced
        return True

    def withdraw(self, key: OrderKey | None = None) -> int:
        """Withdraw messages as a feed does, and return their number."""
        removed = self._inbox.remove(self, key)
        self.permits += sum(not one.is_replaced for one in removed)
        return len(removed)

    async def record(self, deliveries: tuple[NumberedDelivery, ...], *, alone: bool) -> None:
        raise AssertionError("nothing is counted durably")


def ordered(ordering: Ordering) -> Inbox:
    inbox = Inbox()
    inbox.order_key = lambda message: order_key(ordering, message)
    return inbox


def taken(inbox: Inbox, messages_max: int = 1) -> list[tuple[bytes | None, int]]:
    return [(one.key, one.id.position.entry_id) for one in inbox.take(messages_max)]


def test_others_pass_a_key_that_is_held() -> None:
    """Messages of the blocked key wait, and come first and in order when it is free."""
    inbox = ordered(Ordering.KEY)
    segment, held = Segment(inbox, 2), OrderKey(SEGMENT, b"a")
    inbox.hold([held])
    for _ in range(10):
        segment.deliver(b"a")
        assert taken(inbox) == []
    segment.deliver(b"b")
    segment.deliver(None)
    assert taken(inbox, 5) == [(b"b", 11), (None, 12)]
    assert inbox.count_free() == 0
    segment.deliver(b"b")
    inbox.free([held])
    assert inbox.count_free() == 11
    assert taken(inbox, 3) == [(b"a", 1), (b"a", 2), (b"a", 3)]
    inbox.hold([held])
    assert taken(inbox, 2) == [(b"b", 13)]
    inbox.forget_keys()
    assert taken(inbox, 20) == [(b"a", number) for number in range(4, 11)]
    assert segment.permits == 2


def test_a_child_follows_its_ancestors() -> None:
    """Its messages are returned after all earlier ones of its ancestors; other segments take turns."""
    inbox = Inbox()
    parent, beside, child = (Segment(inbox, 9, f"{SEGMENT}-{number}") for number in range(3))
    child.follows = lambda: True
    for segment in (parent, beside, parent, child, beside, child):
        segment.deliver(None)
    names = [inbox.take(1)[0].id.segment[-1] for _ in range(6)]
    assert names[:3] == ["0", "1", "0"]
    assert sorted(names[3:]) == ["1", "2", "2"]


def test_a_segment_that_is_held_takes_no_more_memory() -> None:
    """Messages of a blocked segment cannot be received, so it gets no more permits than before."""
    inbox = ordered(Ordering.SEGMENT)
    segment, other = Segment(inbox, 2), Segment(inbox, 2, "segment://public/default/t/8000-ffff-1")
    inbox.hold([OrderKey(SEGMENT, None)])
    segment.deliver(b"a")
    segment.deliver(b"b")
    assert taken(inbox) == []
    assert segment.permits == 0
    other.deliver(b"c")
    assert taken(inbox) == [(b"c", 1)]
    assert other.permits == 2


@pytest.mark.parametrize("seed", range(50))
def test_no_permit_is_lost_or_won(seed: int) -> None:
    """In any sequence of operations, messages of a key are in order, and all permits return."""
    chance = random.Random(seed)
    inbox = ordered(Ordering.KEY)
    segment = Segment(inbox, 5)
    keys = [OrderKey(SEGMENT, key) for key in (b"a", b"b", b"c")]
    held: set[OrderKey] = set()
    last: dict[bytes | None, int] = {}
    for _ in range(300):
        step = chance.randrange(6)
        key = chance.choice(keys)
        if step <= 1 and segment.permits:
            segment.deliver(key.message_key)
        elif step == 2:
            held.add(key)
            inbox.hold([key])
        elif step == 3:
            held.discard(key)
            inbox.free([key])
        elif step == 4 and not chance.randrange(5):
            segment.withdraw(chance.choice([None, key]))
        else:
            for its, number in taken(inbox, chance.randrange(1, 4)):
                assert OrderKey(SEGMENT, cast(bytes, its)) not in held
                assert number > last.get(its, 0)
                last[its] = number
    inbox.free(keys)
    while taken(inbox, 10):
        pass
    assert segment.permits == 5
    assert inbox.purge_all() == {}


def test_segments_take_turns() -> None:
    """Calls for one message take from one segment after the other; a call for several takes all of one first."""
    inbox = Inbox()
    first, second = Segment(inbox, 9), Segment(inbox, 9, "segment://public/default/t/8000-ffff-1")
    for segment, key in ((first, b"a"), (second, b"b")):
        for _ in range(4):
            segment.deliver(key)
    assert [taken(inbox)[0][0] for _ in range(4)] == [b"a", b"b", b"a", b"b"]
    assert taken(inbox, 3) == [(b"a", 3), (b"a", 4), (b"b", 3)]
