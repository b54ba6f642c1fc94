"""Real processes on one SQLite file, killed again and again: every message is transformed exactly once."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from txnframework import Client

if TYPE_CHECKING:
    from conftest import Stores

MESSAGES = 120
STEPS_BEFORE_KILL = (3, 11, 20, 1)
SESSION_TTL_MS = 300
PATIENCE_S = 240
"""Only what hangs takes longer, on a machine with much else to do."""

TRANSFORM = """
import asyncio, importlib, json, sys
import txnframework
from txnframework.errors import Conflict, NotFound, ReceiveTimeout
from txnframework.plugin import load_plugins

config, names = json.loads(sys.argv[1]), sys.argv[2].split(",")

async def main():
    registry = load_plugins([importlib.import_module(name + ".plugin") for name in names])
    async with txnframework.open(config, registry=registry) as client:
        consumer = await client.consumer("in", "transform", start="earliest", stand_by=True)
        producer = await client.producer("out")
        while True:
            try:
                messages = await consumer.receive_many(messages_max=3, timeout_ms=500)
            except ReceiveTimeout:
                # What a killed one has begun may come later than that.
                if (await client.lag("in", "transform")).messages == 0:
                    break
                continue
            try:
                async with client.transaction() as txn:
                    for message in messages:
                        await producer.send(b"done " + message.value, txn=txn)
                    await consumer.ack(*messages, txn=txn)
                    print("step", flush=True)  # where the parent kills: nothing is decided yet, or just being decided
            except (Conflict, NotFound):
                await consumer.redeliver_unacknowledged()  # what is somebody else's by now does not come again
        await consumer.close()

asyncio.run(main())
"""


def test_killed_processes_transform_exactly_once(shared: Stores) -> None:
    """The next process takes over the work of a killed one: no loss, no duplicates."""
    stores = shared
    stores.options = {"session_ttl_ms": SESSION_TTL_MS}

    stores.run(_prepare(stores))
    for steps in STEPS_BEFORE_KILL:
        process = _start(stores)
        _see(process, steps)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    last = _start(stores)
    _, errors = last.communicate(timeout=PATIENCE_S)
    assert last.returncode == 0, errors
    stores.run(_compare(stores))


def test_a_paused_process_spoils_nothing(sqlite: Stores, tmp_path: Path) -> None:
    """While a process is stopped, another one takes over. The stopped one resumes, fails, and stands by.

    When the other one is killed, it takes over in turn.
    """
    stores = sqlite
    stores.options = {"session_ttl_ms": SESSION_TTL_MS}
    stores.run(_prepare(stores))
    first, second = _start(stores), None
    try:
        _see(first, 5)
        _stop_between_writes(first, tmp_path / "txn.db")
        second = _start(stores)
        _see(second, 5)
        os.kill(first.pid, signal.SIGCONT)
        _see(second, 3)
        os.kill(second.pid, signal.SIGKILL)
        second.communicate()
        _, errors = first.communicate(timeout=PATIENCE_S)
        assert first.returncode == 0, errors
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.communicate()
    stores.run(_compare(stores))


async def _prepare(stores: Stores) -> None:
    async with stores.open() as client:
        await client.create_topic("in", segments=2)
        await client.create_topic("out")
        await (await client.producer("in")).send_many([b"%d" % number for number in range(MESSAGES)])


async def _compare(stores: Stores) -> None:
    async with stores.open() as client:
        assert sorted(await stores.read(client, "out")) == sorted(b"done %d" % number for number in range(MESSAGES))
        await _nothing_left(client)


def _stop_between_writes(process: subprocess.Popen[str], database: Path) -> None:
    """Stop a process where it holds neither the database's lock nor the writers' turn.

    A process that stops with one of them blocks all writers, as file locks do, which is not tested here.
    """
    while True:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
                with Path(f"{database}-turn").open() as turn:
                    fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (sqlite3.OperationalError, BlockingIOError):
                os.kill(process.pid, signal.SIGCONT)
            else:
                return


def _see(process: subprocess.Popen[str], steps: int) -> None:
    """Return when a process has come so many steps further."""
    assert process.stdout is not None
    for _ in range(steps):
        line = process.stdout.readline()
        assert line == "step\n", process.communicate()


def _start(stores: Stores) -> subprocess.Popen[str]:
    plugins = "txnframework_sql,txnframework_metadata,txnframework_dispatchers"
    if stores.url.startswith("zookeeper:"):
        plugins += ",txnframework_zookeeper"
    arguments = [sys.executable, "-c", TRANSFORM, json.dumps(stores.config()), plugins]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")


async def _nothing_left(client: Client) -> None:
    """The transactions of the killed are open until they time out; none of them may hold a message that was taken."""
    layout = await client.topics.layout((await client.topics.list())[0])
    for segment in layout.in_order():
        name = str(layout.name_of(segment.id))
        subscribed = await client.host.subscription(str(layout.topic), "transform", name)
        pending = await subscribed.pending_acks.recover()
        assert pending.open == {}
