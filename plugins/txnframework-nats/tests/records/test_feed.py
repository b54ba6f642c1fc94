"""The feed of the copy: lost consumers, messages that the stream has dropped, batches, and messages of strangers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest

from txnframework.errors import Closed, Unavailable
from txnframework.model import Delete, Expect, IndexEntry, IndexRange, Key, KeyRange, Put, Step
from txnframework.testing import VirtualEnvironment, run_ready
from txnframework_nats._options import MetadataOptions
from txnframework_nats.connection._connection import NatsConnection
from txnframework_nats.connection._failures import ReplyLost
from txnframework_nats.records._consumer import FeedMessage
from txnframework_nats.records._layout import encode_put, record_id
from txnframework_nats.records._metadata_store import NatsMetadataStore, open_metadata_store
from txnframework_nats.records._stream import StreamState

A, B = Key("/a", "p"), Key("/b", "p")
ALL = KeyRange("/", "0")
BOUND_S = 120.0


async def open_store(url: str, environment: VirtualEnvironment | None = None) -> NatsMetadataStore:
    """Open a store whose time the test controls."""
    return await open_metadata_store(url, environment or VirtualEnvironment(), MetadataOptions())


async def values(store: NatsMetadataStore) -> list[bytes]:
    """Return the values of all records, in the order of their keys."""
    return [record.value for record in (await store.scan(ALL, 100)).records]


async def test_a_consumer_that_is_gone_is_replaced(url: str) -> None:
    """A store whose consumer was deleted reads what was written since, and its watches wake."""
    store, other = await open_store(url), await open_store(url)
    stream = store._stream.layout.stream
    await other.put(Put(A, b"one", Expect.ABSENT))
    assert await values(store) == [b"one"]
    found = await store.connection.api(f"CONSUMER.NAMES.{stream}")
    for name in found["consumers"]:
        await store.connection.api(f"CONSUMER.DELETE.{stream}.{name}")
    watch = await store.watch(B)
    await other.put(Put(B, b"two", Expect.ABSENT))
    assert await values(store) == [b"one", b"two"]
    await asyncio.wait_for(watch.changed(), BOUND_S)
    await store.close()
    await other.close()


@pytest.mark.parametrize("lost", [1, 1 << 30])
async def test_the_reply_to_an_opening_is_lost(url: str, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    """An opening whose consumer was made without a reply makes another one; without any reply it is Unavailable."""
    send, left = NatsConnection.api, iter(range(lost))

    async def lose(connection: NatsConnection, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if name.startswith("CONSUMER.CREATE") and (number := next(left, None)) is not None:
            if number == 0:
                await send(connection, name, body)
            raise ReplyLost("no reply")
        return await send(connection, name, body)

    monkeypatch.setattr(NatsConnection, "api", lose)
    # Of the time there must be enough for an attempt, and it must pass where none succeeds.
    options = MetadataOptions(connect_timeout_ms=1_000 if lost > 1 else 60_000)
    opening = open_metadata_store(url, VirtualEnvironment(), options)
    if lost > 1:
        with pytest.raises(Unavailable, match="no reply"):
            await opening
        return
    store = await opening
    await store.put(Put(A, b"one", Expect.ABSENT))
    assert await values(store) == [b"one"]
    await store.close()


async def test_last_messages_that_were_removed(url: str) -> None:
    """A copy is current although the last messages of the stream were removed."""
    store = await open_store(url)
    layout = store._stream.layout
    await store.put(Put(A, b"one", Expect.ABSENT))
    await store.put(Put(B, b"two", Expect.ABSENT))
    await store.delete(B, Expect.ANY)
    await store.connection.api(f"STREAM.PURGE.{layout.stream}", {"filter": layout.record(("/b", "p"))})
    other = await open_store(url)
    assert await values(other) == [b"one"]
    await store.close()
    await other.close()


async def test_deletions_that_were_missed(url: str) -> None:
    """A process that was away for longer than deletions are kept does not show deleted records."""
    environment = VirtualEnvironment()
    store, other = await open_store(url, environment), await open_store(url)
    layout = store._stream.layout
    await store.put(Put(A, b"one", Expect.ABSENT))
    await store.put(Put(B, b"two", Expect.ABSENT))
    assert await values(store) == [b"one", b"two"]

    # The process receives nothing, while a record is deleted and the message of the deletion is dropped.
    consumer = store._feed._consumer
    assert consumer is not None
    consumer.ignore()
    await other.delete(B, Expect.ANY)
    await store.connection.api(f"STREAM.PURGE.{layout.stream}", {"filter": layout.record(("/b", "p"))})
    await environment.advance(MetadataOptions().deleted_life_ms)
    assert await values(store) == [b"one"]
    await store.close()
    await other.close()


async def test_a_version_that_was_never_read(url: str) -> None:
    """A watch on an index wakes after an entry was added and removed, though the stream keeps only the last version."""
    store, other = await open_store(url), await open_store(url)
    await other.put(Put(A, b"one", Expect.ABSENT))
    assert await values(store) == [b"one"]
    consumer = store._feed._consumer
    assert consumer is not None
    consumer.ignore()
    await other.put(Put(A, b"two", Expect.ANY, (IndexEntry("i", b"k"),)))
    watch = await store.watch(IndexRange("i", b"", b"z"))
    await other.put(Put(A, b"three", Expect.ANY))
    store._feed._broken.set()
    await asyncio.wait_for(watch.changed(), 2 * BOUND_S)
    assert await values(store) == [b"three"]
    await store.close()
    await other.close()


async def test_batches_are_seen_whole(url: str) -> None:
    """While batches replace the same records, every scan of another process finds records of one batch only."""
    store, other = await open_store(url), await open_store(url)
    keys = [Key(f"/{number}", "p") for number in range(5)]
    seen: set[bytes] = set()

    async def write() -> None:
        for number in count():
            if number >= 30 and len(seen) > 1:
                return
            await store.apply(Step(puts=tuple(Put(key, b"%d" % number, Expect.ANY) for key in keys)))

    writing = asyncio.create_task(write())
    while not writing.done():
        found = await values(other)
        assert len(set(found)) <= 1, found
        assert len(found) in (0, len(keys))
        seen |= set(found)
    await writing
    await store.apply(Step(deletes=tuple(Delete(key, Expect.ANY) for key in keys)))
    assert await values(other) == []
    await store.close()
    await other.close()


async def test_messages_that_are_not_from_the_consumer(url: str) -> None:
    """A message that another client sends to the subject of a consumer changes nothing."""
    store, other = await open_store(url), await open_store(url)
    consumer = store._feed._consumer
    assert consumer is not None
    assert consumer.subscription is not None
    await other.connection.send(consumer.subscription.subject, b"false")
    await store.put(Put(A, b"one", Expect.ABSENT))
    assert await values(store) == [b"one"]
    await store.close()
    await other.close()


async def test_parts_of_a_batch_are_held_back(url: str) -> None:
    """The first messages of a batch are applied with the last one, or with a message of another write."""
    store = await open_store(url)
    feed, layout = store._feed, store._stream.layout
    first = feed.copy.applied + 1

    def receive(number: int, value: bytes, batch: str, is_end: bool = False) -> None:
        place = (f"/{value.decode()}", "p")
        payload = encode_put(place, Put(Key(*place), value, Expect.ANY))
        feed.applier.receive(FeedMessage(layout.record(place), first + number, payload, "", batch, is_end))

    def known() -> list[bytes]:
        return [record.value for record in feed.copy.scan(ALL, 10).records]

    receive(0, b"a", "one")
    assert (known(), feed.copy.applied) == ([], first - 1)
    receive(1, b"b", "one", is_end=True)
    assert (known(), feed.copy.applied) == ([b"a", b"b"], first + 1)
    # The last message of this batch was replaced by a later write.
    receive(2, b"c", "two")
    assert known() == [b"a", b"b"]
    receive(4, b"d", "")
    assert known() == [b"a", b"b", b"c", b"d"]
    await store.close()


def message_of(store: NatsMetadataStore, key: Key, sequence: int, value: bytes) -> FeedMessage:
    """Return the message of a record, as the consumer would deliver it."""
    place = record_id(key)
    payload = encode_put(place, Put(key, value, Expect.ANY))
    return FeedMessage(store._stream.layout.record(place), sequence, payload, "")


async def test_a_read_waits_for_what_replaced_a_missing_message(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a message was replaced before it was received, a read does not return the value before it."""
    store = await open_store(url)
    feed = store._feed
    await store.put(Put(A, b"before", Expect.ABSENT))
    await store.get(A)
    last, answers = feed.copy.applied, [feed.copy.applied + 2, feed.copy.applied + 3]
    asked = asyncio.Semaphore(0)

    async def answer() -> StreamState:
        asked.release()
        return StreamState(answers.pop(0), feed._created, 1)

    monkeypatch.setattr(feed._stream, "state", answer)
    reading = asyncio.create_task(store.get(A))
    await asked.acquire()
    # Message last + 1 was a change of A, which last + 3 replaced after the leader's first answer.
    feed.applier.receive(message_of(store, B, last + 2, b"other"))
    await asked.acquire()
    assert not reading.done()
    feed.applier.receive(message_of(store, A, last + 3, b"after"))
    found = await asyncio.wait_for(reading, BOUND_S)
    assert found is not None
    assert (found.value, answers) == (b"after", [])
    monkeypatch.undo()
    await store.close()


@pytest.mark.parametrize("is_during_question", [True, False])
async def test_a_loop_that_is_held_up(url: str, monkeypatch: pytest.MonkeyPatch, is_during_question: bool) -> None:
    """A read waits for what was sent while the event loop stood still, for however long that was."""
    store = await open_metadata_store(url, VirtualEnvironment(), MetadataOptions(connect_timeout_ms=60_000))
    feed, loop = store._feed, asyncio.get_running_loop()
    await store.put(Put(A, b"before", Expect.ABSENT))
    await store.get(A)
    last, time = feed.copy.applied, loop.time
    was_asked, is_missed = asyncio.Event(), asyncio.Event()

    def hold_up() -> None:
        monkeypatch.setattr(loop, "time", lambda: time() + 90)

    async def answer() -> StreamState:
        was_asked.set()
        if is_during_question:
            hold_up()
        return StreamState(last + 1, feed._created, 1)

    async def following(number: int) -> int:
        is_missed.set()
        return number

    monkeypatch.setattr(feed._stream, "state", answer)
    monkeypatch.setattr(feed._stream, "next", following)
    reading = asyncio.ensure_future(store.get(A))
    await was_asked.wait()
    await run_ready()
    hold_up()
    missed = asyncio.ensure_future(is_missed.wait())
    await asyncio.wait((missed, reading), return_when=asyncio.FIRST_COMPLETED)
    feed.applier.receive(message_of(store, A, last + 1, b"after"))
    found = await reading
    assert found is not None
    assert found.value == b"after"
    monkeypatch.undo()
    await store.close()


async def test_an_answer_that_is_older_than_a_confirmed_write(url: str) -> None:
    """A leader that does not know of a write which was confirmed to this process is not believed."""
    store = await open_metadata_store(url, VirtualEnvironment(), MetadataOptions())
    version = await store.put(Put(A, b"one", Expect.ABSENT))
    assert store._feed._confirmed == version
    store._feed.confirm(version + 1)
    store.connection.options = MetadataOptions(connect_timeout_ms=300)
    with pytest.raises(Unavailable, match=f"this process has seen {version + 1}"):
        await store.get(A)
    await store.close()


async def test_closing_during_a_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that waits while the store is closed raises Closed, and is not taken for cancelled."""
    store = await open_store(url)
    asked = asyncio.Event()

    async def no_answer() -> StreamState:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(store._feed._stream, "state", no_answer)
    reading = asyncio.create_task(store.get(A))
    await asked.wait()
    await store.close()
    with pytest.raises(Closed):
        await asyncio.wait_for(reading, BOUND_S)


async def test_deletions_are_forgotten(url: str) -> None:
    """A process forgets deletions after a time; a deletion that is forgotten too early does not block a write."""
    environment = VirtualEnvironment()
    store, other = await open_store(url, environment), await open_store(url)
    await store.put(Put(A, b"one", Expect.ABSENT))
    await store.delete(A, Expect.ANY)
    await store.get(A)
    assert len(store._feed.copy.deleted) == 1
    for _ in range(7):
        await environment.advance(MetadataOptions().deleted_life_ms // 4)
        await store.get(A)
    assert not store._feed.copy.deleted
    # The stream still has the message, as its own time did not pass.
    await store.put(Put(A, b"two", Expect.ABSENT))
    assert await values(other) == [b"two"]
    await store.close()
    await other.close()


async def test_a_lease_after_its_deletion_was_dropped(url: str) -> None:
    """A lease can be acquired again when the stream has dropped the message of its deletion."""
    store = await open_store(url)
    lease = await store.acquire_lease("name", "holder")
    await lease.release()
    assert await store.get(lease.key) is None
    layout = store._stream.layout
    body = {"filter": layout.record(record_id(lease.key))}
    await store.connection.api(f"STREAM.PURGE.{layout.stream}", body)
    again = await store.acquire_lease("name", "holder")
    assert again.fencing > lease.fencing
    await store.close()
