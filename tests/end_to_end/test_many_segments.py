"""Consumers of topics with many segments: what they cost for each segment, and what they do with many at once."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client
from txnframework.broker import dispatching_lease
from txnframework.broker.topics import layouts
from txnframework.errors import SubscriptionOwnedElsewhere
from txnframework.interfaces import ILease
from txnframework.model.names import TopicName
from txnframework.model.paths import lease_key

if TYPE_CHECKING:
    from conftest import Stores

QUIET = {"sweep": False}
METHODS = ("get", "put", "delete", "apply", "scan", "scan_index", "watch", "acquire_lease")
MOST = 13
"""The calls of the metadata store for a segment that is opened and closed, when its cursor exists."""
MOST_AT_FIRST = 22
"""The same, when the subscription is new, so that the cursor is created."""


def counted(client: Client, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the number of calls of the metadata store, by method, from now on."""
    calls: Counter[str] = Counter()

    def counting(method: str) -> None:
        call = getattr(client.host.metadata, method)

        async def count(*arguments: Any) -> Any:
            calls[method] += 1
            return await call(*arguments)

        monkeypatch.setattr(client.host.metadata, method, count)

    for method in METHODS:
        counting(method)
    return calls


async def test_the_calls_for_a_segment(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Opening and closing a consumer calls the store equally often for each segment, however many there are.

    A topic's layout is decoded once while it is unchanged, and a new subscription changes it twice.
    """
    decoded: list[object] = []
    decode = layouts.from_record

    def noting(*arguments: Any) -> Any:
        decoded.append(arguments)
        return decode(*arguments)

    async def open_and_close(topic: str) -> Counter[str]:
        async with memory.open(transactions=QUIET) as client:
            calls = counted(client, monkeypatch)
            await (await client.consumer(topic, "billing", start="earliest")).close()
            return +calls

    monkeypatch.setattr(layouts, "from_record", noting)
    new, known = {}, {}
    async with memory.open(transactions=QUIET) as client:
        for segments in (4, 12, 28):
            await client.create_topic(f"of-{segments}", segments=segments)
            decoded.clear()
            new[segments] = await open_and_close(f"of-{segments}")
            known[segments] = await open_and_close(f"of-{segments}")
            assert len(decoded) <= 3
    for calls, most in ((new, MOST_AT_FIRST), (known, MOST)):
        added = {what: calls[12][what] - calls[4][what] for what in METHODS}
        assert {what: calls[28][what] - calls[12][what] for what in METHODS} == {
            what: 2 * number for what, number in added.items()
        }
        assert sum(added.values()) <= 8 * most


@contextmanager
def function_calls() -> Iterator[Counter[str]]:
    """Count the calls of Python functions within the block."""
    calls: Counter[str] = Counter()

    def count(_: object, event: str, __: object) -> None:
        calls[event] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("kind", ["exclusive", "shared", "key_shared"])
async def test_the_work_for_a_segment(memory: Stores, kind: str) -> None:
    """Opening and closing a consumer makes function calls in proportion to the segments, for each type."""
    made = {}
    async with memory.open(transactions=QUIET) as client:
        for segments in (10, 20, 40):
            topic = f"of-{segments}"
            await client.create_topic(topic, segments=segments)
            await (await client.consumer(topic, "billing", type=kind, start="earliest")).close()
            async with memory.open(transactions=QUIET) as other:
                with function_calls() as calls:
                    await (await other.consumer(topic, "billing", type=kind)).close()
            made[segments] = calls["call"]
    # With work that grows with the square of the segments, the ratio goes to 4.
    assert (made[40] - made[20]) / (made[20] - made[10]) < 2.4, made


async def test_two_that_open_at_the_same_time(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes that open an exclusive consumer, one gets all segments: not each one some, and both refused."""
    async with memory.open() as one, memory.open() as other:
        await one.create_topic("orders", segments=5)
        await (await one.consumer("orders", "billing", start="earliest")).close()
        acquire = one.host.metadata.acquire_lease
        layout = await one.host.topics.layout(TopicName.parse("topic://public/default/orders"))
        late = [str(layout.name_of(segment.id)) for segment in layout.active()[2:]]

        async def acquire_late(name: str, holder: str) -> ILease:
            if any(segment in name for segment in late):
                for _ in range(500):
                    if await other.host.metadata.get(lease_key(name)) is not None:
                        break
            return await acquire(name, holder)

        monkeypatch.setattr(one.host.metadata, "acquire_lease", acquire_late)
        opened = await asyncio.gather(
            *(client.consumer("orders", "billing") for client in (one, other)), return_exceptions=True
        )
        (refused,) = [found for found in opened if isinstance(found, BaseException)]
        assert isinstance(refused, SubscriptionOwnedElsewhere)
        (consumer,) = [found for found in opened if not isinstance(found, BaseException)]
        held = one.host.dispatches.segments_of("billing") | other.host.dispatches.segments_of("billing")
        assert len(held) == 5
        await consumer.close()


async def test_a_seek_during_an_attachment(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seek waits for what is being attached, which it may have to detach: afterwards each segment is received."""
    async with memory.open() as client, memory.open() as other:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        await producer.send(b"before")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await client.split("orders", 0)
        after = await producer.send(b"after")
        for _ in range(2):
            await consumer.ack(await consumer.receive(timeout_ms=60_000))
        (child,) = [one for one in client.host.dispatches.segments_of("billing") if one in after.segment]
        acquire, is_asked, may_go_on = client.host.metadata.acquire_lease, asyncio.Event(), asyncio.Event()

        async def acquire_late(name: str, holder: str) -> ILease:
            is_asked.set()
            await may_go_on.wait()
            return await acquire(name, holder)

        monkeypatch.setattr(client.host.metadata, "acquire_lease", acquire_late)
        lease = dispatching_lease(child, "billing")
        record = await other.host.metadata.get(lease_key(lease))
        assert record is not None
        await other.host.metadata.break_lease(lease, record.version)
        await is_asked.wait()
        seeking = asyncio.ensure_future(consumer.seek("earliest"))
        for _ in range(200):
            await asyncio.sleep(0)
        may_go_on.set()
        await seeking
        assert await memory.receive(consumer, 1) == [b"before"]
        assert await memory.receive(consumer, 1) == [b"after"]
        await consumer.close()
