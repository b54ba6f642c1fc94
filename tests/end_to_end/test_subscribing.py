"""Subscriptions begin and end concurrently: a process that pauses or dies at any step does no damage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client
from txnframework.broker import StoredCursor, Topics
from txnframework.errors import OutcomeUnknown, SubscriptionNotFound, Unavailable
from txnframework.model import EARLIEST, Position, TopicName, paths, records
from txnframework.model.cursor import Cursor

if TYPE_CHECKING:
    from conftest import Stores

TOPIC = TopicName.parse("orders")
NAME = "billing"
STEPS_MAX = 60
STEPS_OF_ONE_SEGMENT = 16
Change = Callable[[Topics], Awaitable[object]]


@dataclass
class PausedStore:
    """A metadata store that holds up the step of this number until it may go on."""

    inner: Any
    step: int
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    steps: int = 0

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any) -> Any:
            if self.steps == self.step:
                self.reached.set()
                await self.go.wait()
            self.steps += 1
            return await getattr(self.inner, name)(*arguments)

        return call


async def subscribe_earliest(topics: Topics) -> None:
    await topics.subscribe(TOPIC, NAME, "earliest")


async def subscribe_latest(topics: Topics) -> None:
    await topics.subscribe(TOPIC, NAME, "latest")


async def unsubscribe(topics: Topics) -> None:
    await topics.unsubscribe(TOPIC, NAME)


async def split(topics: Topics) -> None:
    await topics.split(TOPIC, 0)


class Paused:
    """A change whose process is paused before one of its steps; ``at_all`` False: it was over before."""

    def __init__(self, client: Client, change: Change, step: int) -> None:
        store = PausedStore(client.host.metadata, step)
        migrations = client.topics.migrations
        topics = Topics(store, client.host.ledgers, client.host.segment, client.host.coordinator, print, migrations)  # type: ignore[arg-type]
        self._store = store
        self._task = asyncio.ensure_future(change(topics))
        self.at_all = False

    async def until_paused(self) -> None:
        reached = asyncio.ensure_future(self._store.reached.wait())
        await asyncio.wait({reached, self._task}, return_when=asyncio.FIRST_COMPLETED)
        self.at_all = reached.done()
        reached.cancel()

    async def go_on(self) -> None:
        self._store.go.set()
        await self._task

    async def die(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def publish(client: Client) -> None:
    producer = await client.producer("orders")
    await asyncio.gather(*(producer.send(b"x", key=b"key %d" % number) for number in range(16)))


async def recorded(client: Client) -> list[Cursor | None]:
    """Return every segment's cursor as it is, tombstones included."""
    layout = await client.topics.layout(TOPIC)
    names = [str(layout.name_of(segment_id)) for segment_id in layout.segments]
    return [await StoredCursor(client.host.metadata, str(TOPIC), name, NAME).read() for name in names]


async def cursors(client: Client) -> dict[int, tuple[int, Position]]:
    """Return incarnation and mark of every segment's cursor."""
    layout = await client.topics.layout(TOPIC)
    found = {}
    for segment_id in layout.segments:
        cursor = await StoredCursor(client.host.metadata, str(TOPIC), str(layout.name_of(segment_id)), NAME).load()
        found[segment_id] = cursor.incarnation, cursor.mark_delete
    return found


async def marks(client: Client) -> dict[int, Position]:
    return {segment_id: mark for segment_id, (_, mark) in (await cursors(client)).items()}


async def ends(client: Client) -> dict[int, Position]:
    layout = await client.topics.layout(TOPIC)
    names = {segment_id: str(layout.name_of(segment_id)) for segment_id in layout.segments}
    return {
        number: (await (await client.host.segment(name)).ledger.tail()).last_confirmed for number, name in names.items()
    }


async def listed(client: Client) -> bool:
    layout = await client.topics.layout(TOPIC)
    record = await client.host.metadata.get(paths.subscription_key(str(TOPIC), NAME))
    assert record is not None
    assert NAME not in layout.starting
    found = NAME in layout.subscriptions
    assert records.decode(records.SubscriptionRecord, record).deleted is not found
    return found


def at_every_step(
    memory: Stores, prepare: Change | None, change: Change, then: Callable[[Client, Paused], Any]
) -> None:
    """Pause ``change`` before each of its steps, in a topic of its own; ``then`` says what happens and what is true."""

    async def work() -> None:
        for step in range(STEPS_MAX):
            memory.url += "."
            async with memory.open() as client:
                await client.create_topic("orders", segments=2)
                await publish(client)
                if prepare is not None:
                    await prepare(client.topics)
                paused = Paused(client, change, step)
                await paused.until_paused()
                if not paused.at_all:
                    assert step > 2
                    return
                await then(client, paused)
        raise AssertionError("it never came to an end")

    memory.run(work())


def test_a_subscription_that_begins_while_it_is_given_up(memory: Stores) -> None:
    """The subscription is either live or deleted; remains of its earlier life do not break it."""

    async def then(client: Client, paused: Paused) -> None:
        await subscribe_latest(client.topics)
        await paused.go_on()
        if await listed(client):
            at_end = await ends(client)
            assert await marks(client) in (at_end, dict.fromkeys(at_end, EARLIEST))
        await subscribe_latest(client.topics)
        assert await listed(client)
        before = await cursors(client)
        await subscribe_earliest(client.topics)
        assert await cursors(client) == before

    at_every_step(memory, subscribe_earliest, unsubscribe, then)


def test_one_life_ends_when_a_subscription_is_given_up(memory: Stores) -> None:
    """After the name is removed, a new subscription is independent, however late the rest of the removal is done."""
    seen: set[bool] = set()

    async def then(client: Client, paused: Paused) -> None:
        struck = NAME not in (await client.topics.layout(TOPIC)).subscriptions
        seen.add(struck)
        if struck:
            await subscribe_earliest(client.topics)
            before = await cursors(client)
            await paused.go_on()
            assert await cursors(client) == before
            assert await listed(client)

    at_every_step(memory, subscribe_earliest, unsubscribe, then)
    assert seen == {False, True}


@pytest.mark.parametrize(
    ("failure", "lives"),
    [(None, True), (Unavailable("away"), True), (OutcomeUnknown("lost"), False)],
)
async def test_giving_up_is_tried_again_only_where_it_ends_one_life(
    memory: Stores, failure: Exception | None, lives: bool
) -> None:
    """If another life may have begun after the first try, it is not ended, and the outcome is reported as unknown."""
    async with memory.open() as client:
        await client.create_topic("orders")
        await client.subscribe("orders", NAME, start="earliest")
        subscribing: Any = client.host.topics._subscriptions
        name = "tombstone" if lives else "unlist"
        step, failed = getattr(subscribing, name), False

        async def fails_once(*arguments: Any) -> None:
            nonlocal failed
            if not lives:
                await step(*arguments)
            if failure is not None and not failed:
                failed = True
                setattr(subscribing, name, step)
                await client.subscribe("orders", NAME, start="earliest")
                raise failure
            if lives:
                await step(*arguments)

        setattr(subscribing, name, fails_once)
        if lives:
            await client.unsubscribe("orders", NAME)
        else:
            with pytest.raises(OutcomeUnknown):
                await client.unsubscribe("orders", NAME)
        assert (NAME in (await client.topics.layout(TOPIC)).subscriptions) is (failure is not None)


def test_a_split_that_outlives_a_subscription(memory: Stores) -> None:
    """Finishing a split creates no cursor of a deleted subscription, whatever the process saw before."""

    async def then(client: Client, paused: Paused) -> None:
        await client.topics.finish_changes(TOPIC)
        await publish(client)
        await unsubscribe(client.topics)
        await paused.go_on()
        assert not await listed(client)
        with pytest.raises(SubscriptionNotFound):
            await cursors(client)
        assert all(cursor is None or cursor.tombstone for cursor in await recorded(client))
        await subscribe_latest(client.topics)
        assert await marks(client) == await ends(client)

    at_every_step(memory, subscribe_earliest, split, then)


def test_a_subscription_whose_maker_died(memory: Stores) -> None:
    """Until the name is listed, the subscription does not exist.

    Then it begins at its stored position on every segment.
    """
    seen: set[str] = set()

    async def then(client: Client, paused: Paused) -> None:
        await paused.die()
        was_listed = NAME in (await client.topics.layout(TOPIC)).subscriptions
        at_end = await ends(client)
        await publish(client)
        await subscribe_earliest(client.topics)
        assert await listed(client)
        assert await marks(client) == (at_end if was_listed else dict.fromkeys(at_end, EARLIEST))
        seen.add("latest" if was_listed else "earliest")

    at_every_step(memory, None, subscribe_latest, then)
    assert seen == {"earliest", "latest"}


@pytest.mark.parametrize("again", [False, True])
def test_two_who_subscribe_at_once(memory: Stores, again: bool) -> None:
    """One of the two calls sets the start position; the other one, however late, moves nothing."""

    async def prepare(topics: Topics) -> None:
        if again:
            await subscribe_latest(topics)
            await unsubscribe(topics)

    async def then(client: Client, paused: Paused) -> None:
        at_end = await ends(client)
        await subscribe_earliest(client.topics)
        before = await cursors(client)
        assert {number: mark for number, (_, mark) in before.items()} in (at_end, dict.fromkeys(at_end, EARLIEST))
        await paused.go_on()
        assert await cursors(client) == before
        assert await listed(client)

    at_every_step(memory, prepare, subscribe_latest, then)


def test_a_subscription_that_is_given_up_while_it_begins(memory: Stores) -> None:
    """The later of the two calls wins, and the next life begins at its given position."""

    async def then(client: Client, paused: Paused) -> None:
        if NAME in (await client.topics.layout(TOPIC)).subscriptions:
            await unsubscribe(client.topics)
        await paused.go_on()
        if await listed(client):
            await unsubscribe(client.topics)
        await publish(client)
        await subscribe_latest(client.topics)
        assert await listed(client)
        assert await marks(client) == await ends(client)

    at_every_step(memory, None, subscribe_earliest, then)


async def test_three_lives_at_once(memory: Stores) -> None:
    """A process with an outdated life creates no cursor of the next life, even while that life's own is created."""
    for step in range(STEPS_OF_ONE_SEGMENT**2):
        memory.url += "."
        async with memory.open() as client:
            await client.create_topic("orders")
            await publish(client)
            late = Paused(client, subscribe_earliest, step // STEPS_OF_ONE_SEGMENT)
            await late.until_paused()
            if not late.at_all:
                return
            if NAME in (await client.topics.layout(TOPIC)).subscriptions:
                await unsubscribe(client.topics)
            next_one = Paused(client, subscribe_latest, step % STEPS_OF_ONE_SEGMENT)
            await next_one.until_paused()
            was_listed = NAME in (await client.topics.layout(TOPIC)).subscriptions
            await late.go_on()
            await next_one.go_on()
            assert await listed(client)
            if was_listed:
                assert await marks(client) == await ends(client)


async def test_acknowledging_for_a_subscription_that_was_given_up(memory: Stores) -> None:
    """Nothing is recorded then, so nothing is confirmed, in a transaction or outside."""
    async with memory.open() as client:
        await client.create_topic("orders")
        await publish(client)
        consumer = await client.consumer("orders", NAME, start="earliest")
        received = await consumer.receive(timeout_ms=60_000)
        await client.unsubscribe("orders", NAME)
        with pytest.raises(SubscriptionNotFound):
            await consumer.ack(received)
        await consumer.close()
