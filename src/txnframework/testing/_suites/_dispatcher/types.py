"""Rules of the standard subscription types."""

from __future__ import annotations

from collections import Counter

import pytest

from txnframework.errors import ConsumerBusy
from txnframework.model import Candidate
from txnframework.testing._suites._dispatcher._case import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    DispatcherRules,
    assigned,
    at,
    attach,
    keyed,
    offered,
    released,
)
from txnframework.testing.capabilities import requires


class ExclusiveRules(DispatcherRules):
    """One consumer gets all messages."""

    @requires(EXCLUSIVE)
    async def test_another_one_is_refused(self) -> None:
        """
        A second consumer is refused with the name of the first and changes nothing; after a detach another may attach.
        """
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=1)
            with pytest.raises(ConsumerBusy) as busy:
                attach(dispatcher, 2, permits=1)
            assert busy.value.consumer == "consumer-1"
            assert assigned(dispatcher, offered(0, 1)) == [(1, 0)]
            dispatcher.released(dispatcher.detach(1))
            attach(dispatcher, 2, permits=1)
            assert assigned(dispatcher, offered(0, 1)) == [(2, 0)]


class FailoverRules(DispatcherRules):
    """One consumer is active, and the others stand by."""

    @requires(FAILOVER)
    async def test_one_is_active(self) -> None:
        """The first consumer is assigned all messages; the others get none, even while it has no permits."""
        async with self.data.open() as dispatcher:
            for consumer_id in (1, 2, 3):
                attach(dispatcher, consumer_id, permits=2)
            assert assigned(dispatcher, offered(0, 1, 2)) == [(1, 0), (1, 1)]
            assert assigned(dispatcher, offered(2)) == []
            dispatcher.released(released(0, 1))
            assert assigned(dispatcher, offered(2)) == []

    @requires(FAILOVER)
    async def test_who_follows(self) -> None:
        """When the active consumer detaches, the lowest priority number follows, then the earliest attachment."""
        async with self.data.open() as dispatcher:
            attach(dispatcher, 9, permits=9, priority=5)
            for consumer_id, priority in ((7, 1), (3, 0), (2, 0), (8, 1), (1, 2)):
                attach(dispatcher, consumer_id, permits=9, priority=priority)
            order = []
            for entry in range(6):
                ((active, _),) = assigned(dispatcher, offered(entry))
                order.append(active)
                dispatcher.released(dispatcher.detach(active))
            assert order == [9, 3, 2, 7, 8, 1]

    @requires(FAILOVER)
    async def test_the_active_one_is_not_interrupted(self) -> None:
        """
        Later attachments of any priority, and detachments of inactive consumers, do not change the active consumer.
        """
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=9, priority=5)
            attach(dispatcher, 2, permits=9, priority=0)
            assert assigned(dispatcher, offered(0)) == [(1, 0)]
            dispatcher.detach(2)
            attach(dispatcher, 3, permits=9, priority=0)
            assert assigned(dispatcher, offered(1)) == [(1, 1)]


class SharedRules(DispatcherRules):
    """Consumers get messages in turn."""

    @requires(SHARED)
    async def test_in_turn(self) -> None:
        """Each consumer with permits gets a message before any gets the next one, also across calls."""
        async with self.data.open() as dispatcher:
            for consumer_id in (1, 2, 3):
                attach(dispatcher, consumer_id, permits=4)
            found: list[int] = []
            for first in range(0, 12, 2):
                found += [consumer for consumer, _ in assigned(dispatcher, offered(first, first + 1))]
            for start in range(0, 12, 3):
                assert sorted(found[start : start + 3]) == [1, 2, 3]

    @requires(SHARED)
    async def test_without_permits_passed_over(self) -> None:
        """A consumer without permits delays no other: a call assigns as many messages as all consumers have permits."""
        async with self.data.open() as dispatcher:
            for consumer_id, permits in ((1, 1), (2, 0), (3, 3)):
                attach(dispatcher, consumer_id, permits=permits)
            found = assigned(dispatcher, offered(*range(9)))
            assert [entry for _, entry in found] == [0, 1, 2, 3]
            assert Counter(consumer for consumer, _ in found) == {1: 1, 3: 3}

    @requires(SHARED)
    async def test_priorities(self) -> None:
        """Consumers get messages only while all those with a lower priority number have no permits."""
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=5, priority=1)
            attach(dispatcher, 2, permits=2, priority=0)
            attach(dispatcher, 3, permits=1, priority=0)
            found = assigned(dispatcher, offered(*range(5)))
            assert sorted(consumer for consumer, _ in found[:3]) == [2, 2, 3]
            assert [consumer for consumer, _ in found[3:]] == [1, 1]
            dispatcher.permit(2, 1)
            assert assigned(dispatcher, offered(5)) == [(2, 5)]

    @requires(SHARED)
    async def test_what_was_left_holds_up_nobody(self) -> None:
        """The messages of a detached consumer do not delay later messages."""
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=1)
            assigned(dispatcher, offered(0))
            attach(dispatcher, 2, permits=5)
            dispatcher.detach(1)
            assert assigned(dispatcher, offered(1, 2)) == [(2, 1), (2, 2)]


class KeySharedRules(DispatcherRules):
    """Consumers share the keys."""

    @requires(KEY_SHARED)
    async def test_a_key_is_one_consumers(self) -> None:
        """While a message of a key is outstanding, the others of that key go to the same consumer or wait."""
        async with self.data.open() as dispatcher:
            for consumer_id in (1, 2, 3):
                attach(dispatcher, consumer_id, permits=1)
            ((holder, _),) = assigned(dispatcher, keyed(m0="a"))
            assert assigned(dispatcher, keyed(m1="a")) == []
            attach(dispatcher, 4, permits=9)
            assert assigned(dispatcher, keyed(m1="a")) == []
            dispatcher.permit(holder, 1)
            assert assigned(dispatcher, keyed(m1="a", m2="a")) == [(holder, 1)]

    @requires(KEY_SHARED)
    async def test_a_key_that_waits_holds_up_only_itself(self) -> None:
        """A message that waits delays the later messages of its key, and no others."""
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=1)
            assert assigned(dispatcher, keyed(m0="a")) == [(1, 0)]
            attach(dispatcher, 2, permits=9)
            waiting = (*keyed(m1="a", m2="b", m3="a", m4="b"), *offered(5))
            assert assigned(dispatcher, waiting) == [(2, 2), (2, 4), (2, 5)]

    @requires(KEY_SHARED)
    async def test_a_key_in_order(self) -> None:
        """A call assigns the first messages of a key to one consumer, even if others have permits for the rest."""
        async with self.data.open() as dispatcher:
            for consumer_id in (1, 2, 3):
                attach(dispatcher, consumer_id, permits=2)
            found = assigned(dispatcher, keyed(m0="a", m1="a", m2="a", m3="a"))
            assert [entry for _, entry in found] == [0, 1]
            assert len({consumer for consumer, _ in found}) == 1

    @requires(KEY_SHARED)
    async def test_free_again(self) -> None:
        """A key without outstanding messages may go to any consumer with permits."""
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=1)
            assigned(dispatcher, keyed(m0="a"))
            attach(dispatcher, 2, permits=1)
            assert assigned(dispatcher, keyed(m1="a")) == []
            dispatcher.released(released(0))
            assert assigned(dispatcher, keyed(m1="a")) == [(2, 1)]

    @requires(KEY_SHARED)
    async def test_a_key_that_was_left(self) -> None:
        """
        The outstanding messages of a detached consumer delay their keys until they are released, and no other key.
        """
        async with self.data.open() as dispatcher:
            attach(dispatcher, 1, permits=2)
            assigned(dispatcher, keyed(m0="a", m1="a"))
            attach(dispatcher, 2, permits=9)
            assert dispatcher.detach(1) == {at(0), at(1)}
            assert assigned(dispatcher, keyed(m2="a", m3="b")) == [(2, 3)]
            dispatcher.released(released(0))
            assert assigned(dispatcher, keyed(m2="a")) == []
            dispatcher.released(released(1))
            assert assigned(dispatcher, keyed(m0="a", m1="a", m2="a")) == [(2, 0), (2, 1), (2, 2)]

    @requires(KEY_SHARED)
    async def test_no_key_and_the_empty_key(self) -> None:
        """Messages without a key may go to any consumer; messages with the empty key are kept together."""
        async with self.data.open() as dispatcher:
            for consumer_id in (1, 2):
                attach(dispatcher, consumer_id, permits=1)
            assert {consumer for consumer, _ in assigned(dispatcher, offered(0, 1))} == {1, 2}
            for consumer_id in (1, 2):
                dispatcher.permit(consumer_id, 1)
            found = assigned(dispatcher, offered(2, 3, key=b""))
            assert [entry for _, entry in found] == [2]

    @requires(KEY_SHARED)
    async def test_as_a_rule_the_same_one(self) -> None:
        """Most keys go to the same consumer again, also after another consumer has attached."""
        async with self.data.open() as dispatcher:
            for consumer_id in (1, 2, 3):
                attach(dispatcher, consumer_id, permits=1_000)
            keys = [f"key-{number}".encode() for number in range(60)]
            homes: list[dict[bytes, int]] = []
            for round_number in range(3):
                if round_number == 2:
                    attach(dispatcher, 4, permits=1_000)
                waiting = tuple(Candidate(at(100 * round_number + n), key, 0) for n, key in enumerate(keys))
                found = dispatcher.assign(waiting)
                homes.append(dict(zip(keys, (one.consumer_id for one in found), strict=True)))
                dispatcher.released(frozenset(one.position for one in found))
            assert set(homes[0].values()) == {1, 2, 3}
            for later in homes[1:]:
                assert sum(homes[0][key] == later[key] for key in keys) > len(keys) // 2
