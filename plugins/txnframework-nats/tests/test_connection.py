"""Connections: logins, TLS, one sentence for each server that cannot be used, and lost replies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import nkeys
import pytest
from msgspec.structs import replace

from txnframework.errors import Closed, InvalidInput, Unavailable
from txnframework.testing import run_ready
from txnframework.testing.servers.processes import free_ports
from txnframework.testing.servers.proxy import Proxy
from txnframework_nats._options import ConnectionOptions, locate
from txnframework_nats.connection._connection import Message, NatsConnection
from txnframework_nats.connection._failures import ReplyLost, RequestRefused
from txnframework_nats.testing.servers import security
from txnframework_nats.testing.servers.nats import Nats, Setup, shared_hosts

PATIENT = ConnectionOptions(connect_timeout_ms=60_000, request_timeout_ms=60_000)
BOUND_S = 120.0
STREAM = {"name": "tests", "subjects": ["tests.>"], "allow_atomic": True, "max_msgs_per_subject": 1}


def with_connection(
    url: str,
    use: Callable[[NatsConnection], Awaitable[None]],
    options: ConnectionOptions = PATIENT,
    variables: dict[str, str] | None = None,
) -> None:
    """Connect to a URL, and call ``use`` with the connection."""

    async def main() -> None:
        connection = await NatsConnection.open(locate(url, variables or {}), options)
        try:
            await use(connection)
        finally:
            await connection.close()

    asyncio.run(main())


async def ask(connection: NatsConnection) -> None:
    """Make sure that JetStream answers."""
    assert "limits" in await connection.api("INFO")


def refused(url: str, options: ConnectionOptions = PATIENT, variables: dict[str, str] | None = None) -> str:
    """Return the sentence with which a URL is refused."""
    with pytest.raises(InvalidInput) as caught:
        with_connection(url, ask, options, variables)
    assert "secret" not in str(caught.value)
    return str(caught.value)


def test_user(tmp_path: Path) -> None:
    """A user logs in by the password of the URL or of the environment; a wrong one is refused in one sentence."""
    with Nats(tmp_path, setup=security.user("alice", "secret-one")) as servers:
        with_connection(f"nats://alice:secret-one@{servers.hosts}/t", ask)
        with_connection(f"nats://alice@{servers.hosts}/t", ask, variables={"TXN_NATS_PASSWORD": "secret-one"})
        for url in (f"nats://alice:secret-two@{servers.hosts}/t", f"nats://{servers.hosts}/t"):
            assert refused(url).endswith("/t: the servers refused the login")
        assert "set TXN_NATS_PASSWORD" in refused(f"nats://alice@{servers.hosts}/t")


def test_token(tmp_path: Path) -> None:
    """A token comes from the environment."""
    with Nats(tmp_path, setup=security.token("secret-token")) as servers:
        with_connection(f"nats://{servers.hosts}/t", ask, variables={"TXN_NATS_TOKEN": "secret-token"})
        sentence = refused(f"nats://{servers.hosts}/t", variables={"TXN_NATS_TOKEN": "secret-other"})
        assert sentence.endswith("the servers refused the login")


def test_nkey(tmp_path: Path) -> None:
    """A user logs in by the seed in a file; a file that contains none is refused without its content."""
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    file, other = tmp_path / "user.nk", tmp_path / "other.nk"
    file.write_bytes(seed)
    other.write_text("secret")
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    with Nats(tmp_path / "data", setup=security.nkey(public)) as servers:
        url = f"nats://{servers.hosts}/t"
        with_connection(url, ask, ConnectionOptions(nkey_file=str(file)))
        assert "contains no seed" in refused(url, ConnectionOptions(nkey_file=str(other)))


def test_tls(tmp_path: Path) -> None:
    """With TLS a server must be trusted; without it a server that requires TLS is refused, and the other way round."""
    made = security.tls(tmp_path)
    with Nats(tmp_path / "data", setup=made.setup) as servers:
        url = f"nats://localhost:{servers.servers[0].port}/t"
        with_connection(url, ask, ConnectionOptions(tls=True, tls_ca=str(made.certificate)))
        assert "TLS failed" in refused(url, ConnectionOptions(tls=True))
        assert refused(url).endswith("requires TLS; set tls to true")
    sentence = refused(f"nats://{shared_hosts()}/t", ConnectionOptions(tls=True, tls_ca=str(made.certificate)))
    assert "does not require TLS" in sentence


def test_without_jetstream(tmp_path: Path) -> None:
    """Servers without JetStream are refused in one sentence."""
    with Nats(tmp_path, setup=Setup(jetstream=False)) as servers:
        assert "have no JetStream" in refused(f"nats://{servers.hosts}/t", ConnectionOptions(connect_timeout_ms=2_000))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            b'INFO {"version": "2.12.10", "max_payload": 1048576}\r\n',
            "the server has version 2.12.10, and 2.12.11 is needed",
        ),
        (b"SSH-2.0-OpenSSH\r\n", "is not a NATS server"),
    ],
    ids=["too old", "another program"],
)
async def test_other_servers(line: bytes, sentence: str) -> None:
    """A server that is too old, and one of another kind, are refused before anything is sent to them."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(line)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(InvalidInput, match=sentence):
            await NatsConnection.open(locate(f"nats://alice:secret@127.0.0.1:{port}/t"), PATIENT)


def test_nobody_there() -> None:
    """A server that cannot be reached is Unavailable, after the time that the option says."""
    (port,) = free_ports(1)
    with pytest.raises(Unavailable, match="no server could be reached"):
        with_connection(f"nats://127.0.0.1:{port}/t", ask, ConnectionOptions(connect_timeout_ms=300))


def test_messages(tmp_path: Path) -> None:
    """Messages are stored one by one or all or nothing; a refusal stores nothing; a paused server loses the reply."""

    async def use(connection: NatsConnection) -> None:
        await connection.api("STREAM.CREATE.tests", STREAM)
        first = await connection.publish(Message("tests.a", b"one"))
        last = await connection.publish_batch("b1", [Message("tests.b", b""), Message("tests.c", b"")])
        assert last == first + 2
        stale = {"Nats-Expected-Last-Subject-Sequence": str(first + 1)}
        with pytest.raises(RequestRefused) as caught:
            await connection.publish_batch("b2", [Message("tests.d", b""), Message("tests.a", b"", stale)])
        assert caught.value.is_lost_race
        assert (await connection.api("STREAM.INFO.tests"))["state"]["last_seq"] == last
        with pytest.raises(InvalidInput, match="larger than the servers accept"):
            await connection.publish(Message("tests.a", bytes(connection.max_payload + 1)))
        servers.servers[0].pause()
        connection.options = replace(PATIENT, request_timeout_ms=100)
        with pytest.raises(ReplyLost):
            await connection.publish(Message("tests.e", b""))
        connection.options = PATIENT
        servers.servers[0].resume()
        assert await connection.publish(Message("tests.f", b"")) == last + 2

    with Nats(tmp_path) as servers:
        with_connection(f"nats://{servers.hosts}/t", use)


async def test_a_reply_that_arrives_while_the_loop_is_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that arrives before the timeout is used, even if the loop was blocked past the timeout."""
    host, _, port = shared_hosts().split(",")[0].rpartition(":")
    async with Proxy((host, int(port))) as proxy:
        address = "{}:{}".format(*proxy.address)
        connection = await NatsConnection.open(locate(f"nats://{address}/t"), PATIENT)
        proxy.stall()
        asking = asyncio.ensure_future(ask(connection))
        await run_ready()
        loop = asyncio.get_running_loop()
        time = loop.time
        # As if the loop had stood still for a minute and a half.
        monkeypatch.setattr(loop, "time", lambda: time() + 90)
        await run_ready()
        proxy.restore()
        await asking
        await connection.close()


def test_killed_server(tmp_path: Path) -> None:
    """Without a server a request is Unavailable; with the server the client connects again, and tells observers."""

    async def use(connection: NatsConnection) -> None:
        seen: list[bool] = []
        restored = asyncio.Event()
        connection.observe(seen.append)
        connection.observe(lambda is_connected: restored.set() if is_connected else None)
        servers.servers[0].kill()
        connection.options = replace(PATIENT, connect_timeout_ms=100)
        with pytest.raises((Unavailable, ReplyLost)):
            await connection.api("INFO")
        with pytest.raises(Unavailable):
            await connection.api("INFO")
        connection.options = PATIENT
        await asyncio.to_thread(servers.start)
        await asyncio.wait_for(restored.wait(), BOUND_S)
        await ask(connection)
        assert seen == [False, True]

    with Nats(tmp_path) as servers:
        with_connection(f"nats://{servers.hosts}/t", use)


def test_closed() -> None:
    """After a close, and in another event loop, every request raises Closed."""

    async def open_one() -> NatsConnection:
        connection = await NatsConnection.open(locate(f"nats://{shared_hosts()}/t"), PATIENT)
        await connection.close()
        await connection.close()
        with pytest.raises(Closed):
            await connection.request("tests")
        return await NatsConnection.open(locate(f"nats://{shared_hosts()}/t"), PATIENT)

    async def use_elsewhere() -> None:
        with pytest.raises(Closed, match="another process or event loop"):
            await connection.request("tests")

    with asyncio.Runner() as runner:
        connection = runner.run(open_one())
        asyncio.run(use_elsewhere())
        runner.run(connection.close())
