"""``txnframework replicate`` from PostgreSQL to SQLite, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from geo_world import NAMES, by_key, topics_of, torn

import txnframework
from txnframework import Client, Message
from txnframework.cli import main
from txnframework_geo import ID_HEADER, is_replicated
from txnframework_sql.testing.servers.databases import fresh_database


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stand in a folder with configurations of a database on a server, and of a file."""
    with fresh_database() as url:
        (tmp_path / "server.toml").write_text(f'[metadata]\nurl = "{url}"\n')
        (tmp_path / "file.toml").write_text('[metadata]\nurl = "sqlite:///file.db"\n')
        monkeypatch.chdir(tmp_path)
        yield tmp_path


async def write(client: Client, first: int) -> None:
    """Send 10 transactions of four messages, and abort two others."""
    for number in range(first, first + 12):
        txn = client.transaction()
        await txn.begin()
        for part in range(2):
            for name in NAMES:
                async with await client.producer(name) as producer:
                    await producer.send(b"%d.%d" % (number, part), key=b"%d" % (number % 3), txn=txn)
        await (txn.abort() if number % 6 == 5 else txn.commit())


async def messages_of(client: Client, name: str) -> list[Message]:
    return [message async for message in await client.reader(name)]


def replicate(source: str, target: str) -> None:
    assert main(["replicate", "--from", source, "--to", target, "--once", *NAMES]) == 0


def test_both_ways(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def prepare() -> None:
        async with txnframework.open("server.toml") as server:
            for name in NAMES:
                await server.create_topic(name, segments=2)
            await write(server, 0)

    async def split_and_write() -> None:
        async with txnframework.open("server.toml") as server, txnframework.open("file.toml") as file:
            await server.split(NAMES[0], 0)
            await write(server, 12)
            await write(file, 24)

    async def check() -> None:
        async with txnframework.open("server.toml") as server, txnframework.open("file.toml") as file:
            for here, there in ((server, file), (file, server)):
                assert not await torn(there, topics_of("topic"))
                for name in NAMES:
                    original = [one for one in await messages_of(here, name) if not is_replicated(one.headers)]
                    copied = [one for one in await messages_of(there, name) if is_replicated(one.headers)]
                    assert sorted(str(one.id) for one in original) == sorted(
                        one.headers[ID_HEADER].decode() for one in copied
                    )
                    assert by_key(original) == by_key(copied)

    asyncio.run(prepare())
    replicate("server.toml", "file.toml")
    assert "messages copied  40" in capsys.readouterr().out
    asyncio.run(split_and_write())
    replicate("file.toml", "server.toml")
    assert "messages copied  40" in capsys.readouterr().out
    replicate("server.toml", "file.toml")
    assert "messages copied  40" in capsys.readouterr().out
    asyncio.run(check())
