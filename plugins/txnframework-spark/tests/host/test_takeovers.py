"""Taking a subscription over from others than an earlier run, and failing to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from txnframework.broker import dispatching_lease
from txnframework.errors import SubscriptionOwnedElsewhere, Unavailable
from txnframework.model.acks import Ack, AckRequest
from txnframework.model.ids import Branch
from txnframework.model.names import TopicName
from txnframework.model.transactions import Begin, State
from txnframework_spark.source import subscriptions

Play = Callable[..., None]

TOPIC = TopicName.parse("in")


def test_a_consumers_open_transaction_is_aborted_whomever_it_belongs_to(play: Play) -> None:
    """Its acknowledgments are in the way; a take-over ends it as an operator would."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        await world.host.topics.subscribe(TOPIC, "g", "earliest")
        coordinator = await world.host.coordinator()
        opened = await coordinator.begin(Begin(60_000, "alice"))
        name = str((await world.host.topics.layout(TOPIC)).name_of(0))
        end = await (await world.host.segment(name)).buffer.max_read_position()
        pending_acks = (await world.host.subscription(str(TOPIC), "g", name)).pending_acks
        await pending_acks.add(AckRequest(Branch(opened.txn_id), (Ack(end),), 1, principal="alice"))
        await (await world.run()).batch(0, None)
        assert (await coordinator.describe(opened.txn_id)).state is State.ABORTED
        assert await world.read() == ["a!"]

    play(scenario)


def test_a_take_over_that_fails_gives_its_leases_back(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, its leases would block ordinary consumers while the process lives, and could not be released."""

    async def refuse(*_: object) -> None:
        raise Unavailable("the store is away")

    async def scenario(world: Any) -> None:
        monkeypatch.setattr(subscriptions, "_end_open_transactions", refuse)
        with pytest.raises(Unavailable, match="away"):
            await world.run()
        await require_free(world, TOPIC)

    play(scenario, 2)


def test_a_take_over_of_two_topics_that_fails_at_the_second_gives_the_first_back(play: Play) -> None:
    async def scenario(world: Any) -> None:
        more = TopicName.parse("more")
        await world.host.topics.create(more, 1)
        await world.host.topics.subscribe(more, "g", "earliest")
        name = str((await world.host.topics.layout(more)).name_of(0))
        await world.host.metadata.acquire_lease(dispatching_lease(name, "g"), "a consumer")
        with pytest.raises(SubscriptionOwnedElsewhere, match="a consumer"):
            await world.run(source={"subscribe": "in,more", "groupId": "g", "takeOverTimeoutMs": "1"})
        await require_free(world, TOPIC)

    play(scenario, 2)


async def require_free(world: Any, topic: TopicName) -> None:
    layout = await world.host.topics.layout(topic)
    for segment in layout.in_order():
        lease = dispatching_lease(str(layout.name_of(segment.id)), "g")
        await (await world.host.metadata.acquire_lease(lease, "a consumer")).release()
