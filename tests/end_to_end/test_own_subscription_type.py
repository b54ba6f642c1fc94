"""A subscription type of a third party: its consumers behave as the type declares."""

from __future__ import annotations

import runpy
from importlib.resources import files
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from txnframework.errors import InvalidInput, SubscriptionOwnedElsewhere, UnknownPlugin
from txnframework.model import Ordering, OtherType
from txnframework.plugin import PluginRegistry, Provider, hookimpl, load_plugins

if TYPE_CHECKING:
    from conftest import Stores

RELAY: Any = runpy.run_path(str(files("txnframework.cli") / "plugin_template" / "plugin.py"))["RelayDispatcher"]


def with_type(name: str, kind: Any) -> PluginRegistry:
    """Return the plugins that are installed and one that brings a subscription type."""

    async def opened(_: object) -> Any:
        return kind()

    @hookimpl
    def txnframework_dispatchers() -> list[Any]:
        return [Provider(name, opened, kind)]

    return load_plugins([SimpleNamespace(__name__="own", txnframework_dispatchers=txnframework_dispatchers)])


@pytest.fixture
def relayed(memory: Stores) -> Stores:
    memory.registry = with_type("relay", RELAY)
    return memory


async def values(consumer: Any, count: int) -> list[bytes]:
    """Receive so many messages; acknowledge each."""
    found = []
    for _ in range(count):
        message = await consumer.receive(timeout_ms=60_000)
        await consumer.ack(message)
        found.append(message.value)
    return found


async def test_its_consumers_stand_by(relayed: Stores) -> None:
    """A consumer in another process stands by automatically, and continues in order after the first one left."""
    async with relayed.open() as client, relayed.open() as elsewhere:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        first = await client.consumer("orders", "billing", type="relay", start="earliest")
        with pytest.raises(SubscriptionOwnedElsewhere):
            await elsewhere.consumer("orders", "billing", type="relay", stand_by=False)
        second = await elsewhere.consumer("orders", "billing", type="relay")
        for number in range(4):
            await producer.send(b"%d" % number)
        assert await values(first, 2) == [b"0", b"1"]
        await first.close()
        assert await values(second, 2) == [b"2", b"3"]
        await second.close()


async def test_a_misspelt_type(relayed: Stores) -> None:
    """The error names the type that was probably meant."""
    async with relayed.open() as client:
        await client.create_topic("orders")
        for asked, meant in (("keyshared", "key_shared"), ("rely", "relay")):
            with pytest.raises(UnknownPlugin, match=f"named '{asked}'.*; did you mean '{meant}'"):
                await client.consumer("orders", "billing", type=OtherType(asked))


async def test_one_process_relays_in_order(relayed: Stores) -> None:
    """Several consumers are accepted; each continues when the one before it is done, also with cumulative acks."""
    async with relayed.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        runners = [await client.consumer("orders", "billing", type="relay", start="earliest") for _ in range(2)]
        for leg in range(4):
            await producer.send_many([b"%d.%d" % (leg, number) for number in range(3)])
            runner = runners[leg % 2]
            received = [await runner.receive(timeout_ms=60_000) for _ in range(3)]
            assert [message.value for message in received] == [b"%d.%d" % (leg, number) for number in range(3)]
            await runner.ack_cumulative(received[-1])
        for runner in runners:
            await runner.close()


async def test_it_follows_a_split_in_order(relayed: Stores) -> None:
    """Children are delivered after their parent, because the type declares an order."""
    async with relayed.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        keys = [b"key %d" % number for number in range(6)]
        consumer = await client.consumer("orders", "billing", type="relay", start="earliest")
        for key in keys:
            await producer.send(b"before", key=key)
        await client.split("orders", 0)
        for key in keys:
            await producer.send(b"after", key=key)
        assert await values(consumer, 12) == [b"before"] * 6 + [b"after"] * 6
        await consumer.close()


@pytest.mark.parametrize("ordering", [Ordering.NONE, Ordering.KEY])
async def test_a_declared_order_bounds_what_can_be_acknowledged(memory: Stores, ordering: Ordering) -> None:
    """Without a total order, a cumulative ack covers only its own message, whatever the name of the type."""
    kind = type("Loose", (RELAY,), {"ordering": ordering, "subscription_type": "loose"})
    memory.registry = with_type("loose", kind)

    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        await producer.send(b"0")
        consumer = await client.consumer("orders", "billing", type="loose", start="earliest")
        with pytest.raises(InvalidInput, match="a loose subscription has no order of all its messages"):
            await consumer.ack_cumulative(await consumer.receive(timeout_ms=60_000))
        await consumer.close()
