"""Leases end with their session: a holder never relies on a lease that another can have, and no end is missed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import LeaseHeld, OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.model import Check, Expect, Key, Put, Step
from txnframework_zookeeper._metadata_store import ZooKeeperMetadataStore, open_metadata_store
from txnframework_zookeeper._options import MetadataOptions
from txnframework_zookeeper.connection._session import SessionState
from txnframework_zookeeper.testing._clients import WAIT_S, Seen, expire, wait_for_connections
from txnframework_zookeeper.testing.servers.zookeeper import ZooKeeper as Ensemble

QUICK = MetadataOptions(session_ttl_ms=1_200, connect_timeout_ms=60_000)


async def opened(stack: AsyncExitStack, url: str, options: MetadataOptions | None = None) -> ZooKeeperMetadataStore:
    store = await open_metadata_store(url, SystemEnvironment(), options or MetadataOptions())
    stack.push_async_callback(store.close)
    return store


async def test_a_lease_ends_with_its_session(url: str) -> None:
    """The holder is notified, waiters wake, the next holder's number is higher, and a check of the old lease fails."""
    async with AsyncExitStack() as stack:
        one, two = await opened(stack, url), await opened(stack, url)
        held = await one.acquire_lease("name", "one")
        with pytest.raises(LeaseHeld, match="held by one") as refused:
            await two.acquire_lease("name", "two")
        watch = await two.watch(refused.value.key)
        record = await two.get(held.key)
        assert record is not None
        assert record.version == held.version
        partition = held.key.path
        await one.apply(Step((Check(held.key, held.version),), (Put(Key("/a", partition), b"", Expect.ANY),)))
        await expire(one.zookeeper)
        async with asyncio.timeout(WAIT_S):
            await held.lost()
            await watch.changed()
        again = await two.acquire_lease("name", "two")
        assert again.fencing > held.fencing
        with pytest.raises(VersionMismatch):
            await one.apply(Step((Check(held.key, held.version),), (Put(Key("/a", partition), b"", Expect.ANY),)))
        await held.release()
        assert await two.get(held.key) is not None


async def test_a_lease_is_kept_while_its_session_goes_on(url: str) -> None:
    """A broken connection ends no lease; the same holder gets the lease again, another one does not."""
    async with AsyncExitStack() as stack:
        store = await opened(stack, url)
        held = await store.acquire_lease("name", "one")
        seen = Seen(store.zookeeper)
        store.zookeeper.session.cut()
        await seen.until(SessionState.SUSPENDED, SessionState.BACK)
        assert (await store.acquire_lease("name", "one")).fencing == held.fencing
        with pytest.raises(LeaseHeld):
            await store.acquire_lease("name", "two")
        await held.release()
        assert (await store.acquire_lease("name", "two")).fencing > held.fencing
        await asyncio.wait_for(held.lost(), WAIT_S)


def noted(store: ZooKeeperMetadataStore) -> list[float]:
    """Return until when a store relies on its leases, and note there each time that it hears from the servers."""
    leases = store._leases
    heard, found = leases._extend, [leases._valid_until]

    def hear(started: float) -> None:
        heard(started)
        found.append(leases._valid_until)

    leases._extend = hear  # type: ignore[method-assign]
    return found


async def test_a_holder_that_hears_nothing_gives_up_before_its_session_can_end(server: Ensemble) -> None:
    """The holder gives up by its own clock, because a silent server does not report the end of a session."""
    async with AsyncExitStack() as stack:
        # Long enough for a server that answers slowly beside other tests to answer within a part of it.
        options = MetadataOptions(session_ttl_ms=2_400, connect_timeout_ms=60_000)
        store = await opened(stack, f"zookeeper://{server.hosts}/a", options)
        timeout_s = store.zookeeper.session.timeout_ms / 1000
        loop = asyncio.get_running_loop()
        for _ in range(10):  # a process that is held up for longer than that loses it
            held = await store.acquire_lease("name", "one")
            # Kept alive for longer than a session lives without a heartbeat.
            await asyncio.sleep(timeout_s * 1.5)
            if (await store.acquire_lease("name", "one")).fencing == held.fencing:
                break
        else:
            pytest.fail("the lease was lost each time")
        relied_until = noted(store)
        server.servers[0].pause()
        started = loop.time()
        try:
            await asyncio.wait_for(held.lost(), WAIT_S)
            # By its timer: when this test runs again is up to the machine.
            assert relied_until[-1] < started + timeout_s
        finally:
            server.servers[0].resume()
        # It was given up here, so the same holder gets another one, though the session may have gone on.
        again = await store.acquire_lease("name", "one")
        assert again.fencing > held.fencing


async def test_an_acquisition_whose_reply_is_lost_is_decided_by_looking(url: str) -> None:
    """The lease is either held by this process or free; it is never held without the holder's knowledge."""
    async with AsyncExitStack() as stack:
        store, other = await opened(stack, url), await opened(stack, url)
        for turn in range(10):
            seen = Seen(store.zookeeper)
            multi = store.zookeeper.multi
            asked = asyncio.Event()

            async def cutting(
                *arguments: object, multi: object = multi, asked: asyncio.Event = asked, turns: int = turn * 3
            ) -> object:
                sending = asyncio.ensure_future(multi(*arguments))  # type: ignore[operator]
                if not asked.is_set():
                    asked.set()
                    # Through the thread, and then some turns of the loop later or earlier than the reply.
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    store.zookeeper.session.cut()
                return await sending

            store.zookeeper.multi = cutting  # type: ignore[method-assign,assignment]
            try:
                held = await store.acquire_lease("name", "one")
            except OutcomeUnknown:
                held = await store.acquire_lease("name", "one")
            finally:
                store.zookeeper.multi = multi  # type: ignore[method-assign]
            with pytest.raises(LeaseHeld):
                await other.acquire_lease("name", "two")
            await held.release()
            assert await other.get(held.key) is None
            if SessionState.SUSPENDED in seen.states:
                await seen.until(SessionState.SUSPENDED, SessionState.BACK)


async def test_a_killed_holders_lease_ends_by_itself(server: Ensemble) -> None:
    """The lease ends when the session has timed out."""
    async with AsyncExitStack() as stack:
        url = f"zookeeper://{server.hosts}/a"
        one, two = await opened(stack, url, QUICK), await opened(stack, url, QUICK)
        held = await one.acquire_lease("name", "one")
        watch = await two.watch(held.key)
        await one.zookeeper.abandon()
        async with asyncio.timeout(WAIT_S):
            # On a slow machine it may have timed out before it was watched.
            while await two.get(held.key) is not None:
                await watch.changed()
        assert (await two.acquire_lease("name", "two")).fencing > held.fencing


async def test_a_lease_is_not_taken_while_there_is_no_connection(server: Ensemble) -> None:
    """The wait is bounded."""
    async with AsyncExitStack() as stack:
        store = await opened(stack, f"zookeeper://{server.hosts}/a", QUICK)
        wait_for_connections(store.zookeeper, 500)
        server.stop()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(store.acquire_lease("name", "one"), WAIT_S)
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(WAIT_S):
            while True:
                with suppress(Unavailable):
                    await store.acquire_lease("name", "one")
                    return
