"""Null values are distinct from empty ones everywhere, and compaction removes the keys that they delete."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from txnframework import Client, Compactor, DeadLetter, DecidedMessage, MessageID
from txnframework.broker import Order
from txnframework.errors import Fenced, InvalidInput
from txnframework.model.key_hashes import key_hash

if TYPE_CHECKING:
    from conftest import Stores

LETTERS = "orders-billing-DLQ"


async def compacted(client: Client) -> list[tuple[bytes | None, bytes | None]]:
    async with await client.reader("prices", compacted=True) as reader:
        return [(message.key, message.value) async for message in reader]


async def send(client: Client, *pairs: tuple[bytes, bytes | None]) -> list[MessageID]:
    async with await client.producer("prices") as producer:
        return [await producer.send(value, key=key) for key, value in pairs]


@pytest.mark.families
async def test_a_null_comes_as_it_was_sent(stores: Stores) -> None:
    """A null is delivered as sent: alone, in a batch, in a transaction; to consumers, readers and peek.

    After a restart.
    """
    sent = [None, b"", b"1", None, None, b"2", None]

    async with stores.open() as client:
        await client.create_topic("orders")
        await client.subscribe("orders", "billing", start="earliest")
        async with await client.producer("orders") as producer:
            await producer.send(None, key=b"k", headers={"why": b"gone"})
            await producer.send_many([b"", b"1", None], key=b"k")
            async with client.transaction() as txn:
                await producer.send_many([None, b"2"], txn=txn)
                await producer.send(None, txn=txn)
            for wrong in ("text", 1):
                with pytest.raises(InvalidInput, match=f"value is bytes or None, not {type(wrong).__name__}: "):
                    await producer.send(wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match="key is bytes or None, not str: encode it"):
                await producer.send(b"1", key="k")  # type: ignore[arg-type]
    async with stores.open() as client:
        assert [one.value for one in await client.peek("orders", "billing", 10)] == sent
        async with await client.reader("orders") as reader:
            messages = [message async for message in reader]
        assert [message.value for message in messages] == sent
        assert (messages[0].key, dict(messages[0].headers)) == (b"k", {"why": b"gone"})
        async with await client.consumer("orders", "billing") as consumer:
            assert await stores.receive(consumer, 7) == sent


@pytest.mark.families
async def test_a_null_becomes_a_dead_letter(stores: Stores) -> None:
    """A null is moved to the dead-letter topic as a null."""
    async with stores.open() as client:
        await client.create_topic("orders")
        await client.create_topic(LETTERS)
        async with await client.producer("orders") as producer:
            await producer.send(None, key=b"k")
        rule = DeadLetter(redeliveries_max=0)
        consumer = await client.consumer("orders", "billing", start="earliest", dead_letter=rule)
        await consumer.nack(await consumer.receive(timeout_ms=60_000))
        receiving = asyncio.ensure_future(consumer.receive())
        async with await client.reader(LETTERS, follow=True) as reader:
            letter = await anext(aiter(reader))
        assert (letter.key, letter.value) == (b"k", None)
        receiving.cancel()
        await asyncio.wait({receiving})
        await consumer.close()


def test_a_null_without_await(stores: Stores) -> None:
    """The blocking facade sends and receives nulls."""
    with stores.open_blocking() as client:
        client.create_topic("orders")
        with client.producer("orders") as producer:
            producer.send(None)
            producer.send_many([None, b""])
        with client.reader("orders") as reader:
            assert [message.value for message in reader] == [None, None, b""]


@pytest.mark.families
@pytest.mark.parametrize("order", ["position", "commit"])
async def test_compaction_drops_a_key_with_its_null(stores: Stores, order: str) -> None:
    """Compaction drops the key with its null; later messages of the key remain.

    A null without a key is a plain message.
    """
    async with stores.open() as client:
        await client.create_topic("prices")
        await send(client, (b"a", b"1"), (b"b", b"1"), (b"a", None))
        async with await client.producer("prices") as producer:
            await producer.send(None)
        for _ in range(2):
            await client.compact("prices", order=order)
            assert await compacted(client) == [(b"b", b"1"), (None, None)]
        await send(client, (b"b", None), (b"a", b"2"))
        assert await compacted(client) == [(b"b", b"1"), (None, None), (b"b", None), (b"a", b"2")]
        await client.compact("prices", order=order)
        assert await compacted(client) == [(None, None), (b"a", b"2")]


@pytest.mark.parametrize("order", ["position", "commit"])
async def test_a_null_behind_a_split(stores: Stores, order: str) -> None:
    """A null in a child removes the key's messages in the parents, at any depth, and nothing else."""
    async with stores.open() as client:
        await client.create_topic("prices")
        await send(client, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
        await client.split("prices", (await client.layout("prices")).active()[0].id)
        await send(client, (b"a", b"2"), (b"b", None))
        child = (await client.layout("prices")).route(key_hash(b"a")).id
        await client.split("prices", child)
        await send(client, (b"a", None), (b"b", b"3"), (b"c", None))
        await client.compact("prices", order=order)
        assert await compacted(client) == [(b"b", b"3")]
        await send(client, (b"b", None))
        await client.compact("prices", order=order)
        assert await compacted(client) == []


async def test_a_null_stays_while_an_older_message_may_come_back(memory: Stores) -> None:
    """A null remains while an open transaction in the parent holds a message that it deletes."""
    async with memory.open() as client:
        await client.create_topic("prices")
        held = client.transaction()
        await held.begin()
        async with await client.producer("prices") as producer:
            await producer.send(b"open", txn=held)
            await producer.send(b"1", key=b"a")
        await client.split("prices", 0)
        await send(client, (b"a", None))
        await client.compact("prices")
        assert await compacted(client) == [(b"a", None)], "the key is read behind the open transaction"
        await held.commit()
        assert await compacted(client) == [(None, b"open"), (b"a", b"1"), (b"a", None)]
        await client.compact("prices")
        assert await compacted(client) == [(None, b"open")]


async def test_a_null_that_comes_between_the_looks_stays(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the parent was compacted without the null, the child keeps the null."""
    async with memory.open() as client:
        await client.create_topic("prices")
        await send(client, (b"a", b"1"))
        await client.split("prices", 0)
        attempts = client.host.compaction.attempts
        finish = attempts.finish

        async def delete_then_finish(*given: object) -> None:
            monkeypatch.setattr(attempts, "finish", finish)
            await send(client, (b"a", None))
            await finish(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(attempts, "finish", delete_then_finish)
        await client.compact("prices")
        assert await compacted(client) == [(b"a", b"1"), (b"a", None)]
        await client.compact("prices")
        assert await compacted(client) == []


async def test_killed_between_parent_and_child(memory: Stores) -> None:
    """After a kill at any step, a reader finds the key followed by its null, or neither."""
    async with memory.open() as client, memory.open() as other:
        await client.create_topic("prices")
        await send(client, (b"a", b"1"))
        await client.split("prices", 0)
        await send(client, (b"a", None))
        steps = 0
        while True:
            compacting = asyncio.ensure_future(client.compact("prices"))
            for _ in range(steps):
                await asyncio.sleep(0)
            if compacting.done():
                break
            compacting.cancel()
            await asyncio.wait({compacting})
            last = dict(await compacted(other))
            assert last.get(b"a") is None
            steps += 1
        assert steps > 20
        assert await compacted(other) == []


@pytest.mark.parametrize("order", ["position", "commit"])
async def test_another_compactor_brings_the_null_back_with_its_key(memory: Stores, order: Order) -> None:
    """If a compaction brings back a key, it brings back the null before the key, at every step."""

    class Everything(Compactor):
        name = "everything"

        def keeps(self, message: DecidedMessage) -> bool:
            return True

    async with memory.open() as client, memory.open() as other:
        await client.create_topic("prices")
        await send(client, (b"a", b"1"))
        await client.split("prices", 0)
        await send(client, (b"a", None))
        before: Order = "commit" if order == "position" else "position"
        steps = 0
        while True:
            await other.compact("prices", order=before)
            assert await compacted(other) == []
            compacting = asyncio.ensure_future(client.compact("prices", Everything, order=order))
            for _ in range(steps):
                await asyncio.sleep(0)
            if compacting.done():
                break
            compacting.cancel()
            await asyncio.wait({compacting})
            assert dict(await compacted(other)).get(b"a") is None
            steps += 1
        assert steps > 20
        assert await compacted(other) == [(b"a", b"1"), (b"a", None)]


async def test_of_two_compactions_none_brings_a_key_back(memory: Stores) -> None:
    """A compaction that was overtaken finishes no segment, so that a deleted key does not reappear."""
    async with memory.open() as client, memory.open() as other:
        await client.create_topic("prices")
        await send(client, (b"a", b"1"))
        await client.split("prices", 0)
        compacting = client.host.compaction
        looking = compacting._deleted

        async def overtaken(*given: object) -> object:
            found = await looking(*given)  # type: ignore[arg-type]
            await send(other, (b"a", None))
            await other.compact("prices", order="commit")
            return found

        compacting._deleted = overtaken  # type: ignore[assignment,method-assign]
        with pytest.raises(Fenced):
            await client.compact("prices", order="commit")
        assert await compacted(client) == []


async def test_a_reader_that_follows_is_told_of_a_null(memory: Stores) -> None:
    """A reader with the parent's key reads the child itself, so that it receives a null that compaction dropped."""
    async with memory.open() as client, memory.open() as other:
        await client.create_topic("prices")
        await send(client, (b"a", b"1"))
        async with await client.reader("prices", compacted=True, follow=True) as reader:
            messages = aiter(reader)
            assert (await anext(messages)).value == b"1"
            await other.split("prices", 0)
            await send(other, (b"a", None))
            await other.compact("prices")
            assert await compacted(other) == []
            message = await anext(messages)
            assert (message.key, message.value) == (b"a", None)


async def test_a_compaction_while_a_reader_opens(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order of opening segments, a reader does not find a key without its null."""
    async with memory.open() as client, memory.open() as other:
        await client.create_topic("prices")
        await send(client, (b"a", b"1"))
        await client.split("prices", 0)
        await send(client, (b"a", None))
        attempts = client.host.compaction.attempts
        part, opened = attempts.open_result, 0

        async def compact_in_between(segment: str) -> object:
            nonlocal opened
            opened += 1
            if opened == 2:
                await other.compact("prices")
            return await part(segment)

        monkeypatch.setattr(attempts, "open_result", compact_in_between)
        assert dict(await compacted(client)).get(b"a") is None
        assert opened == 3
