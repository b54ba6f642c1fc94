"""``txnframework replicate`` over SQLite: processes that are killed at random, and what the command prints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from geo_world import NAMES, by_key, topics_of, torn

import txnframework
from txnframework import Client, Message
from txnframework.cli import main
from txnframework_geo import ID_HEADER

PATIENCE_S = 300
COMMAND = (sys.executable, "-m", "txnframework", "replicate", "--from", "a.toml", "--to", "b.toml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(f'[metadata]\nurl = "sqlite:///{name}.db"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def write(client: Client, numbers: range) -> None:
    """Send a transaction of four messages for each number."""
    left, right = [await client.producer(name) for name in NAMES]
    for number in numbers:
        async with client.transaction() as txn:
            for part in range(2):
                for producer in (left, right):
                    await producer.send(b"%d.%d" % (number, part), key=b"%d" % (number % 5), txn=txn)
    for producer in (left, right):
        await producer.close()


async def messages_of(client: Client, name: str) -> list[Message]:
    return [message async for message in await client.reader(name)]


async def kill(processes: list[asyncio.subprocess.Process]) -> None:
    """Kill the processes that have not ended, and wait for their ends."""
    for one in processes:
        if one.returncode is None:
            one.kill()
    for one in processes:
        await one.wait()


async def test_replicators_that_are_killed_at_random(folder: Path) -> None:
    """Each message is copied once, and a reader never sees a part of a transaction."""
    chance = random.Random(24)

    async with txnframework.open("a.toml") as source, txnframework.open("b.toml") as target:
        for name in NAMES:
            await source.create_topic(name, segments=2)
            await target.create_topic(name)
        for each in range(3):
            running = [await asyncio.create_subprocess_exec(*COMMAND, *NAMES) for _ in range(1 + each % 2)]
            try:
                await write(source, range(each * 20, each * 20 + 20))
                # Until the first of them works, and a little longer.
                async with asyncio.timeout(PATIENCE_S):
                    while not await messages_of(target, NAMES[0]):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                await asyncio.sleep(chance.random())
                assert not await torn(target, topics_of("topic"))
            finally:
                await kill(running)
            assert not await torn(target, topics_of("topic"))
        last = await asyncio.create_subprocess_exec(*COMMAND, "--once", *NAMES)
        try:
            assert await asyncio.wait_for(last.wait(), PATIENCE_S) == 0
        finally:
            await kill([last])
        assert not await torn(target, topics_of("topic"))
        for name in NAMES:
            original = await messages_of(source, name)
            copied = await messages_of(target, name)
            assert len(original) == 120
            assert sorted(str(one.id) for one in original) == sorted(one.headers[ID_HEADER].decode() for one in copied)
            assert by_key(original) == by_key(copied)


def test_output_and_lag(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def prepare(more: range) -> None:
        async with txnframework.open("a.toml") as source:
            for name in NAMES:
                await source.create_topic(name, exist_ok=True)
            await write(source, more)

    options = ["replicate", "--from", "a.toml", "--to", "b.toml", "--once"]
    asyncio.run(prepare(range(3)))
    assert main([*options, "--output", "json", *NAMES]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"transaction": 1, "copied": 12, "kept": 0, "lag_messages": 0, "lag_ms": 0}
    asyncio.run(prepare(range(3, 4)))
    assert main([*options, *NAMES]) == 0
    assert "messages copied  4" in capsys.readouterr().out
    assert main([*options, "--output", "json", *NAMES]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"transaction": None, "copied": 0, "kept": 0, "lag_messages": 0, "lag_ms": 0}


def test_the_lag_of_a_run_that_copies_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A message waits for an open transaction of its key, which has a part in another topic."""

    async def prepare() -> None:
        async with txnframework.open("a.toml") as source:
            for name in NAMES:
                await source.create_topic(name)
            left, right = [await source.producer(name) for name in NAMES]
            blocking = source.transaction(outlives_client=True)
            await blocking.begin()
            await right.send(b"open", txn=blocking)
            async with source.transaction() as both:
                await left.send(b"1", txn=both)
                await right.send(b"1", txn=both)

    asyncio.run(prepare())
    assert main(["replicate", "--from", "a.toml", "--to", "b.toml", "--once", *NAMES]) == 0
    assert re.search(r"behind by +1 messages, \d+ ", capsys.readouterr().out)
    assert main(["replicate", "--from", "a.toml", "--to", "b.toml", "--once", "--output", "json", *NAMES]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["transaction"], found["copied"], found["lag_messages"]) == (None, 0, 1)
    assert found["lag_ms"] > 0


def test_a_target_that_was_copied(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The copy continues from the progress that was copied with it, and has a subscription of its own."""
    (folder / "c.toml").write_text('[metadata]\nurl = "sqlite:///c.db"\n')

    async def prepare(more: range) -> None:
        async with txnframework.open("a.toml") as source:
            for name in NAMES:
                await source.create_topic(name, exist_ok=True)
            await write(source, more)

    async def check() -> None:
        async with txnframework.open("a.toml") as source, txnframework.open("c.toml") as target:
            assert not await torn(target, topics_of("topic"))
            for name in NAMES:
                assert by_key(await messages_of(source, name)) == by_key(await messages_of(target, name))
                subscriptions = (await source.layout(name)).subscriptions
                assert sorted([(await source.lag(name, one)).messages for one in subscriptions]) == [0, 4]

    asyncio.run(prepare(range(3)))
    assert main(["replicate", "--from", "a.toml", "--to", "b.toml", "--once", *NAMES]) == 0
    assert main(["copy", "--config", "b.toml", "--to", "c.toml", "--yes"]) == 0
    asyncio.run(prepare(range(3, 5)))
    capsys.readouterr()
    assert main(["replicate", "--from", "a.toml", "--to", "c.toml", "--once", *NAMES]) == 0
    assert "messages copied  8" in capsys.readouterr().out
    asyncio.run(check())


def test_a_terminal_shows_what_is_done(folder: Path) -> None:
    """On standard error, so that standard output can be a file."""
    import pty

    async def prepare() -> None:
        async with txnframework.open("a.toml") as source:
            for name in NAMES:
                await source.create_topic(name)
            async with await source.producer(NAMES[0]) as producer:
                await producer.send_many([b"value"] * 600)

    asyncio.run(prepare())
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [*COMMAND, "--once", *NAMES], stdin=theirs, stdout=out, stderr=theirs, env=environment
        )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # its end, on Linux
        while some := os.read(ours, 65_536):
            shown += some
    os.close(ours)
    assert process.wait() == 0
    assert b"0 messages copied in 0 transactions; waiting for the stores, or for another process" in shown
    assert (folder / "out").read_text().splitlines()[0].split() == ["messages", "copied", "600"]


def test_errors_are_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["--from", "a.toml", "--to", "a.toml", "left"],
        ["--from", "a.toml", "--to", "b.toml", "left"],
        ["--from", "a.toml", "--to", "nofile.toml", "left"],
        ["--from", "a.toml", "--to", "b.toml", "segment://public/default/left/0000-ffff-0"],
        ["--from", "a.toml", "--to", "b.toml", "--metrics", "nowhere", "left"],
    ):
        assert main(["replicate", *arguments]) != 0
        said = capsys.readouterr().err
        # Lines before it say what it waits for, where opening takes long.
        _, found, error = f"\n{said}".partition("\nError: ")
        assert found, said
        assert len(error.splitlines()) <= 2, said
        assert "Traceback" not in said


def test_metrics_and_the_end_by_a_signal(folder: Path) -> None:
    async def prepare() -> None:
        async with txnframework.open("a.toml") as source:
            for name in NAMES:
                await source.create_topic(name)
            await write(source, range(2))

    asyncio.run(prepare())
    command = [*COMMAND, "--output", "json", "--metrics", "127.0.0.1:0", *NAMES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            found = re.search(r"http://\S+", process.stderr.readline())
            assert found is not None
            assert json.loads(process.stdout.readline())["copied"] == 8
            with urllib.request.urlopen(found[0], timeout=PATIENCE_S) as answer:
                text = answer.read().decode()
            assert 'txnframework_geo_messages_total{replication="default"} 8.0' in text
            assert 'txnframework_geo_lag_messages{replication="default"} 0.0' in text
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def test_the_page(folder: Path) -> None:
    """Its commands print what it shows."""
    for old, new in (("a", "berlin"), ("b", "tokyo")):
        (folder / f"{old}.toml").rename(folder / f"{new}.toml")

    async def prepare() -> None:
        async with txnframework.open("berlin.toml") as source:
            for name in ("orders", "invoices"):
                await source.create_topic(name, exist_ok=True)
                async with source.transaction() as txn, await source.producer(name) as producer:
                    await producer.send_many([b"1", b"2", b"3"], txn=txn)

    page = (Path(__file__).parents[3] / "docs" / "how-to" / "geo.md").read_text(encoding="utf-8")
    shown = re.findall(r"```console\n\$ txnframework (replicate .*)\n((?:.*\n)*?)```", page)
    assert len(shown) == 2
    for command, expected in shown:
        asyncio.run(prepare())
        done = subprocess.run(
            [sys.executable, "-m", "txnframework", *command.split()], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_listing_commands_imports_no_client() -> None:
    """The module of the entry point is loaded by every command of txnframework."""
    program = "import sys, txnframework_geo.plugin; sys.exit('txnframework.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
