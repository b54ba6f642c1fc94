"""Rules of declared attributes, for types of any name: the ordering, and consumers that stand by."""

from __future__ import annotations

from txnframework.testing._suites._dispatcher._case import (
    ORDERED,
    ORDERED_BY_KEY,
    STANDS_BY,
    DispatcherRules,
    assigned,
    attach,
    attach_any,
    keyed,
    offered,
    released,
)
from txnframework.testing.capabilities import requires


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
