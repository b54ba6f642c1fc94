"""What is known of a write whose reply or request was lost, and requests that arrive late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import OutcomeUnknown, VersionMismatch
from txnframework.model import Check, Delete, Expect, Key, KeyRange, Put, PutSequential, Step
from txnframework.testing.servers.proxy import Proxy
from txnframework_nats._options import MetadataOptions
from txnframework_nats.connection._connection import Message
from txnframework_nats.connection._failures import RequestRefused
from txnframework_nats.records._metadata_store import NatsMetadataStore, open_metadata_store
from txnframework_nats.testing.servers.frames import Frame, NatsTap

A, B = Key("/a", "p"), Key("/b", "p")
ALL = KeyRange("/", "0")
OPTIONS = MetadataOptions(request_timeout_ms=3_000, connect_timeout_ms=60_000)

Write = Callable[[NatsMetadataStore, int], Awaitable[object]]

WRITES: dict[str, tuple[Write, list[bytes]]] = {
    "create": (lambda store, _: store.put(Put(B, b"new", Expect.ABSENT)), [b"old", b"new"]),
    "change": (lambda store, version: store.put(Put(A, b"new", version)), [b"new"]),
    "any": (lambda store, _: store.put(Put(A, b"new", Expect.ANY)), [b"new"]),
    "delete": (lambda store, version: store.delete(A, version), []),
    "sequential": (lambda store, _: store.apply(Step(puts=(PutSequential(A, b"new"),))), [b"old", b"new"]),
    "checked": (
        lambda store, version: store.apply(Step((Check(A, version),), (PutSequential(A, b"new"),))),
        [b"old", b"new"],
    ),
    "batch": (
        lambda store, version: store.apply(
            Step(puts=(Put(B, b"new", Expect.ABSENT), PutSequential(A, b"new")), deletes=(Delete(A, version),))
        ),
        [b"new", b"new"],
    ),
}


class LosingProxy:
    """Loses one message of a client to the records, or its reply, and then the connection; another one is accepted."""

    def __init__(self, server: tuple[str, int], lost_reply: int | None) -> None:
        self._left = lost_reply
        self.proxy = Proxy(server, lambda: _LosingTap(self))
        self.losing = ""
        self.awaited = ""
        self.lost = 0
        self.after_loss: Callable[[], None] | None = None

    def request(self, frame: Frame) -> bool:
        """Lose the request, or note where its reply goes."""
        is_write = frame.name in ("PUB", "HPUB") and ".records." in frame.subject
        if not self.losing or not is_write or not frame.reply_to or frame.subject.endswith(".numbers"):
            return True
        if self.losing == "request":
            self._lose()
            return False
        self.awaited = frame.reply_to
        return True

    def deliver(self, frame: Frame) -> bool:
        """Lose the reply."""
        if self._left is not None and frame.name in ("MSG", "HMSG"):
            self._left = self._left - 1 if self._left else None
            if self._left is None:
                self._lose()
                return False
        if not self.awaited or frame.name not in ("MSG", "HMSG") or frame.subject != self.awaited:
            return True
        self._lose()
        return False

    def _lose(self) -> None:
        self.losing = self.awaited = ""
        self.lost += 1
        self.proxy.reset_connections()


class _LosingTap(NatsTap):
    def __init__(self, owner: LosingProxy) -> None:
        super().__init__()
        self._owner = owner

    def request(self, frame: Frame) -> bool:
        return self._owner.request(frame)

    def deliver(self, frame: Frame) -> bool:
        return self._owner.deliver(frame)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[NatsMetadataStore]:
    """Open a store for the length of the block."""
    store = await open_metadata_store(url, SystemEnvironment(), OPTIONS)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def opened_through_proxy(
    url: str, lost_reply: int | None = None
) -> AsyncIterator[tuple[NatsMetadataStore, LosingProxy]]:
    """Open a store through a proxy; ``lost_reply``: the number of a message of the servers that is lost at first."""
    parts = urlsplit(url)
    host, _, port = parts.netloc.rpartition(":")
    losing = LosingProxy((host, int(port)), lost_reply)
    async with losing.proxy as proxy:
        through = parts._replace(netloc="{}:{}".format(*proxy.address)).geturl()
        async with opened(through) as store:
            yield store, losing


@pytest.mark.parametrize("before", range(8))
async def test_opening_goes_on_after_a_lost_reply(url: str, before: int) -> None:
    """A new store is opened whichever reply of the servers is lost, and there is one store."""
    async with opened_through_proxy(url, lost_reply=before) as (store, proxy), opened(url) as other:
        assert proxy.lost == 1
        assert store.identity == other.identity


@pytest.mark.parametrize("losing", ["request", "reply"])
@pytest.mark.parametrize("kind", WRITES)
def test_every_write_is_done_once_whatever_was_lost(url: str, kind: str, losing: str) -> None:
    """A write whose request or reply was lost succeeds, and is applied once."""
    write, expected = WRITES[kind]

    async def main() -> None:
        async with opened(url) as other, opened_through_proxy(url) as (store, proxy):
            version = await store.put(Put(A, b"old", Expect.ABSENT))
            proxy.losing = losing
            if kind == "checked" and losing == "request":
                # It has no condition on its own subject, so it is not repeated: the late first request could undo a
                # later change of the record.
                with pytest.raises(OutcomeUnknown):
                    await write(store, version)
                expected.remove(b"new")
            else:
                await write(store, version)
            assert proxy.lost == 1
            assert sorted(record.value for record in (await other.scan(ALL, 10)).records) == sorted(expected)

    expected = list(expected)
    asyncio.run(main())


async def test_numbers_after_a_skip_whose_reply_was_lost(url: str) -> None:
    """The skip may be stored: numbers that the same process gives afterwards are above it."""
    async with opened_through_proxy(url) as (store, proxy):
        await store.apply(Step(puts=(PutSequential(A, b"before"),)))
        far = await store.last_number() + 1_000_000
        proxy.losing = "reply"
        with pytest.raises(OutcomeUnknown):
            await store.skip_numbers(far)
        assert proxy.lost == 1
        given = (await store.apply(Step(puts=(PutSequential(A, b"after"),)))).records[0].key
        assert int(given.path.rpartition("/")[2]) > far


async def test_what_others_wrote_over_is_unknown(url: str) -> None:
    """If the reply was lost and another process has changed the record since, the outcome cannot be determined."""
    async with opened(url) as other, opened_through_proxy(url) as (store, proxy):
        version = await store.put(Put(A, b"old", Expect.ABSENT))
        send = store.connection.publish

        async def publish_late(message: Message) -> int:
            """Lose the request; another process writes before it is repeated."""
            if ".records.r." in message.subject and not proxy.lost:
                proxy.losing = "request"
                try:
                    return await send(message)
                finally:
                    await other.put(Put(A, b"other", await other.put(Put(A, b"between", version))))
            return await send(message)

        store.connection.publish = publish_late  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await store.put(Put(A, b"new", version))
        record = await store.get(A)
        assert record is not None
        assert record.value == b"other"


async def test_a_lost_request_whose_place_was_taken(url: str) -> None:
    """If the request of a write under ANY was lost, and another write took its place, the write is made after it."""
    async with opened(url) as other, opened_through_proxy(url) as (store, proxy):
        send = store.connection.publish

        async def publish_late(message: Message) -> int:
            """Lose the request; another process writes before it is repeated."""
            if ".records.r." in message.subject and not proxy.lost:
                proxy.losing = "request"
                try:
                    return await send(message)
                finally:
                    await other.put(Put(A, b"other", Expect.ABSENT))
            return await send(message)

        store.connection.publish = publish_late  # type: ignore[method-assign]
        await store.put(Put(A, b"new", Expect.ANY))
        assert proxy.lost == 1
        record = await other.get(A)
        assert record is not None
        assert record.value == b"new"


@pytest.mark.parametrize("kind", [kind for kind in WRITES if kind != "checked"])
async def test_a_request_that_arrives_late_is_refused(url: str, kind: str) -> None:
    """
    A request that a server applies after the write was repeated, and its records were deleted, changes nothing.

    Such a request may wait in a server that was stopped.
    """
    write, _ = WRITES[kind]
    sent: list[tuple[Message, ...]] = []

    async with opened(url) as store:
        version = await store.put(Put(A, b"old", Expect.ABSENT))
        connection = store.connection
        publish, publish_batch = connection.publish, connection.publish_batch

        async def note(message: Message) -> int:
            sent.append((message,))
            return await publish(message)

        async def note_batch(batch_id: str, messages: tuple[Message, ...]) -> int:
            sent.append(messages)
            return await publish_batch(batch_id, messages)

        connection.publish = note  # type: ignore[method-assign]
        connection.publish_batch = note_batch  # type: ignore[method-assign,assignment]
        await write(store, version)
        late = [messages for messages in sent if not messages[0].subject.endswith(".numbers")]
        for record in (await store.scan(ALL, 10)).records:
            await store.delete(record.key, record.version)
        for messages in late:
            with pytest.raises(RequestRefused) as refused:
                await (publish(messages[0]) if len(messages) == 1 else publish_batch("late", messages))
            assert refused.value.is_lost_race
        assert (await store.scan(ALL, 10)).records == ()


async def test_a_deletion_that_the_stream_has_dropped(url: str) -> None:
    """A record is created again after the message of its deletion is gone, though this process still remembers it."""
    async with opened(url) as store:
        layout = store._stream.layout
        await store.put(Put(A, b"", Expect.ABSENT))
        await store.delete(A, Expect.ANY)
        assert await store.get(A) is None
        body = {"filter": layout.record(("/a", "p"))}
        await store.connection.api(f"STREAM.PURGE.{layout.stream}", body)
        version = await store.put(Put(A, b"again", Expect.ABSENT))
        with pytest.raises(VersionMismatch):
            await store.put(Put(A, b"", Expect.ABSENT))
        found = await store.get(A)
        assert found is not None
        assert (found.value, found.version) == (b"again", version)
