"""Servers of a cluster that are killed and paused: nothing that was confirmed is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from msgspec.structs import replace

from txnframework.environment import SystemEnvironment
from txnframework.errors import OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.interfaces import IDurableStore
from txnframework.model import Expect, Key, KeyRange, Put, PutSequential, Step
from txnframework_nats._options import MetadataOptions
from txnframework_nats.records._metadata_store import NatsMetadataStore, open_metadata_store
from txnframework_nats.testing.servers.nats import Nats

COUNTER = Key("/counter")
STREAM = "tests-records"
BOUND_S = 60.0


async def open_store(cluster: Nats, **options: int) -> NatsMetadataStore:
    """Open a store of the cluster."""
    settings = {"request_timeout_ms": 2_000, "connect_timeout_ms": 20_000} | options
    return await open_metadata_store(
        f"nats://{cluster.hosts}/tests",
        SystemEnvironment(),
        MetadataOptions(**settings),  # type: ignore[arg-type]
    )


async def count_up(store: NatsMetadataStore, enough: asyncio.Event) -> tuple[int, int]:
    """Add one to the counter until ``enough``; return how often that was confirmed, and how often it is unknown."""
    confirmed = unknown = 0
    while not enough.is_set():
        with suppress(VersionMismatch, Unavailable):
            record = await store.get(COUNTER)
            assert record is not None
            try:
                await store.put(Put(COUNTER, b"%d" % (int(record.value) + 1), record.version))
            except OutcomeUnknown:
                unknown += 1
            else:
                confirmed += 1
    return confirmed, unknown


@pytest.mark.parametrize("failure", ["kill", "pause"])
async def test_leader_lost_in_mid_write(cluster: Nats, failure: str) -> None:
    """While the leader of the stream is killed or paused, each confirmed change is applied once."""
    stores = [await open_store(cluster) for _ in range(3)]
    assert IDurableStore.providedBy(stores[0])
    await stores[0].put(Put(COUNTER, b"0", Expect.ABSENT))
    enough = asyncio.Event()
    counting = [asyncio.create_task(count_up(store, enough)) for store in stores]
    for _ in range(2):
        leader = await asyncio.to_thread(cluster.leader_of, STREAM)
        await asyncio.to_thread(leader.kill if failure == "kill" else leader.pause)
        await asyncio.to_thread(cluster.leader_of, STREAM)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(leader.start if failure == "kill" else leader.resume)
        await asyncio.to_thread(cluster.wait_until_serving)
    enough.set()
    async with asyncio.timeout(BOUND_S):
        outcomes = await asyncio.gather(*counting)
    record = await stores[0].get(COUNTER)
    assert record is not None
    confirmed = sum(one for one, _ in outcomes)
    unknown = sum(two for _, two in outcomes)
    assert confirmed <= int(record.value) <= confirmed + unknown
    assert confirmed > 0
    for store in stores:
        await store.close()


async def test_majority_lost(cluster: Nats) -> None:
    """Without a majority, reads and writes fail in a bounded time; nothing confirmed is lost, and work continues."""
    store = await open_store(cluster)
    writes = [Step(puts=(PutSequential(Key("/op"), b"%d" % number),)) for number in range(20)]
    keys = [(await store.apply(write)).records[0].key for write in writes]
    patient = store.connection.options
    store.connection.options = replace(patient, connect_timeout_ms=1_500)
    for server in cluster.servers:
        server.kill()
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await store.put(Put(Key("/lost"), b"", Expect.ANY))
    with pytest.raises(Unavailable):
        await store.get(COUNTER)
    store.connection.options = patient
    await asyncio.to_thread(cluster.start)
    async with asyncio.timeout(BOUND_S):
        while True:
            with suppress(Unavailable):
                page = await store.scan(KeyRange("/op/", "/op0"), 100)
                break
    assert [record.key for record in page.records] == keys
    await store.close()


async def test_reads_see_what_was_confirmed_at_another_server(cluster: Nats) -> None:
    """Clients of different servers read each other's confirmed writes at once, and their watches wake."""
    stores = [
        await open_metadata_store(
            f"nats://{server.host}/tests", SystemEnvironment(), MetadataOptions(replicas=3, sync_always=True)
        )
        for server in cluster.servers
    ]
    version: int | Expect = Expect.ABSENT
    for number in range(60):
        writer, reader = stores[number % 3], stores[(number + 1) % 3]
        watch = await reader.watch(COUNTER)
        version = await writer.put(Put(COUNTER, b"%d" % number, version))
        record = await reader.get(COUNTER)
        assert record is not None
        assert (record.value, record.version) == (b"%d" % number, version)
        async with asyncio.timeout(BOUND_S):
            await watch.changed()
        await watch.close()
    for store in stores:
        await store.close()
