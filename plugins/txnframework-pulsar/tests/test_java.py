"""Pulsar's own client for Java, with transactions; run where TXN_PULSAR_JARS names a folder with its jars."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import pulsar
import pytest
from gateway_world import World

from txnframework.testing.servers.processes import free_ports
from txnframework_sql.testing.servers.postgresql import PostgresServer

JAVA = Path(__file__).parent / "java"
PATIENCE_S = 240
MESSAGES = 1_000
KILLS = ("gateway", "client", "store", "gateway", "store", "client", "gateway")
CONFIGURATION = """
[metadata]
url = "{url}"
options = {{ session_ttl_ms = 5000 }}

[ledger]
url = "{url}"
"""


def compiled(name: str, folder: Path, jars: str = "TXN_PULSAR_JARS") -> list[str]:
    """Compile a program, and return the command that runs it; ``jars``: the variable that names their folder."""
    found = str(Path(os.environ[jars]) / "*")
    subprocess.run(["javac", "-cp", found, "-d", str(folder), str(JAVA / f"{name}.java")], check=True)
    return ["java", "-cp", os.pathsep.join((found, str(folder))), name]


def require_done(name: str, folder: Path, *arguments: str, jars: str = "TXN_PULSAR_JARS") -> None:
    """Run a program that says when it is done."""
    done = subprocess.run(
        [*compiled(name, folder, jars), *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr


def test_behaviours_of_the_client_for_java(world: World, tmp_path: Path) -> None:
    require_done("Behaviours", tmp_path, world.url)


@pytest.mark.skipif("TXN_PULSAR5_JARS" not in os.environ, reason="names no folder with the jars of client 5")
def test_behaviours_of_client_5_for_java(world: World, tmp_path: Path) -> None:
    require_done("Scalable", tmp_path, world.url, jars="TXN_PULSAR5_JARS")


def test_admin_client_for_java(tmp_path: Path) -> None:
    with World("topic", admin=("127.0.0.1", 0)) as world:
        require_done("Administration", tmp_path, world.admin_url, world.url)


@pytest.mark.parametrize("url", [url for url in [os.environ.get("TXN_PULSAR_BROKER")] if url])
def test_broker_does_the_same(url: str, tmp_path: Path) -> None:
    """The programs expect what a new broker of Apache Pulsar does, if one is named: its URL for HTTP, then its own."""
    http, broker = url.split(",")
    require_done("Behaviours", tmp_path, broker)
    require_done("Administration", tmp_path, http, broker)


class Killed:
    """A process that is killed and started again."""

    def __init__(self, command: list[str], folder: Path, name: str) -> None:
        self._command = command
        self._folder = folder
        self._output = (folder / f"{name}.txt").open("wb")
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, cwd=self._folder, stdout=self._output, stderr=self._output)

    def restart(self) -> None:
        self._process.kill()
        self._process.wait()
        self.start()


def test_exactly_once_whatever_is_killed(tmp_path: Path) -> None:
    """Gateway, client and store are killed in turn, while the client moves messages in transactions."""
    url = f"pulsar://127.0.0.1:{free_ports(1)[0]}"
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        configuration = CONFIGURATION.format(url=server.create_database("stores"))
        (tmp_path / "txnframework.toml").write_text(configuration, encoding="utf-8")
        serve = [sys.executable, "-m", "txnframework", "serve", "pulsar", "--listen", url.removeprefix("pulsar://")]
        gateway = stack.enter_context(Killed([*serve, "--config", "txnframework.toml"], tmp_path, "gateway"))
        client = pulsar.Client(url, operation_timeout_seconds=PATIENCE_S)
        stack.callback(client.close)
        producer = client.create_producer("persistent://public/default/in", send_timeout_millis=0)
        results = client.create_reader("persistent://public/default/out", pulsar.MessageId.earliest)
        transform = stack.enter_context(Killed([*compiled("Transform", tmp_path), url], tmp_path, "client"))

        def restart_store() -> None:
            server.kill()
            server.start()

        restart: dict[str, Callable[[], None]] = {
            "gateway": gateway.restart,
            "client": transform.restart,
            "store": restart_store,
        }
        found: Counter[str] = Counter()

        def read_until(distinct: int) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while len(found) < distinct:
                assert time.monotonic() < deadline, f"only {len(found)} of {distinct} results came"
                try:
                    found[results.read_next(1_000).data().decode()] += 1
                except pulsar.Timeout:
                    continue

        for number in range(MESSAGES):
            producer.send_async(str(number).encode(), None)
        for number, name in enumerate(KILLS, 1):
            read_until(number * MESSAGES // (len(KILLS) + 1))
            restart[name]()
        read_until(MESSAGES)
        producer.flush()
        # A reader that lost its connection may get a message again: what is stored counts.
        stored = client.create_reader("persistent://public/default/out", pulsar.MessageId.earliest)
        found.clear()
        while stored.has_message_available():
            found[stored.read_next(PATIENCE_S * 1_000).data().decode()] += 1
        assert found == Counter(f"{number}!" for number in range(MESSAGES))
