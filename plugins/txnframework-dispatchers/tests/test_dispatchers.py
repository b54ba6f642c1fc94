from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from txnframework.errors import ConsumerBusy
from txnframework.interfaces import IDispatcher
from txnframework.model import Candidate, ConsumerInfo, Position
from txnframework.plugin import load_plugins, verify_provider
from txnframework_dispatchers import ExclusiveDispatcher, FailoverDispatcher, KeySharedDispatcher, SharedDispatcher
from txnframework_dispatchers import plugin as hooks


def _waiting(*entries: int) -> tuple[Candidate, ...]:
    return tuple(Candidate(Position(1, entry, 0), None, 0) for entry in entries)


def _keyed(*keys: bytes | None, first: int = 0) -> tuple[Candidate, ...]:
    return tuple(Candidate(Position(1, first + number, 0), key, 0) for number, key in enumerate(keys))


def _at(*entries: int) -> frozenset[Position]:
    return frozenset(Position(1, entry, 0) for entry in entries)


async def _assigned(dispatcher: IDispatcher, waiting: tuple[Candidate, ...]) -> Sequence[tuple[int, int]]:
    return [(one.consumer_id, one.position.entry_id) for one in await dispatcher.assign(waiting)]


def test_all_are_found_and_keep_the_contract() -> None:
    """What the entry point names can be opened under its subscription type."""
    registry = load_plugins([hooks])
    for name in ("exclusive", "failover", "shared", "key_shared"):
        verify_provider(IDispatcher, registry.dispatcher(name))


def test_exclusive_takes_one_consumer() -> None:
    """A second consumer is told who is there; when that one has left, it may come."""

    async def run() -> None:
        dispatcher = ExclusiveDispatcher("billing")
        await dispatcher.attach(ConsumerInfo(1, "first", permits=1))
        with pytest.raises(ConsumerBusy) as busy:
            await dispatcher.attach(ConsumerInfo(2, "second"))
        assert (busy.value.subscription, busy.value.consumer) == ("billing", "first")
        assert await _assigned(dispatcher, _waiting(0)) == [(1, 0)]
        assert await dispatcher.detach(1) == {Position(1, 0, 0)}
        await dispatcher.attach(ConsumerInfo(2, "second"))

    asyncio.run(run())


def test_exclusive_assigns_in_order_as_far_as_permits_go() -> None:
    """No permit, no message; what is not assigned is offered again."""

    async def run() -> None:
        dispatcher = ExclusiveDispatcher("billing")
        assert await _assigned(dispatcher, _waiting(0)) == []
        await dispatcher.attach(ConsumerInfo(1, "one"))
        assert await _assigned(dispatcher, _waiting(0, 1, 2)) == []
        await dispatcher.permit(1, 2)
        assert await _assigned(dispatcher, _waiting(0, 1, 2)) == [(1, 0), (1, 1)]
        assert await _assigned(dispatcher, _waiting(2)) == []
        await dispatcher.permit(9, 5)

    asyncio.run(run())


def test_shared_deals_in_turn() -> None:
    """Each consumer in turn, also across calls; one without permits is passed over."""

    async def run() -> None:
        dispatcher = SharedDispatcher()
        for number in (1, 2, 3):
            await dispatcher.attach(ConsumerInfo(number, str(number), permits=2 if number < 3 else 0))
        assert await _assigned(dispatcher, _waiting(0)) == [(1, 0)]
        assert await _assigned(dispatcher, _waiting(1, 2, 3, 4)) == [(2, 1), (1, 2), (2, 3)]

    asyncio.run(run())


def test_shared_prefers_the_lowest_priority_number() -> None:
    """Others get something only when those before them can take no more."""

    async def run() -> None:
        dispatcher = SharedDispatcher()
        await dispatcher.attach(ConsumerInfo(1, "later", priority=1, permits=5))
        await dispatcher.attach(ConsumerInfo(2, "first", priority=0, permits=2))
        assert await _assigned(dispatcher, _waiting(0, 1, 2)) == [(2, 0), (2, 1), (1, 2)]

    asyncio.run(run())


def test_detaching_returns_what_was_not_released() -> None:
    """A consumer that leaves gives back what it had, without what was acknowledged meanwhile."""

    async def run() -> None:
        dispatcher = SharedDispatcher()
        await dispatcher.attach(ConsumerInfo(1, "one", permits=3))
        await dispatcher.assign(_waiting(0, 1, 2))
        await dispatcher.released(frozenset({Position(1, 1, 0)}))
        assert await dispatcher.detach(1) == {Position(1, 0, 0), Position(1, 2, 0)}
        assert await dispatcher.detach(1) == frozenset()

    asyncio.run(run())


@pytest.mark.parametrize("make", [lambda: ExclusiveDispatcher("billing"), FailoverDispatcher])
def test_what_a_consumer_left_behind_is_not_overtaken(make: Callable[[], IDispatcher]) -> None:
    """Until it was released nothing behind it is assigned; then the next consumer gets it first."""

    async def run() -> None:
        dispatcher = make()
        await dispatcher.attach(ConsumerInfo(1, "first", permits=2))
        await dispatcher.assign(_waiting(0, 1))
        await dispatcher.released(_at(0))
        assert await dispatcher.detach(1) == _at(1)
        await dispatcher.attach(ConsumerInfo(2, "second", permits=2))
        assert await _assigned(dispatcher, _waiting(2, 3)) == []
        await dispatcher.released(_at(1))
        assert await _assigned(dispatcher, _waiting(1, 2, 3)) == [(2, 1), (2, 2)]

    asyncio.run(run())


def test_failover_has_one_active_consumer() -> None:
    """The others get nothing, whatever their priority; when it leaves the lowest number follows, then the first."""

    async def run() -> None:
        dispatcher = FailoverDispatcher()
        for number, priority in ((1, 5), (2, 7), (3, 1), (4, 1)):
            await dispatcher.attach(ConsumerInfo(number, str(number), priority, permits=10))
        assert await _assigned(dispatcher, _waiting(0, 1)) == [(1, 0), (1, 1)]
        await dispatcher.detach(2)
        assert await _assigned(dispatcher, _waiting(2)) == [(1, 2)]
        await dispatcher.released(await dispatcher.detach(1))
        assert await _assigned(dispatcher, _waiting(0)) == [(3, 0)]
        await dispatcher.released(await dispatcher.detach(3))
        assert await _assigned(dispatcher, _waiting(0)) == [(4, 0)]
        await dispatcher.released(await dispatcher.detach(4))
        assert await _assigned(dispatcher, _waiting(0)) == []

    asyncio.run(run())


def test_failover_assigns_as_far_as_the_active_one_takes() -> None:
    """Permits of one that stands by count when it is active, and not before."""

    async def run() -> None:
        dispatcher = FailoverDispatcher()
        await dispatcher.attach(ConsumerInfo(1, "one", permits=1))
        await dispatcher.attach(ConsumerInfo(2, "two", permits=1))
        await dispatcher.permit(2, 1)
        assert await _assigned(dispatcher, _waiting(0, 1, 2)) == [(1, 0)]
        assert await _assigned(dispatcher, _waiting(1, 2)) == []
        await dispatcher.released(await dispatcher.detach(1))
        assert await _assigned(dispatcher, _waiting(0, 1, 2)) == [(2, 0), (2, 1)]

    asyncio.run(run())


async def _key_shared(*permits: int) -> KeySharedDispatcher:
    dispatcher = KeySharedDispatcher()
    for number, some in enumerate(permits, start=1):
        await dispatcher.attach(ConsumerInfo(number, f"consumer-{number}", permits=some))
    return dispatcher


KEYS = tuple(b"key %d" % number for number in range(40))


def test_a_key_has_one_consumer_at_a_time() -> None:
    """As long as something of it is outstanding, whoever comes; and all consumers have some of the keys."""

    async def run() -> None:
        dispatcher = await _key_shared(1000, 1000)
        owners = {entry: consumer for consumer, entry in await _assigned(dispatcher, _keyed(*KEYS))}
        assert set(owners.values()) == {1, 2}
        await dispatcher.attach(ConsumerInfo(3, "consumer-3", permits=1000))
        again = await _assigned(dispatcher, _keyed(*KEYS, first=100))
        assert {entry - 100: consumer for consumer, entry in again} == owners
        await dispatcher.released(_at(*range(40), *range(100, 140)))
        moved = {entry: consumer for consumer, entry in await _assigned(dispatcher, _keyed(*KEYS))}
        assert set(moved.values()) == {1, 2, 3}
        assert all(moved[entry] in (3, owner) for entry, owner in owners.items())  # the others keep their keys

    asyncio.run(run())


def test_a_key_whose_consumer_is_full_holds_up_itself_only() -> None:
    """Its messages wait, in order, for that consumer; other keys go on; a key that is free goes where there is room."""

    async def run() -> None:
        dispatcher = await _key_shared(1)
        assert await _assigned(dispatcher, _keyed(b"a")) == [(1, 0)]
        await dispatcher.attach(ConsumerInfo(2, "two", permits=5))
        waiting = _keyed(b"a", b"b", b"a", b"b", first=1)
        assert await _assigned(dispatcher, waiting) == [(2, 2), (2, 4)]
        await dispatcher.permit(1, 1)
        assert await _assigned(dispatcher, _keyed(b"a", None, b"a", first=1)) == [(1, 1), (2, 2)]
        await dispatcher.released(_at(0))
        assert await _assigned(dispatcher, _keyed(b"a", first=3)) == []  # one of two is outstanding still
        await dispatcher.released(_at(1))
        assert await _assigned(dispatcher, _keyed(b"a", first=3)) == [(2, 3)]

    asyncio.run(run())


def test_the_keys_of_a_consumer_that_left() -> None:
    """They wait until it is known what became of their messages; then they go on from the first one."""

    async def run() -> None:
        dispatcher = await _key_shared(2)
        await dispatcher.assign(_keyed(b"a", b"a"))
        await dispatcher.attach(ConsumerInfo(2, "two", permits=9))
        held = await dispatcher.detach(1)
        assert held == _at(0, 1)
        assert await _assigned(dispatcher, _keyed(b"a", b"b", first=2)) == [(2, 3)]
        await dispatcher.released(held)
        assert await _assigned(dispatcher, _keyed(b"a", b"a", b"a")) == [(2, 0), (2, 1), (2, 2)]

    asyncio.run(run())


def test_messages_without_a_key_go_round() -> None:
    """In turn, bound to nobody; an empty key is a key like others."""

    async def run() -> None:
        dispatcher = await _key_shared(9, 9)
        assert await _assigned(dispatcher, _keyed(None, None, None, None)) == [(1, 0), (2, 1), (1, 2), (2, 3)]
        (first,) = await _assigned(dispatcher, _keyed(b"", first=4))
        (second,) = await _assigned(dispatcher, _keyed(b"", first=5))
        assert first[0] == second[0]

    asyncio.run(run())


def test_consumers_of_one_name_share_the_keys() -> None:
    """A name that was given twice does not leave one of them without work."""

    async def run() -> None:
        dispatcher = KeySharedDispatcher()
        for number in (1, 2):
            await dispatcher.attach(ConsumerInfo(number, "same", permits=100))
        assert {consumer for consumer, _ in await _assigned(dispatcher, _keyed(*KEYS))} == {1, 2}

    asyncio.run(run())


def test_key_shared_remembers_outstanding_keys_only() -> None:
    """However many keys there were: what is done leaves nothing behind."""

    async def run() -> None:
        dispatcher = await _key_shared(1000)
        await dispatcher.assign(_keyed(*KEYS))
        await dispatcher.released(_at(*range(40)))
        assert not dispatcher._held
        assert not dispatcher._key_at

    asyncio.run(run())
