"""Sends whose task is stopped, or whose reply is lost, end with an error that says what may have become of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, MessageID
from txnframework.errors import Closed, LedgerSealed, OutcomeUnknown, Unavailable
from txnframework.runtime.tasks import start_task

if TYPE_CHECKING:
    from conftest import Stores

SEGMENT = "segment://public/default/orders/0000-ffff-0"
SOON_S = 60


class Intercepted:
    """A segment's buffer whose appends go through ``append``, which is given the real one."""

    def __init__(self, real: Any, append: Callable[[Any, Any], Awaitable[Any]]) -> None:
        self._real = real
        self._append = append

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def append(self, entries: Any) -> Any:
        return await self._append(self._real, entries)


async def intercept(client: Client, segment: str, append: Callable[[Any, Any], Awaitable[Any]]) -> None:
    opened: Any = await client.host.segment(segment)
    object.__setattr__(opened, "buffer", Intercepted(opened.buffer, append))


def cancel(name: str) -> None:
    """Cancel the tasks that run ``name``, as the end of an event loop does."""
    tasks: Any = asyncio.all_tasks()
    found = [task for task in tasks if task.get_coro().__qualname__ == name]
    assert found
    for task in found:
        task.cancel()


async def outcomes(sends: list[asyncio.Task[Any]]) -> list[type]:
    async with asyncio.timeout(SOON_S):
        return [type(result) for result in await asyncio.gather(*sends, return_exceptions=True)]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_stopped_lane_leaves_nobody_waiting(memory: Stores, begun: bool) -> None:
    """A message in progress may be stored, waiting ones are not; closing the producer ends."""
    async with memory.open(client={"entry_messages_max": 1}) as client:
        await client.create_topic("orders")
        under_way = asyncio.Event()

        async def hang(real: Any, entries: Any) -> Any:
            under_way.set()
            await asyncio.Event().wait()

        await intercept(client, SEGMENT, hang)
        producer = await client.producer("orders")
        sends = [start_task(producer.send(b"m")) for _ in range(3)]
        await asyncio.sleep(0)
        if begun:
            await under_way.wait()
        cancel("SegmentSender._run")
        assert await outcomes(sends) == [OutcomeUnknown if begun else Closed, Closed, Closed]
        async with asyncio.timeout(SOON_S):
            await producer.close()


async def test_a_stopped_change_of_route_leaves_nobody_waiting(memory: Stores) -> None:
    """Messages that wait for a segment's children to be known fail with an error: they were not sent."""
    async with memory.open() as client, memory.open() as elsewhere:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        await elsewhere.split("orders", 0)
        asked = asyncio.Event()

        async def hang(topic: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

        topics: Any = client.host.topics
        real, topics.finish_changes = topics.finish_changes, hang
        sends = [asyncio.ensure_future(producer.send(b"m")) for _ in range(3)]
        await asked.wait()
        cancel("SegmentRouter._reroute")
        assert await outcomes(sends) == [Closed] * 3
        topics.finish_changes = real
        await producer.send(b"again")
        async with asyncio.timeout(SOON_S):
            await producer.close()
        assert await memory.read(client, "orders") == [b"again"]


@pytest.mark.parametrize("alone", [False, True])
async def test_a_message_that_may_stand_is_not_said_to_have_failed(memory: Stores, alone: bool) -> None:
    """A message was stored, its reply was lost, and the segment was sealed: a later failure is not reported as
    refusal.
    """
    async with memory.open(client={"retry_delay_ms": 1, "retry_delay_ms_max": 1}) as client:
        await client.create_topic("orders")
        lost: list[Any] = []

        async def lose_reply(real: Any, entries: Any) -> Any:
            if lost:
                raise LedgerSealed(SEGMENT)
            lost.append(await real.append(entries))
            raise OutcomeUnknown("the reply was lost")

        async def away(topic: Any) -> Any:
            raise Unavailable("the metadata store is away")

        producer = await client.producer(SEGMENT if alone else "orders")
        await intercept(client, SEGMENT, lose_reply)
        topics: Any = client.host.topics
        real, topics.finish_changes = topics.finish_changes, away
        with pytest.raises(OutcomeUnknown) as raised:
            await producer.send(b"m")
        topics.finish_changes = real
        assert isinstance(raised.value.__cause__, LedgerSealed if alone else Unavailable)
        assert await memory.read(client, SEGMENT) == [b"m"]


async def test_closing_waits_for_sends_that_wait_for_room(stores: Stores) -> None:
    """Everything that was sent before the close is stored, however few sends may be in flight at a time."""
    async with stores.open(client={"sends_in_flight_max": 2}) as client:
        await client.create_topic("orders", segments=2)
        producer = await client.producer("orders")
        values = [b"%d" % number for number in range(20)]
        sends = [asyncio.ensure_future(producer.send(value)) for value in values]
        await asyncio.sleep(0)
        await producer.close()
        assert sorted(await stores.read(client, "orders")) == sorted(values)
        await asyncio.gather(*sends)
        with pytest.raises(Closed):
            await producer.send(b"late")


@pytest.mark.parametrize("stops", [False, True])
async def test_what_follows_a_message_that_was_not_stored(memory: Stores, stops: bool) -> None:
    """With ``stop_after_failure`` nothing is stored behind it, so that it keeps its place when it is sent again."""
    async with memory.open(client={"retries_max": 0, "entry_messages_max": 1}) as client:
        await client.create_topic("orders")
        failed: list[Any] = []

        async def fail_once(real: Any, entries: Any) -> Any:
            if failed:
                return await real.append(entries)
            failed.append(entries)
            raise Unavailable("the store is away")

        producer = await client.producer("orders", name="shop", stop_after_failure=stops)
        await intercept(client, SEGMENT, fail_once)
        sends = [asyncio.ensure_future(producer.send(b"%d" % one, sequence_id=one)) for one in range(3)]
        expected = [Unavailable, Closed, Closed] if stops else [Unavailable, MessageID, MessageID]
        assert await outcomes(sends) == expected
        if stops:
            with pytest.raises(Closed, match="the store is away"):
                await producer.send(b"3", sequence_id=3)
            await producer.close()
            producer = await client.producer("orders", name="shop", stop_after_failure=True)
        for number in range(3):
            await producer.send(b"%d" % number, sequence_id=number)
        assert await memory.read(client, "orders") == ([b"0", b"1", b"2"] if stops else [b"1", b"2", b"0"])
        assert await client.last_sequence_id("orders", "shop") == 2


async def test_a_cancelled_call_stops_the_producer(memory: Stores) -> None:
    """The cancelled message may be stored or not, and must keep its place when it is sent again."""
    async with memory.open(client={"retries_max": 0, "entry_messages_max": 1}) as client:
        await client.create_topic("orders")
        producer = await client.producer("orders", name="shop", stop_after_failure=True)
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def wait(real: Any, entries: Any) -> Any:
            entered.set()
            await go_on.wait()
            return await real.append(entries)

        await intercept(client, SEGMENT, wait)
        sends = [asyncio.ensure_future(producer.send(b"%d" % one, sequence_id=one)) for one in range(3)]
        await entered.wait()
        sends[1].cancel()
        await asyncio.wait({sends[1]})
        go_on.set()
        assert await outcomes([sends[0], sends[2]]) == [MessageID, Closed]
        with pytest.raises(Closed, match="CancelledError"):
            await producer.send(b"3", sequence_id=3)
        await producer.close()
        producer = await client.producer("orders", name="shop", stop_after_failure=True)
        for number in range(4):
            await producer.send(b"%d" % number, sequence_id=number)
        assert await memory.read(client, "orders") == [b"0", b"1", b"2", b"3"]


async def test_refusals_keep_nothing_of_their_callers(memory: Stores) -> None:
    """A program that goes on sending to a stopped producer gets an error of its own each time."""
    async with memory.open(client={"retries_max": 0}) as client:
        await client.create_topic("orders")
        producer = await client.producer("orders", stop_after_failure=True)

        async def fail(_: Any, __: Any) -> Any:
            raise Unavailable("the store is away")

        await intercept(client, SEGMENT, fail)
        with pytest.raises(Unavailable):
            await producer.send(b"0")
        frames = []
        for _ in range(3):
            with pytest.raises(Closed) as refused:
                await producer.send(b"1")
            frames.append(len(extract_tb(refused.value.__traceback__)))
        assert len(set(frames)) == 1


async def test_a_failure_in_a_transaction_stops_nothing_else(memory: Stores) -> None:
    """The transaction cannot commit any more, so none of its messages comes too late."""
    async with memory.open(client={"retries_max": 0}) as client:
        await client.create_topic("orders")
        producer = await client.producer("orders", stop_after_failure=True)
        real: list[Any] = []

        async def fail_in_transactions(ledger: Any, entries: Any) -> Any:
            if entries[0].branch is not None:
                raise Unavailable("the store is away")
            real.append(entries)
            return await ledger.append(entries)

        await intercept(client, SEGMENT, fail_in_transactions)
        txn = client.transaction()
        await txn.begin()
        with pytest.raises(Unavailable):
            await producer.send(b"never", txn=txn)
        await producer.send(b"stored")
        await txn.abort()
        assert await memory.read(client, "orders") == [b"stored"]
