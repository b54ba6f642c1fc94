"""Replicators between real servers that are killed at each stage; run on request, because sessions have to expire."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from geo_world import NAMES, by_key, topics_of, torn

import txnframework
from txnframework import Client
from txnframework.cli import main
from txnframework_geo import ID_HEADER, Stage

pytestmark = pytest.mark.slow
PATIENCE_S = 600
CHILD = """
import asyncio, os, signal, sys
import txnframework
from geo_world import topics_of
from txnframework_geo import Replication, Replicator, Stage

async def reached(stage):
    if stage is Stage[sys.argv[1]]:
        os.kill(os.getpid(), signal.SIGKILL)

async def replicate():
    async with txnframework.open("a.toml") as source, txnframework.open("b.toml") as target:
        await Replicator(source, target, Replication(topics_of("topic")), reached=reached).run()

asyncio.run(replicate())
"""
"""Replicates, and kills itself at a stage."""


def deployment(kind: str, stack: ExitStack) -> str:
    """Return the configuration of a new deployment."""
    if kind == "nats":
        from txnframework_nats.testing import remove_streams
        from txnframework_nats.testing.servers.nats import shared_hosts

        url = f"nats://{shared_hosts()}/geo-{secrets.token_hex(8)}"
        stack.callback(lambda: asyncio.run(remove_streams(url)))
        return f'[metadata]\nurl = "{url}"\n'
    from txnframework_sql.testing.servers.databases import fresh_database

    database = stack.enter_context(fresh_database())
    if kind == "postgresql":
        return f'[metadata]\nurl = "{database}"\n'
    from txnframework_zookeeper.testing.servers.zookeeper import shared_hosts as ensemble

    return f'[metadata]\nurl = "zookeeper://{ensemble()}/geo/{secrets.token_hex(8)}"\n[ledger]\nurl = "{database}"\n'


@pytest.fixture(params=["postgresql", "zookeeper", "nats"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stand in a folder with configurations of two deployments on servers of one kind."""
    with ExitStack() as stack:
        for name in ("a", "b"):
            (tmp_path / f"{name}.toml").write_text(deployment(request.param, stack))
        monkeypatch.chdir(tmp_path)
        yield tmp_path


async def write(client: Client, first: int) -> None:
    """Send three transactions of four messages, and abort the last."""
    producers = [await client.producer(name) for name in NAMES]
    for number in range(first, first + 3):
        txn = client.transaction()
        await txn.begin()
        for part in range(2):
            for producer in producers:
                await producer.send(b"%d.%d" % (number, part), key=b"%d" % (number % 2), txn=txn)
        await (txn.abort() if number % 3 == 2 else txn.commit())
    for producer in producers:
        await producer.close()


@pytest.mark.usefixtures("folder")
def test_killed_at_each_stage() -> None:
    async def prepare(number: int) -> None:
        async with txnframework.open("a.toml") as source:
            for name in NAMES:
                await source.create_topic(name, segments=2, exist_ok=True)
            await write(source, 3 * number)

    async def check() -> None:
        async with txnframework.open("a.toml") as source, txnframework.open("b.toml") as target:
            assert not await torn(target, topics_of("topic"))
            for name in NAMES:
                original = [message async for message in await source.reader(name)]
                copied = [message async for message in await target.reader(name)]
                assert len(original) == 4 * len(Stage)
                assert sorted(str(one.id) for one in original) == sorted(
                    one.headers[ID_HEADER].decode() for one in copied
                )
                assert by_key(original) == by_key(copied)

    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    for number, stage in enumerate(Stage):
        asyncio.run(prepare(number))
        killed = subprocess.run(
            [sys.executable, "-c", CHILD, stage.name], env=environment, timeout=PATIENCE_S, check=False
        )
        assert killed.returncode == -signal.SIGKILL
    assert main(["replicate", "--from", "a.toml", "--to", "b.toml", "--once", *NAMES]) == 0
    asyncio.run(check())
