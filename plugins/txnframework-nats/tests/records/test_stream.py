"""The stream: its settings, its identity and its format, and streams that cannot be used."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import Closed, CorruptRecord, InvalidInput, TxnFrameworkError, UnknownFormat
from txnframework.interfaces import IDurableStore
from txnframework.model import Delete, Expect, Key, Put, Step
from txnframework_nats._options import ConnectionOptions, MetadataOptions, locate
from txnframework_nats.connection._connection import Message, NatsConnection
from txnframework_nats.records._layout import Layout
from txnframework_nats.records._metadata_store import NatsMetadataStore, open_metadata_store
from txnframework_nats.testing.servers.nats import Nats, Setup


async def open_store(url: str, **options: Any) -> NatsMetadataStore:
    """Open a store with these options."""
    return await open_metadata_store(url, SystemEnvironment(), MetadataOptions(**options))


async def create_stream(url: str, **settings: object) -> None:
    """Create the stream of a store with other settings than the store would."""
    servers = locate(url)
    layout = Layout(servers.prefix)
    config = {
        "name": layout.stream, "subjects": layout.subjects, "retention": "limits", "storage": "file",
        "allow_rollup_hdrs": True, "allow_atomic": True, "allow_msg_ttl": True, "discard": "new",
    } | settings  # fmt: skip
    connection = await NatsConnection.open(servers, ConnectionOptions())
    await connection.api(f"STREAM.CREATE.{layout.stream}", config)
    await connection.close()


async def write_message(url: str, subject: str, payload: bytes) -> None:
    """Write a message to the stream of a store, as a later release might."""
    connection = await NatsConnection.open(locate(url), ConnectionOptions())
    await connection.publish(Message(f"{locate(url).prefix}.records.{subject}", payload))
    await connection.close()


def refused(url: str, kind: type[TxnFrameworkError], **options: Any) -> str:
    """Return the sentence with which a store is refused."""
    with pytest.raises(kind) as caught:
        asyncio.run(open_store(url, **options))
    return str(caught.value)


async def test_identity_is_kept(url: str) -> None:
    """Stores below one prefix have one identity, which a restore replaces; another prefix has another one."""
    one, two = await asyncio.gather(open_store(url), open_store(url))
    elsewhere = await open_store(f"{url}-2")
    assert one.identity == two.identity != elsewhere.identity
    await one.take_identity("restored")
    assert one.identity == "restored"
    again = await open_store(url)
    assert again.identity == "restored"
    for store in (one, two, elsewhere, again):
        await store.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"subjects": ["somewhere.else.of.tests"]}, "belongs to another program"),
        ({"max_msgs_per_subject": 5}, "has max_msgs_per_subject 5, and -1 is needed"),
        ({"allow_rollup_hdrs": False}, "has allow_rollup_hdrs"),
        ({"max_age": 3_600_000_000_000}, "has max_age"),
        ({"discard": "old"}, "has discard old"),
        ({"allow_atomic": False}, "has allow_atomic"),
    ],
)
def test_streams_with_other_settings_are_refused(url: str, settings: dict[str, Any], sentence: str) -> None:
    """A stream that would lose records, and one of another program, are refused and not changed."""
    asyncio.run(create_stream(url, **settings))
    assert sentence in refused(url, InvalidInput)


def test_later_formats_are_refused(url: str) -> None:
    """A record, an identity or a session of a later format is refused, and damaged ones are reported."""
    asyncio.run(create_stream(url))
    asyncio.run(write_message(url, "identity", b'{"format": 3}'))
    assert "format version 3" in refused(url, UnknownFormat)
    asyncio.run(write_message(url, "identity", b"{"))
    assert "identity" in refused(url, CorruptRecord)
    asyncio.run(write_message(url, "identity", b'{"format": 1, "identity": "i"}'))
    asyncio.run(write_message(url, "r.a", b"\x91\x02"))
    assert "format version 2" in refused(url, UnknownFormat)
    asyncio.run(write_message(url, "r.a", b"\xff"))
    refused(url, CorruptRecord)


def test_deleted_records_stay_deleted(tmp_path: Path) -> None:
    """A server that is killed after the message of a deletion was dropped does not return the record."""
    key = Key("/a")

    async def write(url: str) -> None:
        store = await open_store(url)
        for number in range(3):
            await store.put(Put(key, b"%d" % number, Expect.ANY))
        await store.put(Put(Key("/b"), b"kept", Expect.ANY))
        await store.delete(key, Expect.ANY)
        layout = store._stream.layout
        await store.connection.api(f"STREAM.PURGE.{layout.stream}", {"filter": layout.record(("/a", "/a"))})
        await store.close()

    async def read(url: str) -> None:
        store = await open_store(url)
        assert await store.get(key) is None
        kept = await store.get(Key("/b"))
        assert kept is not None
        assert kept.value == b"kept"
        await store.put(Put(key, b"again", Expect.ABSENT))
        await store.close()

    with Nats(tmp_path) as servers:
        url = f"nats://{servers.hosts}/tests"
        asyncio.run(write(url))
        servers.stop()
        servers.start()
        asyncio.run(read(url))


def test_limits_are_refused_in_one_sentence(tmp_path: Path) -> None:
    """An account that may not have the stream, and replicas that there are no servers for, are reported."""
    account = 'accounts { A { jetstream { max_streams: 1 }, users: [ { user: "a", password: "secret" } ] } }'
    with Nats(tmp_path, setup=Setup(lines=(account,))) as servers:
        url = f"nats://a:secret@{servers.hosts}"
        asyncio.run(_open_and_close(f"{url}/first"))
        sentence = refused(f"{url}/second", InvalidInput)
        assert "refuse the stream second-records with 1 replicas" in sentence
        assert "secret" not in sentence
        assert "with 3 replicas" in refused(f"{url}/third", InvalidInput, replicas=3)


async def _open_and_close(url: str, **options: Any) -> bool:
    store = await open_store(url, **options)
    await store.close()
    return bool(IDurableStore.providedBy(store))


def test_durable_only_if_it_is(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """One replica counts as durable if the operator says that the servers sync each message."""
    with caplog.at_level(logging.WARNING):
        assert not asyncio.run(_open_and_close(url))
        assert asyncio.run(_open_and_close(url, sync_always=True))


async def test_a_stream_that_was_made_again_is_noticed(url: str) -> None:
    """A store whose stream was deleted, also if another one took its place, does not mix the two."""
    store = await open_store(url)
    await store.put(Put(Key("/a"), b"", Expect.ABSENT))
    await store.connection.api(f"STREAM.DELETE.{store._stream.layout.stream}")
    other = await open_store(url)
    with pytest.raises(Closed, match="deleted and made again"):
        await store.get(Key("/a"))
    assert await other.get(Key("/a")) is None
    await other.close()
    await store.close()


async def test_too_large(url: str) -> None:
    """A record that the servers would not accept, and a step of too many parts, are refused before they are sent."""
    store = await open_store(url)
    with pytest.raises(InvalidInput, match="max_payload"):
        await store.put(Put(Key("/a"), bytes(1 << 20), Expect.ABSENT))
    await store.put(Put(Key("/a"), bytes((1 << 20) - 5_000), Expect.ABSENT))
    with pytest.raises(InvalidInput, match="at most 1000 parts"):
        await store.apply(Step(deletes=tuple(Delete(Key(f"/{n}", "p"), 1) for n in range(1_001))))
    await store.close()
