"""A deployment that moves from server to server, over all pairs of kinds, shows the same at the end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from copied_deployment import Deployments, Scene

from txnframework.testing.clock import VirtualEnvironment

if TYPE_CHECKING:
    from conftest import Stores

WAY = ("zookeeper", "zookeeper", "postgresql", "postgresql", "nats", "zookeeper", "nats", "postgresql", "zookeeper")
"""Each kind is followed once by each kind; that streams are copied to other streams has its own test."""

PATIENCE_S = 900
"""Longer than of other tests: there are eight copies."""


class Places:
    """Empty stores on servers that the tests share. ZooKeeper keeps records, and the messages are in PostgreSQL."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.streams: list[str] = []

    def make(self, kind: str) -> dict[str, str]:
        """Return the URLs of the stores of a new deployment."""
        if kind == "nats":
            from txnframework_nats.testing.servers.nats import shared_hosts

            self.streams.append(f"nats://{shared_hosts()}/copies-{secrets.token_hex(8)}")
            return {"metadata": self.streams[-1], "ledger": self.streams[-1]}
        from txnframework_sql.testing.servers.databases import fresh_database

        database = self._stack.enter_context(fresh_database())
        if kind == "postgresql":
            return {"metadata": database, "ledger": database}
        from txnframework_zookeeper.testing.servers.zookeeper import shared_hosts as ensemble

        return {"metadata": f"zookeeper://{ensemble()}/copies/{secrets.token_hex(8)}", "ledger": database}


@pytest.fixture
def places(zookeeper: Stores) -> Iterator[Places]:
    from txnframework_nats.testing import remove_streams

    with ExitStack() as stack:
        made = Places(stack)
        try:
            yield made
        finally:
            for url in made.streams:
                zookeeper.run(remove_streams(url))


def test_a_way_over_all_pairs_of_servers(zookeeper: Stores, places: Places) -> None:
    """Each copy is the source of the next one. The first source is kept, and compared with the last copy."""
    stops = [places.make(kind) for kind in WAY]
    scene = Scene()
    clock = VirtualEnvironment()

    def between(source: dict[str, str], target: dict[str, str]) -> Deployments:
        both = Deployments(zookeeper.registry, source, target)
        both.clock = clock
        return both

    async def work() -> None:
        for number, (source, target) in enumerate(pairwise(stops)):
            both = between(source, target)
            if number == 0:
                async with both.open("source") as client:
                    await scene.play(client)
            report = await both.copy(keep_source=number == 0)
            assert report.audit is not None
            assert (report.audit.differing, report.audit.entries) == (0, report.entries)
            assert report.entries
            if number:
                await both.refuses("source")
        first_and_last = between(stops[0], stops[-1])
        assert not (await first_and_last.audit()).differing
        seen = []
        for name in ("source", "target"):
            async with first_and_last.open(name) as client:
                seen.append(await scene.observe(client, "commit"))
        assert seen[0] == seen[1]

    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
