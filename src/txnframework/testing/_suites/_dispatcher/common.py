"""Rules of all dispatchers: permits, order, detached consumers, redelivery, and declared attributes."""

from __future__ import annotations

import gc
import types

from txnframework.interfaces import IDispatcher
from txnframework.model import Candidate, Ordering
from txnframework.testing._suites._dispatcher._case import (
    ORDERED,
    ORDERED_BY_KEY,
    STANDS_BY,
    DispatcherRules,
    assigned,
    at,
    attach,
    attach_any,
    keyed,
    offered,
    released,
)
from txnframework.testing.capabilities import requires

STANDARD_TYPES = {
    "exclusive": (Ordering.SEGMENT, False),
    "failover": (Ordering.SEGMENT, True),
    "shared": (Ordering.NONE, False),
    "key_shared": (Ordering.KEY, False),
}


class EveryTypeRules(DispatcherRules):
    """Rules that one consumer is enough to test."""

    async def test_keeps_the_interface(self) -> None:
        """
        The dispatcher has all methods and attributes of its role, and a standard type declares its standard attributes.
        """
        from txnframework.plugin import verify_provider

        async with self.data.open() as dispatcher:
            verify_provider(IDispatcher, dispatcher)
            declared = dispatcher.ordering, dispatcher.stands_by
            assert declared == STANDARD_TYPES.get(dispatcher.subscription_type, declared)

    async def test_nobody_there(self) -> None:
        """Without a consumer, nothing is assigned, and the dispatcher keeps no offered message."""
        async with self.data.open() as dispatcher:
            assert assigned(dispatcher, offered(0, 1)) == []
            attach(dispatcher, 1, permits=5)
            assert assigned(dispatcher, offered(0, 1)) == [(1, 0), (1, 1)]

    async def test_permits(self) -> None:
        """A consumer gets as many messages as it has permits; each message uses one, and a release gives none back."""
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1)
            assert assigned(dispatcher, offered(0)) == []
            dispatcher.permit(1, 2)
            assert assigned(dispatcher, offered(0, 1, 2, 3)) == [(1, 0), (1, 1)]
            assert assigned(dispatcher, offered(2, 3)) == []
            dispatcher.released(released(0, 1))
            assert assigned(dispatcher, offered(2, 3)) == []
            dispatcher.permit(1, 1)
            dispatcher.permit(1, 1)
            assert assigned(dispatcher, offered(2, 3)) == [(1, 2), (1, 3)]

    async def test_reading_order(self) -> None:
        """Messages are assigned in the order in which they are offered, whatever is outstanding."""
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=10)
            assert assigned(dispatcher, offered(3, 5, 9)) == [(1, 3), (1, 5), (1, 9)]
            assert assigned(dispatcher, offered(1, 12)) == [(1, 1), (1, 12)]

    async def test_given_back_comes_again(self) -> None:
        """A released message is assigned again, and first, when it is offered again."""
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=3)
            assigned(dispatcher, offered(0, 1, 2))
            dispatcher.released(released(0, 1))
            dispatcher.permit(1, 2)
            assert assigned(dispatcher, (*offered(0, 1, count=1), *offered(3))) == [(1, 0), (1, 1)]

    async def test_detach_returns_what_was_held(self) -> None:
        """``detach`` returns the consumer's unreleased messages; for an unknown consumer it returns nothing."""
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=3)
            assigned(dispatcher, offered(0, 1, 2))
            dispatcher.released(released(1))
            assert dispatcher.detach(2) == frozenset()
            assert dispatcher.detach(1) == {at(0), at(2)}
            assert dispatcher.detach(1) == frozenset()

    async def test_left_and_released(self) -> None:
        """
        The messages of a detached consumer are assigned to the next one after they are released and offered again.
        """
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=2)
            assigned(dispatcher, offered(0, 1))
            dispatcher.released(dispatcher.detach(1))
            attach(dispatcher, 2, permits=2)
            assert assigned(dispatcher, offered(0, 1, 2, count=1)) == [(2, 0), (2, 1)]

    async def test_gone_takes_nothing(self) -> None:
        """
        A detached consumer is assigned nothing, whatever permits it gets; permits do not survive a new attachment.
        """
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=5)
            dispatcher.detach(1)
            dispatcher.permit(1, 5)
            dispatcher.permit(9, 5)
            assert assigned(dispatcher, offered(0)) == []
            attach(dispatcher, 1)
            assert assigned(dispatcher, offered(0)) == [], "permits of the life before"

    async def test_attaching_again(self) -> None:
        """Attaching an attached consumer changes nothing: it keeps its permits and its messages."""
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=2)
            assigned(dispatcher, offered(0))
            attach(dispatcher, 1, permits=7)
            assert assigned(dispatcher, offered(1, 2)) == [(1, 1)]
            assert dispatcher.detach(1) == {at(0), at(1)}

    async def test_releasing_what_is_not_outstanding(self) -> None:
        """Releasing positions that are not outstanding has no effect, and so has releasing twice."""
        async with self.data.open() as dispatcher:
            dispatcher.released(released(0, 7))
            attach(dispatcher, 1, permits=2)
            assigned(dispatcher, offered(0, 1))
            for _ in range(2):
                dispatcher.released(released(0, 9))
            assert dispatcher.detach(1) == {at(1)}

    async def test_memory_is_bounded(self) -> None:
        """
        The dispatcher keeps nothing of released messages, their keys and detached consumers.

        If this fails, check what it keeps of a key, a position or a consumer after a release or a detach.
        """
        async with self.data.open() as dispatcher:
            sizes = []
            for round_number in range(3):
                for number in range(200):
                    entry = round_number * 1_000 + number
                    consumer_id = entry + 1
                    attach(dispatcher, consumer_id, permits=2)
                    waiting = (Candidate(at(entry), str(entry).encode(), 0), *offered(entry + 200_000))
                    dispatcher.assign(waiting)
                    dispatcher.released(dispatcher.detach(consumer_id))
                sizes.append(reachable(dispatcher))
            assert sizes[2] <= sizes[1]


def reachable(root: object) -> int:
    """Return the number of objects reachable from ``root``, without code and shared objects."""
    seen = {id(root)}
    found = [root]
    for one in found:
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, type | types.ModuleType | types.FunctionType):
                seen.add(id(other))
                found.append(other)
    return len(found)


class OrderingRules(DispatcherRules):
    """Messages that are kept in order go to one consumer at a time, and none is overtaken."""

    @requires(ORDERED)
    async def test_everything_goes_to_one_at_a_time(self) -> None:
        """While a message is outstanding, the next ones go to the same consumer or wait; a call skips none."""
        async with self.data.open() as dispatcher:
            for consumer_id in (1, 2, 3):
                attach_any(dispatcher, consumer_id, permits=2)
            found = assigned(dispatcher, keyed(m0="a", m1="b", m2="c", m3="d"))
            found += assigned(dispatcher, offered(*range(len(found), 6)))
            assert found
            assert len({consumer for consumer, _ in found}) == 1
            assert [entry for _, entry in found] == list(range(len(found)))

    @requires(ORDERED)
    async def test_nothing_overtakes_what_is_left(self) -> None:
        """While messages of a detached consumer are outstanding, no later message is assigned to any consumer."""
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=2)
            assert assigned(dispatcher, offered(0, 1)) == [(1, 0), (1, 1)]
            attach_any(dispatcher, 2, permits=5)
            dispatcher.detach(1)
            attach(dispatcher, 2, permits=5)
            for freed in (0, 1):
                assert assigned(dispatcher, keyed(m2="a", m3="b")) == []
                dispatcher.released(released(freed))
            assert assigned(dispatcher, offered(0, 1, 2)) == [(2, 0), (2, 1), (2, 2)]

    @requires(ORDERED_BY_KEY)
    async def test_each_key_goes_to_one_at_a_time(self) -> None:
        """While a message of a key is outstanding, the next ones of that key go to the same consumer or wait."""
        async with self.data.open() as dispatcher:
            for consumer_id in (1, 2, 3):
                attach_any(dispatcher, consumer_id, permits=2)
            found = assigned(dispatcher, keyed(m0="a", m1="a", m2="a", m3="a"))
            found += assigned(dispatcher, offered(*range(len(found), 6), key=b"a"))
            assert found
            assert len({consumer for consumer, _ in found}) == 1
            assert [entry for _, entry in found] == list(range(len(found)))

    @requires(ORDERED_BY_KEY)
    async def test_no_key_is_overtaken(self) -> None:
        """
        While a message of a detached consumer is outstanding, no later message of its key is assigned to any consumer.
        """
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=2)
            assert assigned(dispatcher, keyed(m0="a", m1="a")) == [(1, 0), (1, 1)]
            attach_any(dispatcher, 2, permits=5)
            dispatcher.detach(1)
            attach(dispatcher, 2, permits=5)
            for freed in (0, 1):
                assert assigned(dispatcher, keyed(m2="a")) == []
                dispatcher.released(released(freed))
            assert assigned(dispatcher, keyed(m0="a", m1="a", m2="a")) == [(2, 0), (2, 1), (2, 2)]

    @requires(STANDS_BY)
    async def test_others_stand_by(self) -> None:
        """
        Where consumers stand by, none is refused, and a waiting one takes over when those before it have detached.
        """
        async with self.data.open() as dispatcher:
            for consumer_id in (1, 2):
                attach(dispatcher, consumer_id, permits=2)
            first = assigned(dispatcher, offered(0))
            assert len(first) == 1
            (left, _), *_ = first
            dispatcher.released(dispatcher.detach(left))
            assert assigned(dispatcher, offered(0)) == [(3 - left, 0)]
