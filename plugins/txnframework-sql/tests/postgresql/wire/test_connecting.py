"""A failed connection raises one sentence that says what to do, and never shows a password."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput, TxnFrameworkError, Unavailable
from txnframework.testing.servers.proxy import Side
from txnframework_sql._options import PostgresqlOptions
from txnframework_sql.postgresql._pool import Pool
from txnframework_sql.postgresql._server import locate

SECRET = "s3cr3tpart"
LOGIN = f"somebody:{SECRET}"


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """Collect everything that is logged, also by the driver and the event loop."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(before)


async def failure(url: str, **options: Any) -> TxnFrameworkError:
    """Return the error of the first use of a pool."""
    connections = Pool(locate(url), SystemEnvironment(), PostgresqlOptions(**options))
    try:
        with pytest.raises(TxnFrameworkError) as raised:
            async with connections.lend():
                pass
    finally:
        await connections.close()
    return raised.value


def check(error: TxnFrameworkError, said: io.StringIO, *secrets: str) -> None:
    """Assert that no text of the error, its causes, its traceback or a log contains a password."""
    text = "".join(traceback.format_exception(error)) + said.getvalue()
    while error is not None:
        text += f"{error} {error!r} {error.args}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)  # type: ignore[assignment]
    for secret in (SECRET, *secrets):
        assert secret not in text
    assert "\n" not in str(error)


@asynccontextmanager
async def answering(data: bytes) -> AsyncIterator[tuple[str, int]]:
    """Listen, and answer with data that is not PostgreSQL's protocol."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()


URLS = [
    # the wrong password, user, database
    ({"login": LOGIN}, InvalidInput, "password is missing or wrong"),
    ({"login": "alice"}, InvalidInput, "password is missing or wrong; set it in the URL, in PGPASSWORD or"),
    ({"path": "/nowhere"}, InvalidInput, "createdb"),
    # what the server does not have or do
    ({"query": "sslmode=require"}, InvalidInput, "does not support PostgreSQL's TLS"),
    ({"query": "target_session_attrs=standby"}, Unavailable, "target_session_attrs"),
    ({"query": "options=-c%20nonsense%3D1"}, InvalidInput, "nonsense"),
    # the wrong place
    ({"address": ("127.0.0.1", 1)}, Unavailable, "cannot connect to"),
    ({"address": ("host.invalid", 5432)}, Unavailable, "cannot connect to"),
    ({"address": (f"{'x' * 70}.invalid", 5432)}, InvalidInput, "its host"),
    # what cannot be read or used
    ({"query": "sslmode=verify-full&sslrootcert=/no/such/file"}, InvalidInput, "/no/such/file"),
    ({"query": "sslmode=prefer&ssl_min_protocol_version=SSLv3"}, InvalidInput, "parameters of"),
    ({"query": "target_session_attrs=nonsense"}, InvalidInput, "target_session_attrs"),
    ({"query": f"sslmode=disable&krbsrvname=x&gsslib={SECRET}"}, InvalidInput, "gsslib"),
    ({"query": "sslmode=require&sslcert=/no/such/file&sslpassword=" + SECRET}, InvalidInput, "sslcert"),
]


@pytest.mark.parametrize(("change", "expected", "sentence"), URLS)
async def test_no_connection(
    wire: Any, said: io.StringIO, change: dict[str, Any], expected: type[TxnFrameworkError], sentence: str
) -> None:
    """Each kind of mistake has its own sentence with the server's URL; InvalidInput if only the user can correct it."""
    asyncio.get_running_loop().set_debug(True)
    url = wire.url_with(**change)
    error = await failure(url)
    assert isinstance(error, expected)
    assert sentence in str(error)
    assert "postgresql://" in str(error)
    assert wire.password
    check(error, said, wire.password)


async def test_user_without_entry(wire: Any, said: io.StringIO) -> None:
    """The error of a user without access names the setting that grants it."""
    role = f"{wire.name}_none"
    await wire.ask(f"CREATE ROLE {role} NOLOGIN PASSWORD '{SECRET}'")
    try:
        error = await failure(wire.url_with(login=f"{role}:{SECRET}"))
    finally:
        await wire.ask(f"DROP ROLE {role}")
    assert isinstance(error, InvalidInput)
    assert "pg_hba.conf" in str(error)
    check(error, said)


async def test_a_right_that_is_missing(wire: Any, said: io.StringIO) -> None:
    """A statement that the user may not execute fails with the missing right."""
    role = f"{wire.name}_poor"
    await wire.ask(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'")
    await wire.ask("CREATE TABLE public.kept (number int)")
    try:
        url = wire.url_with(login=f"{role}:{SECRET}")
        async with wire.connected(url) as connections, connections.lend() as connection:
            with pytest.raises(InvalidInput, match="let the owner grant it") as raised:
                await connection.write("INSERT INTO public.kept VALUES (1)")
    finally:
        await wire.ask(f"DROP ROLE {role}")
    check(raised.value, said)


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"N", b"E" + b"\0" * 30])
async def test_something_else_answers(wire: Any, said: io.StringIO, data: bytes) -> None:
    """A service that is not PostgreSQL is refused."""
    async with answering(data) as address:
        error = await failure(wire.url_with(address=address, login=LOGIN), connect_timeout_ms=2_000)
    assert isinstance(error, Unavailable | InvalidInput)
    check(error, said)


async def test_nothing_answers(wire: Any, said: io.StringIO) -> None:
    """A server that accepts connections without replying is given up after ``connect_timeout_ms``."""
    async with wire.proxied() as (connections, proxy):
        proxy.drop(Side.SERVER)
        error = await failure(wire.url_with(address=proxy.address, login=LOGIN), connect_timeout_ms=50)
        assert isinstance(error, Unavailable)
        assert "connect_timeout_ms" in str(error)
        check(error, said)
        del connections


def test_the_environment(wire: Any, said: io.StringIO, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """User and password come from PGUSER, PGPASSWORD or PGPASSFILE if the URL omits them, and are not shown."""
    assert wire.user
    assert wire.password
    host, port = wire.address
    url = f"postgresql://{host}:{port}/{wire.name}"

    async def works() -> None:
        async with wire.connected(url) as connections, connections.lend() as connection:
            assert await connection.read("SELECT 1") == [(1,)]
            assert connections.shown_url == url

    async def fails() -> None:
        error = await failure(url)
        assert "password is missing or wrong" in str(error)
        check(error, said, wire.password)

    monkeypatch.setenv("PGUSER", wire.user)
    monkeypatch.setenv("PGPASSWORD", wire.password)
    wire.run(works)
    monkeypatch.setenv("PGPASSWORD", SECRET)
    wire.run(fails)
    monkeypatch.delenv("PGPASSWORD")
    passwords = tmp_path / "passwords"
    passwords.touch(mode=0o600)
    passwords.write_text(f"{host}:{port}:*:{wire.user}:{wire.password}\n")
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    wire.run(works)
    passwords.write_text(f"{host}:{port}:*:{wire.user}:{SECRET}\n")
    wire.run(fails)


@pytest.mark.parametrize("name", ["PGPORT", "PGSSLMODE", "PGTARGETSESSIONATTRS", "PGSSLNEGOTIATION"])
async def test_nonsense_in_the_environment(
    wire: Any, said: io.StringIO, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An invalid environment variable raises InvalidInput, and its value is not shown."""
    monkeypatch.setenv(name, SECRET)

    with pytest.raises(InvalidInput) as raised:
        raise await failure("postgresql:///db" if name == "PGPORT" else wire.url)
    check(raised.value, said)


async def test_several_hosts(wire: Any) -> None:
    """The first serving host is used; hosts that refuse or do not reply, and standbys, are skipped."""
    login, _, rest = wire.url.removeprefix("postgresql://").rpartition("@")
    async with wire.proxied() as (_, proxy):
        proxy.stall()
        silent = f"127.0.0.1:{proxy.address[1]}"
        url = f"postgresql://{login}@127.0.0.1:1,{silent},{rest}?target_session_attrs=read-write"
        # The one that serves has no more time than the silent one.
        async with wire.connected(url, connect_timeout_ms=3_000) as connections, connections.lend() as connection:
            assert await connection.read("SELECT 1") == [(1,)]
            assert connections.shown_url.partition("@")[2] == f"127.0.0.1:1,{silent},{rest}"


async def test_no_password(wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a missing password says where to set it."""
    monkeypatch.setenv("PGPASSFILE", "/no/such/file")
    monkeypatch.delenv("PGPASSWORD", raising=False)

    error = await failure(wire.url_with(login=wire.user))
    assert isinstance(error, InvalidInput)
    assert "PGPASSWORD" in str(error)


async def test_nothing_is_shown_of_what_is_held(wire: Any) -> None:
    """No object of the plugin with a password shows it when it is printed."""
    async with wire.connected() as connections, connections.lend() as connection:
        password = wire.password
        assert password
        shown = [connections, connection, connections.server, connections.listener, *vars(connection).values()]
        gc.collect()
        assert password not in " ".join(f"{thing} {thing!r}" for thing in shown)
