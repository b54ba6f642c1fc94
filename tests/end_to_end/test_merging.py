"""Behaviour 16 after a merge: which sequence ids an entry really contains."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Message
from txnframework.model.key_hashes import key_hash

if TYPE_CHECKING:
    from conftest import Stores

LOW = next(b"%d" % number for number in range(99) if key_hash(b"%d" % number) < 0x8000)
HIGH = next(b"%d" % number for number in range(99) if key_hash(b"%d" % number) >= 0x8000)


async def _read(stores: Stores) -> list[Message]:
    async with stores.open() as client, await client.reader("orders") as reader:
        return [message async for message in reader]


async def test_sends_under_way_when_segments_merge(stores: Stores) -> None:
    """Sends that wait at both parents go to the child in order, and all of them are stored."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic("orders", segments=2)
        producer = await client.producer("orders")
        await elsewhere.merge("orders", 0, 1)
        keys = [LOW, HIGH] * 4
        sent = await asyncio.gather(*(producer.send(b"%d" % number, key=key) for number, key in enumerate(keys)))
        found = await _read(stores)
        assert [message.value for message in found] == [b"%d" % number for number in range(len(keys))]
        assert [message.id for message in found] == list(sent)


async def test_a_message_that_one_parent_only_seems_to_hold(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry in one parent does not cover sequence ids in its gaps, which went to the other parent."""
    async with stores.open() as client:
        # The first sends wait until their segments are open.
        monkeypatch.setattr(client.host, "prepare_rows", _prepare_nothing)
        await client.create_topic("orders", segments=2)
        producer = await client.producer("orders", name="till-7")
        sends = [producer.send(b"x", key=key) for key in (LOW, HIGH, LOW)]
        # The one in the middle does not come through.
        tasks = [asyncio.ensure_future(send) for send in sends]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stored = await _read(stores)
        assert [message.key for message in stored] == [LOW, LOW]
        first, last = (message.sequence_id for message in stored)
        assert last == first + 2
        assert stored[0].id.position.entry == stored[1].id.position.entry
        await client.merge("orders", 0, 1)
    async with stores.open() as client:
        producer = await client.producer("orders", name="till-7")
        again = [await producer.send(b"y", key=HIGH, sequence_id=first + 1) for _ in range(2)]
        assert again[0] == again[1]
        assert await producer.send(b"y", key=LOW, sequence_id=last) == stored[1].id
    assert [message.value for message in await _read(stores)] == [b"x", b"x", b"y"]


async def test_a_message_that_its_own_parent_only_seems_to_hold(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled send leaves a gap in an entry; when it is sent again after a change, it is stored."""
    async with stores.open() as client:
        # The first sends wait until their segments are open.
        monkeypatch.setattr(client.host, "prepare_rows", _prepare_nothing)
        await client.create_topic("orders", segments=2)
        producer = await client.producer("orders", name="till-7")
        tasks = [asyncio.ensure_future(producer.send(b"x", key=LOW)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stored = await _read(stores)
        first, last = (message.sequence_id for message in stored)
        assert last == first + 2
        assert stored[0].id.position.entry == stored[1].id.position.entry
        await client.merge("orders", 0, 1)
    async with stores.open() as client:
        producer = await client.producer("orders", name="till-7")
        again = [await producer.send(b"y", key=LOW, sequence_id=first + 1) for _ in range(2)]
        assert again[0] == again[1]
    assert [message.value for message in await _read(stores)] == [b"x", b"x", b"y"]


class SlowBuffer:
    """A segment's buffer whose appends wait until ``released`` is set."""

    def __init__(self, real: Any) -> None:
        self.under_way = asyncio.Event()
        self.released = asyncio.Event()
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def append(self, entries: Any) -> Any:
        self.under_way.set()
        await self.released.wait()
        return await self._real.append(entries)


async def turns() -> None:
    """Let all ready tasks run; stores in memory need no time."""
    for _ in range(200):
        await asyncio.sleep(0)


async def test_two_changes_at_once_keep_a_key_in_order(memory: Stores) -> None:
    """While one change is followed, a first send to a new segment also ends earlier sends in progress."""
    async with memory.open() as client, memory.open() as elsewhere:
        await client.create_topic("orders", segments=3)
        producer = await client.producer("orders")
        layout = await client.layout("orders")
        keys = [
            next(b"%d" % number for number in range(999) if layout.route(key_hash(b"%d" % number)).id == segment)
            for segment in range(3)
        ]
        slow = []
        for segment in (1, 2):
            opened: Any = await client.host.segment(str(layout.name_of(segment)))
            slow.append(SlowBuffer(opened.buffer))
            object.__setattr__(opened, "buffer", slow[-1])
        for segment in range(3):
            await elsewhere.split("orders", segment)
        sends = [asyncio.ensure_future(producer.send(b"0", key=keys[1]))]
        await slow[0].under_way.wait()
        sends.append(asyncio.ensure_future(producer.send(b"0", key=keys[0])))
        await turns()  # its segment is sealed: the change is followed, and waits for what is under way
        sends.append(asyncio.ensure_future(producer.send(b"first", key=keys[2])))
        await slow[1].under_way.wait()
        slow[0].released.set()
        await turns()
        sends.append(asyncio.ensure_future(producer.send(b"second", key=keys[2])))
        await turns()
        slow[1].released.set()
        await asyncio.gather(*sends)
        found = [message.value for message in await _read(memory) if message.key == keys[2]]
        assert found == [b"first", b"second"]


async def _prepare_nothing(*_: object) -> None:
    """Stand for ``Host.prepare_rows``, which opens segments where a store has one writer."""
