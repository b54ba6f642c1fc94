from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from txnframework.errors import ConsumerBusy
from txnframework.interfaces import IDispatcher
from txnframework.model import Candidate, ConsumerInfo, Position
from txnframework.plugin import load_plugins, verify_provider
from txnframework_dispatchers import ExclusiveDispatcher, SharedDispatcher
from txnframework_dispatchers import plugin as hooks


def _waiting(*entries: int) -> tuple[Candidate, ...]:
    return tuple(Candidate(Position(1, entry, 0), None, 0) for entry in entries)


async def _assigned(dispatcher: IDispatcher, waiting: tuple[Candidate, ...]) -> Sequence[tuple[int, int]]:
    return [(one.consumer_id, one.position.entry_id) for one in await dispatcher.assign(waiting)]


def test_both_are_found_and_keep_the_contract() -> None:
    """What the entry point names can be opened under its subscription type."""
    registry = load_plugins([hooks])
    for name in ("exclusive", "shared"):
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
