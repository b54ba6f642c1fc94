"""What each sslmode accepts of a server with a self-signed certificate."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from txnframework.errors import InvalidInput

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="there is no openssl to make a certificate with")

# What a client sends first, and what a server says to it that goes on in TLS.
SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a certificate for ``localhost``, with its key in the same directory."""
    directory = tmp_path_factory.mktemp("tls")
    own = directory / "server.crt"
    subprocess.run(
        [
            str(OPENSSL), "req", "-new", "-x509", "-days", "2", "-nodes", "-newkey", "rsa:2048",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
            "-keyout", str(directory / "server.key"), "-out", str(own),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return own


class Front:
    """Adds TLS to a server that was built without it, and counts connections with and without TLS."""

    def __init__(self, target: tuple[str, int], certificate: Path) -> None:
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self.encrypted = self.plain = 0
        self._serving: set[asyncio.Task[Any] | None] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """Listen for a block; yield the port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            # Connections that it still serves, before the server behind it closes, would disturb a later test.
            serving = [task for task in self._serving if task is not None]
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        self._serving.add(task := asyncio.current_task())
        try:
            first = await reader.readexactly(len(SSL_REQUEST))
            if first == SSL_REQUEST:
                writer.write(b"S")
                await writer.start_tls(self._context)
                self.encrypted += 1
                first = b""
            else:
                self.plain += 1
            behind, before = await asyncio.open_connection(*self._target)
            ends.append(before)
            before.write(first)
            await asyncio.gather(_hand_on(reader, before), _hand_on(behind, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._serving.discard(task)
            for end in ends:
                end.transport.abort()


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    ("query", "host", "expected"),
    [
        ("", "localhost", "encrypted"),
        ("sslmode=prefer", "localhost", "encrypted"),
        ("sslmode=require", "127.0.0.1", "encrypted"),
        ("sslmode=disable", "localhost", "plain"),
        ("sslmode=allow", "localhost", "plain"),
        ("sslmode=verify-ca&sslrootcert={}", "127.0.0.1", "encrypted"),
        ("sslmode=verify-full&sslrootcert={}", "localhost", "encrypted"),
        ("sslmode=verify-full&sslrootcert={}", "127.0.0.1", "use the host name of the certificate"),
        ("sslmode=require&sslrootcert={}", "127.0.0.1", "encrypted"),
    ],
)
def test_what_a_mode_accepts(wire: Any, certificate: Path, query: str, host: str, expected: str) -> None:
    """
    As in libpq: verify-ca needs the authority, verify-full also the name; require checks an authority if it has one.
    """
    asyncio.run(_connect(wire, certificate, query.format(certificate), host, expected))


def test_an_authority_that_is_not_known(wire: Any, certificate: Path, tmp_path: Path) -> None:
    """A certificate that the given authority has not signed is refused."""
    other = tmp_path / "other.crt"
    subprocess.run(
        [
            str(OPENSSL), "req", "-new", "-x509", "-days", "2", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=other",
            "-keyout", str(tmp_path / "other.key"), "-out", str(other),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    asyncio.run(_connect(wire, certificate, f"sslmode=verify-full&sslrootcert={other}", "localhost", "sslrootcert"))


def test_no_authority(wire: Any, certificate: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Verification without an authority's certificate fails with the name of the missing file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    asyncio.run(_connect(wire, certificate, "sslmode=verify-full", "localhost", "root.crt"))


async def test_cancelling_by_tls(wire: Any, certificate: Path) -> None:
    """A cancelled caller's statement is ended over TLS as well."""
    front = Front(wire.address, certificate)
    async with front.listening() as port:
        url = wire.url_with(address=("localhost", port), query="sslmode=require")
        async with wire.connected(url, connections_max=1) as connections:
            async with connections.lend() as connection:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await connection.read("SELECT pg_sleep(600)")
            async with connections.lend() as again:
                assert again is connection
                assert await again.read("SELECT 1") == [(1,)]
        assert (front.encrypted, front.plain) == (2, 0)


async def _connect(wire: Any, certificate: Path, query: str, host: str, expected: str) -> None:
    front = Front(wire.address, certificate)
    async with asyncio.timeout(60), front.listening() as port:
        url = wire.url_with(address=(host, port), query=query)
        async with wire.connected(url) as connections:
            if expected not in ("encrypted", "plain"):
                with pytest.raises(InvalidInput, match=expected):
                    await connections.connect()
                return
            async with connections.lend() as connection:
                assert await connection.read("SELECT 1") == [(1,)]
                assert (front.encrypted, front.plain) == ((1, 0) if expected == "encrypted" else (0, 1))
