"""Several processes with consumers of one subscription: how they divide the segments, and what a handover keeps."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, Consumer, Message
from txnframework.broker.lease_names import member_lease
from txnframework.errors import Conflict, ReceiveTimeout, TransactionConflict
from txnframework.model import paths
from txnframework.testing.clock import VirtualEnvironment, run_ready

if TYPE_CHECKING:
    from conftest import Stores

HANDOVER_MS = 10_000
KEYS = tuple(b"key %d" % number for number in range(64))
SHARING = ["shared", "key_shared", "failover"]


@pytest.fixture
def clock(memory: Stores) -> VirtualEnvironment:
    """The time of every process of the test."""
    memory.environment = VirtualEnvironment()
    return memory.environment


def dispatched(client: Client) -> frozenset[str]:
    """Return the segments that a process dispatches."""
    return client.host.dispatches.segments_of("billing")


async def counts(clock: VirtualEnvironment, *clients: Client) -> list[int]:
    """Return how many segments each process dispatches when nothing happens any more; each segment has one."""
    for _ in range(20):
        await run_ready()
    await clock.advance(10)
    held = [dispatched(client) for client in clients]
    assert len(frozenset().union(*held)) == sum(map(len, held))
    return [len(one) for one in held]


async def join(client: Client, kind: str = "shared", **more: Any) -> Consumer:
    return await client.consumer("orders", "billing", type=kind, start="earliest", **more)


async def some_of(clock: VirtualEnvironment, consumer: Consumer, messages_max: int) -> tuple[Message, ...]:
    """Receive what comes at once; nothing is acknowledged."""
    receiving = asyncio.ensure_future(consumer.receive_many(messages_max=messages_max, timeout_ms=10))
    await run_ready()
    await clock.advance(10)
    try:
        return await receiving
    except ReceiveTimeout:
        return ()


async def all_of(clock: VirtualEnvironment, consumer: Consumer) -> list[Message]:
    """Receive and acknowledge what there is."""
    received: list[Message] = []
    while some := await some_of(clock, consumer, 100):
        await consumer.ack(*some)
        received += some
    return received


async def take(clock: VirtualEnvironment, consumer: Consumer, messages: int) -> list[Message]:
    """Receive so many messages, and acknowledge none."""
    received: list[Message] = []
    while len(received) < messages:
        some = await some_of(clock, consumer, messages - len(received))
        assert some, f"only {len(received)} messages came"
        received += some
    return received


async def send(client: Client, *numbers: int) -> None:
    producer = await client.producer("orders")
    for number in numbers:
        await producer.send(b"%d" % number, key=KEYS[number % len(KEYS)])


def kill(client: Client) -> None:
    """Stop a process: its session ends, and it writes nothing any more."""
    store: Any = client.host.metadata
    ledgers: Any = client.host.ledgers
    store.crash()
    ledgers.crash()


async def end_session_of(client: Client) -> None:
    """Let a client's leases end while it goes on, as a long pause of its process does; it is cut off meanwhile."""
    store: Any = client.host.metadata
    store.cut()
    store._server.end_session(store.session)
    await run_ready()


@pytest.mark.parametrize("kind", SHARING)
async def test_processes_come_and_go(memory: Stores, clock: VirtualEnvironment, kind: str) -> None:
    """The shares are even after each join, close and death, and every message is received once."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(memory.open()) for _ in range(4)]
        await clients[0].create_topic("orders", segments=8)
        consumers, received = [], []
        for number, client in enumerate(clients):
            consumers.append(await join(client, kind))
            shares = await counts(clock, *clients[: number + 1])
            assert sum(shares) == 8
            assert max(shares) - min(shares) <= 1
        await send(clients[0], *range(200))
        got = [await all_of(clock, consumer) for consumer in consumers]
        assert min(map(len, got)) > 20
        received += [message.value for some in got for message in some]
        await consumers[3].close()
        assert sorted(await counts(clock, *clients)) == [0, 2, 3, 3]
        kill(clients[2])
        assert await counts(clock, *clients[:2]) == [4, 4]
        await send(clients[0], *range(200, 300))
        for consumer in consumers[:2]:
            received += [message.value for message in await all_of(clock, consumer)]
        assert Counter(received) == Counter(b"%d" % number for number in range(300))
        for consumer in consumers[:2]:
            await consumer.close()


async def test_few_segments_move(memory: Stores, clock: VirtualEnvironment) -> None:
    """Who joins gets its share, and what the others keep stays where it was."""
    async with memory.open() as one, memory.open() as two, memory.open() as three:
        await one.create_topic("orders", segments=8)
        for client in (one, two):
            await join(client)
            await counts(clock, one, two)
        before = dispatched(one), dispatched(two)
        await join(three)
        assert sorted(await counts(clock, one, two, three)) == [2, 3, 3]
        assert dispatched(one) <= before[0]
        assert dispatched(two) <= before[1]


async def test_who_joins_stops_nobody(memory: Stores, clock: VirtualEnvironment) -> None:
    """While a consumer still has messages of a segment that it gives up, its other segments go on."""
    async with memory.open() as one, memory.open() as two:
        await one.create_topic("orders", segments=2)
        first = await join(one)
        await send(one, *range(64))
        received = await take(clock, first, 64)
        assert len({message.id.segment for message in received}) == 2
        second = await join(two)
        assert await counts(clock, one, two) == [2, 0]
        await send(one, *range(64, 128))
        going_on = await all_of(clock, first)
        assert len({message.id.segment for message in going_on}) == 1
        # It is given up as soon as all its messages are acknowledged.
        await first.ack(*received)
        assert await counts(clock, one, two) == [1, 1]
        rest = await all_of(clock, second)
        assert len(going_on) + len(rest) == 64
        assert {message.redelivery_count for message in rest} == {0}


async def test_a_handover_takes_a_bounded_time(memory: Stores, clock: VirtualEnvironment) -> None:
    """Messages that are not acknowledged in time go to the next process, and take effect in one of the two only."""
    async with memory.open() as one, memory.open() as two:
        await one.create_topic("orders", segments=2)
        first = await join(one)
        await send(one, *range(64))
        received = await take(clock, first, 64)
        second = await join(two)
        await clock.advance(HANDOVER_MS - 100)
        assert await counts(clock, one, two) == [2, 0]
        await clock.advance(200)
        assert await counts(clock, one, two) == [1, 1]
        moved = await take(clock, second, 1)
        late = [message for message in received if message.id == moved[0].id]
        await second.ack(*moved)
        async with one.transaction() as txn:
            with pytest.raises(TransactionConflict):
                await first.ack(*late, txn=txn)
            await txn.abort()
        # Anybody may acknowledge: it is not delivered again.
        (again,) = await take(clock, second, 1)
        await first.ack(*(message for message in received if message.id != again.id))
        await second.redeliver_unacknowledged()
        assert [message.id for message in await all_of(clock, second)] == [again.id]


async def test_an_open_transaction_is_not_waited_for(memory: Stores, clock: VirtualEnvironment) -> None:
    """Acks of an open transaction are stored, so the next process delivers none of these messages unless it is
    aborted.
    """
    async with memory.open() as one, memory.open() as two:
        await one.create_topic("orders", segments=2)
        first = await join(one)
        await send(one, *range(64))
        received = await take(clock, first, 64)
        committed, aborted = one.transaction(), one.transaction()
        await committed.begin()
        await aborted.begin()
        await first.ack(*received[:32], txn=committed)
        await first.ack(*received[32:], txn=aborted)
        second = await join(two)
        assert await counts(clock, one, two) == [1, 1]
        assert await all_of(clock, second) == []
        await committed.commit()
        await aborted.abort()
        again = await all_of(clock, first) + await all_of(clock, second)
        assert Counter(message.id for message in again) == Counter(message.id for message in received[32:])


@pytest.mark.parametrize("kind", SHARING)
async def test_a_split_and_a_merge(memory: Stores, clock: VirtualEnvironment, kind: str) -> None:
    """The children are divided anew; an ordered type delivers no child before its parents are finished."""
    async with memory.open() as one, memory.open() as two:
        await one.create_topic("orders", segments=2)
        consumers = [await join(one, kind), await join(two, kind)]
        assert await counts(clock, one, two) == [1, 1]
        order: dict[bytes, list[int]] = {key: [] for key in KEYS}
        await send(one, *range(128))
        for segment in (0, 1):
            await one.split("orders", segment)
        await send(one, *range(128, 256))
        for _ in range(4):
            for consumer in consumers:
                for message in await all_of(clock, consumer):
                    assert message.key is not None
                    order[message.key].append(int(message.value))
            await counts(clock, one, two)
        assert await counts(clock, one, two) == [2, 2]
        layout = await one.layout("orders")
        children = [segment.id for segment in layout.active()]
        await one.merge("orders", *children[:2])
        await send(one, *range(256, 320))
        for _ in range(4):
            for consumer in consumers:
                for message in await all_of(clock, consumer):
                    assert message.key is not None
                    order[message.key].append(int(message.value))
            await counts(clock, one, two)
        assert sorted(await counts(clock, one, two)) == [1, 2]
        assert sorted(number for numbers in order.values() for number in numbers) == list(range(320))
        if kind != "shared":
            assert all(numbers == sorted(numbers) for numbers in order.values())


async def test_a_paused_process_takes_part_again(memory: Stores, clock: VirtualEnvironment) -> None:
    """Its session ended, and the other one took all; afterwards they divide again."""
    async with memory.open() as one, memory.open() as two:
        await one.create_topic("orders", segments=4)
        first, second = await join(one), await join(two)
        assert await counts(clock, one, two) == [2, 2]
        await end_session_of(one)
        store: Any = one.host.metadata
        assert (await counts(clock, one, two))[1] == 4
        store.restore()
        await clock.advance(5_000)
        assert await counts(clock, one, two) == [2, 2]
        await send(one, *range(64))
        assert len(await all_of(clock, first)) + len(await all_of(clock, second)) == 64


async def test_a_restart_under_the_same_name_has_the_same_segments(memory: Stores, clock: VirtualEnvironment) -> None:
    """A restarted process gets its segments at once, before its former session ends.

    The other process is unaffected.
    """
    async with memory.open() as dead, memory.open() as other:
        await dead.create_topic("orders", segments=4)
        await join(dead, name="worker-1")
        await join(other, name="worker-2")
        assert await counts(clock, dead, other) == [2, 2]
        had, kept = dispatched(dead), dispatched(other)
        store: Any = dead.host.metadata
        store.cut()
        async with memory.open() as again, await join(again, name="worker-1"):
            await counts(clock, again, other)
            assert (dispatched(again), dispatched(other)) == (had, kept)
        store.restore()


async def test_two_that_live_under_one_name(memory: Stores, clock: VirtualEnvironment) -> None:
    """The later one takes part, and the earlier one waits for its turn."""
    async with memory.open() as one, memory.open() as two:
        await one.create_topic("orders", segments=4)
        await join(one, name="worker")
        second = await join(two, name="worker")
        await clock.advance(30_000)
        assert await counts(clock, one, two) == [0, 4]
        await second.close()
        await clock.advance(5_000)
        assert await counts(clock, one, two) == [4, 0]


@pytest.mark.parametrize("kind", SHARING)
@pytest.mark.parametrize("segments", [1, 4])
async def test_several_that_live_under_one_name(
    memory: Stores, clock: VirtualEnvironment, segments: int, kind: str
) -> None:
    """The latest one takes part alone: while it replaces the one before it, no earlier one takes part again."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(memory.open()) for _ in range(4)]
        await clients[0].create_topic("orders", segments=segments)
        for latest, client in enumerate(clients):
            await join(client, kind, name="worker")
            for _ in range(2):
                assert await counts(clock, *clients) == [segments * (one == latest) for one in range(4)]
                held = [one.name for one in await client.leases() if "/member " in one.name]
                assert [name.endswith(client.host.metadata.session) for name in held] == [True]
                await clock.advance(5_000)


@pytest.mark.parametrize("how", [{"balance": False, "stand_by": True}, {"stand_by": False}])
async def test_who_does_not_share_keeps_what_it_has(
    memory: Stores, clock: VirtualEnvironment, how: dict[str, Any]
) -> None:
    """A new process waits for a consumer that does not balance, and the remaining segments are shared."""
    async with memory.open() as one, memory.open() as two:
        await one.create_topic("orders", segments=4)
        alone = await join(one, **how)
        await join(two)
        assert await counts(clock, one, two) == [4, 0]
        await alone.close()
        assert await counts(clock, one, two) == [0, 4]


async def test_balancing_is_a_setting(memory: Stores, clock: VirtualEnvironment) -> None:
    """With ``subscriptions.balance`` off, the first process keeps all segments; a consumer may decide otherwise."""
    off = {"balance": False}
    async with memory.open(subscriptions=off) as one, memory.open(subscriptions=off) as two:
        await one.create_topic("orders", segments=4)
        first = await join(one)
        second = await join(two, stand_by=True)
        assert await counts(clock, one, two) == [4, 0]
        await first.close()
        await second.close()
        for client in (one, two):
            await join(client, balance=True)
        assert await counts(clock, one, two) == [2, 2]


async def test_several_consumers_of_one_process(memory: Stores, clock: VirtualEnvironment) -> None:
    """They are one member: both give up what the process gives up, and both get the messages of what it keeps."""
    async with memory.open() as one, memory.open() as two:
        await one.create_topic("orders", segments=4)
        here = [await join(one), await join(one)]
        elsewhere = await join(two)
        assert await counts(clock, one, two) == [2, 2]
        await send(one, *range(64))
        got = [await all_of(clock, consumer) for consumer in (*here, elsewhere)]
        assert sum(map(len, got)) == 64
        await here[0].close()
        assert await counts(clock, one, two) == [2, 2]
        await here[1].close()
        assert await counts(clock, one, two) == [0, 4]


async def test_who_dispatches_what(memory: Stores, clock: VirtualEnvironment) -> None:
    """Each segment's process is named, with the name of its consumer; without consumers there is none."""
    async with memory.open() as one, memory.open() as two:
        await one.create_topic("orders", segments=2)
        await one.subscribe("orders", "billing")
        assert await one.dispatchers("orders", "billing") == {}
        await join(one, name="worker-1")
        await join(two)
        await counts(clock, one, two)
        (first,), (second,) = dispatched(one), dispatched(two)
        process = one.host.environment.process_name()
        assert await two.dispatchers("orders", "billing") == {
            first: f"worker-1 on {process} in {one.host.metadata.session} as shared",
            second: f"on {process} in {two.host.metadata.session} as shared",
        }


ONE_TYPE = "uses subscription billing as {}; open the consumer with type='{}', or after all others have left"


@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize(
    ("used", "other"),
    [("key_shared", "shared"), ("shared", "key_shared"), ("failover", "shared"), ("shared", "exclusive")],
)
async def test_another_type_is_refused(memory: Stores, used: str, other: str, balance: bool) -> None:
    """In this process and in another one, while there are consumers. After these have left, the type may change."""
    async with memory.open() as one, memory.open() as two, memory.open() as three:
        await one.create_topic("orders", segments=4)
        first = await join(one, used, balance=balance)
        for client in (one, two):
            with pytest.raises(Conflict, match=ONE_TYPE.format(used, used)):
                await join(client, other, balance=balance, stand_by=True)
        second = await join(three, used, balance=balance, stand_by=True)
        await first.close()
        with pytest.raises(Conflict, match=ONE_TYPE.format(used, used)):
            await join(two, other, balance=balance, stand_by=True)
        await second.close()
        await (await join(two, other, balance=balance)).close()


async def test_of_two_types_at_the_same_time_one_is_refused(memory: Stores) -> None:
    """At most one of two processes that open a consumer at the same time is accepted."""
    async with memory.open() as one, memory.open() as two:
        await one.create_topic("orders", segments=4)
        await one.subscribe("orders", "billing")
        opened = await asyncio.gather(join(one, "shared"), join(two, "key_shared"), return_exceptions=True)
        refused = [found for found in opened if isinstance(found, Conflict)]
        assert len(refused) >= 1
        for found in opened:
            if isinstance(found, Consumer):
                await found.close()
        for client, kind in ((one, "shared"), (two, "key_shared")):
            await (await join(client, kind)).close()


async def test_a_namesake_of_another_type_is_replaced(memory: Stores) -> None:
    """A process that was restarted under its consumer's name, with another type, need not wait for the earlier one."""
    async with memory.open() as one, memory.open() as two:
        await one.create_topic("orders", segments=2)
        await join(one, "shared", name="worker")
        later = await join(two, "key_shared", name="worker")
        producer = await one.producer("orders")
        await producer.send(b"order", key=b"key")
        assert (await later.receive(timeout_ms=60_000)).value == b"order"


async def test_a_refused_namesake_replaces_nobody(memory: Stores) -> None:
    """While others use the subscription with another type, a namesake of one of them is refused, and that one stays."""
    async with memory.open() as one, memory.open() as two, memory.open() as three:
        await one.create_topic("orders", segments=2)
        await join(one, "shared", name="worker")
        await join(two, "shared")
        store = one.host.metadata
        member = paths.lease_key(member_lease((await one.layout("orders")).topic, "billing", store.session))
        before = await store.get(member)
        assert before is not None
        with pytest.raises(Conflict, match=ONE_TYPE.format("shared", "shared")):
            await join(three, "key_shared", name="worker")
        assert await store.get(member) == before
