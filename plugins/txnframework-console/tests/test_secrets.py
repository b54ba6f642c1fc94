"""A password in the URL of a store is in no page, output, JSON, error or log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from console_world import SECRET, run, served

from txnframework.cli import main

COMMANDS = (
    "check --connect FILE",
    "doctor",
    "doctor --output json",
    "plugins --output json",
    "topic create orders",
    "topic create orders",  # an error: it exists
    "topic produce orders apples --transaction",
    "topic list --output json",
    "topic describe orders",
    "topic describe orders --output json",
    "subscription create orders billing --start earliest --output json",
    "subscription describe orders billing --output json",
    "transaction list --output json",
    "transaction find-hanging --age-ms 0 --output json",
    "transaction describe 00000000000000000000000000000001",
    "maintain --output json",
    "top --once",
    "top --once --output json",
    "metrics",
    "restore --restored ledger --dry-run",
    "nosuch",
)
WORKING = f"memory://user:{SECRET}@secrets"
BROKEN = (
    f"memory://user:{SECRET}@secrets/path",
    f"sqlite://user:{SECRET}@host/file.db",
    f"nosuch://user:{SECRET}@host/path",
    f"postgresql://user:{SECRET}@127.0.0.1:1/nowhere",
    f"postgresql://user:{SECRET}@127.0.0.1:port/nowhere",
    f"user:{SECRET}@host",
)
PAGES = ("/", "/transactions", "/topics", "/subscriptions", "/processes", "/topics/orders", "/nosuch")


@pytest.fixture
def said(tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Collect what is printed and logged; at the end, the password is in none of it."""
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    yield texts
    texts += [*capsys.readouterr(), caplog.text]
    assert SECRET not in "".join(texts)


def configured(folder: Path, url: str) -> Path:
    file = folder / "txn.toml"
    file.write_text(f'[metadata]\nurl = "{url}"\n[ledger]\nurl = "{url}"\n[client]\nretries_max = 0\n')
    return file


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], said: list[str]) -> None:
    """Each runs, and most have something to say about the stores."""
    file = configured(tmp_path, WORKING)
    for command in COMMANDS:
        assert main(["--config", str(file), *command.replace("FILE", str(file)).split()]) in (0, 1, 2)
        out, err = capsys.readouterr()
        assert out or err, command
        said += [out, err]
    assert "memory://" in "".join(said), "the stores are named"


@pytest.mark.parametrize("url", BROKEN, ids=range(len(BROKEN)))
def test_errors(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], said: list[str]) -> None:
    """A URL that cannot be used is in the error, without its password."""
    file = configured(tmp_path, url)
    for command in ("check --connect FILE", "doctor", "topic list", "top --once --output json"):
        assert main(["--config", str(file), *command.replace("FILE", str(file)).split()]) in (1, 2), command
        out, err = capsys.readouterr()
        assert out or err
        said += [out, err]


def test_pages(said: list[str]) -> None:
    """The pages name the stores."""

    async def work() -> None:
        async with served() as world:
            await world.client.create_topic("orders")
            for page in PAGES:
                said.append((await world.browser.get(page)).text)

    run(work())
    assert "memory:" in "".join(said)
