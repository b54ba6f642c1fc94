"""Reads see every write confirmed before them, by any process, at any server."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from txnframework_zookeeper.connection._bridge import ServerRole
from txnframework_zookeeper.connection._requests import CreateNode, SetNode, Sync
from txnframework_zookeeper.testing._clients import opened
from txnframework_zookeeper.testing.servers.zookeeper import ZooKeeper as Ensemble


async def test_reads_see_what_was_confirmed_at_another_server(ensemble: Ensemble) -> None:
    """Followers lag behind their leader, and the leader lags behind the confirmations of followers."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(opened(f"zookeeper://{server.host}/current")) for server in ensemble.servers
        ]
        await clients[0].multi([CreateNode("/a")])
        for n in range(500):
            await clients[n % 3].multi([SetNode("/a", b"%d" % n)])
            for found in await asyncio.gather(*(reader.get("/a") for reader in clients)):
                assert found is not None
                assert found.data == b"%d" % n


async def test_a_client_is_served_by_a_follower(ensemble: Ensemble) -> None:
    """On a follower ``sync`` has an effect, and writes do not wait for reads."""
    for _ in range(6):
        async with opened(f"zookeeper://{ensemble.hosts}/roles") as client:
            assert client.session.role is ServerRole.FOLLOWER


async def test_reads_at_the_leader_wait_for_a_write(ensemble: Ensemble) -> None:
    """At the leader, a read follows a write, because ``sync`` alone sometimes gives an outdated answer."""
    async with opened(f"zookeeper://{ensemble.leader().host}/roles") as client:
        assert client.session.role is ServerRole.LEADER
        before = await client.multi([CreateNode("/a"), SetNode("/a", b"")])
        await client.get("/a")
        assert await client.multi([SetNode("/a", b"")]) == before + 2


async def test_reads_of_one_turn_share_one_sync(ensemble: Ensemble) -> None:
    """All reads that began before the sync share it; a single server needs no sync."""
    async with opened(f"zookeeper://{ensemble.hosts}/shared") as client:
        sent: list[object] = []
        submit = client.session.submit
        client.session.submit = lambda request, reply: (sent.append(request), submit(request, reply))  # type: ignore[method-assign,assignment]
        await asyncio.gather(*(client.get("/") for _ in range(50)))
        assert [type(request) for request in sent].count(Sync) == 1
        assert isinstance(sent[0], Sync)
        sent.clear()
        await asyncio.gather(*(client.get("/", is_current=False) for _ in range(50)))
        assert len(sent) == 50
