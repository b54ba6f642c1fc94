"""
An operator who has never seen the system finds a transaction that hangs, names its process, and ends it.

Once with the console in a real Chromium, by clicking, and once with the command line. The program that hangs and the
console are real processes over one SQLite database.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from txnframework.cli import main

if TYPE_CHECKING:
    from playwright.sync_api import Page

PATIENCE_S = 120
CHROMIUM = next(
    (found for one in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(one))), ""
)
CONFIG = """
[metadata]
url = "sqlite:///{directory}/txn.db"
[ledger]
url = "sqlite:///{directory}/txn.db"
[client]
name = "{name}"
[transactions]
sweep = false
"""
HANGING = """
import asyncio, sys
import txnframework

async def main():
    async with txnframework.open(sys.argv[1]) as client:
        await client.create_topic("orders", exist_ok=True)
        txn = client.transaction(timeout_ms=3_600_000)
        await txn.begin()
        await (await client.producer("orders")).send(b"three apples", txn=txn)
        print(txn.id, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@dataclass(frozen=True)
class Hanging:
    """A program that hangs in a transaction, and the configuration of those who look for it."""

    config: Path
    txn_id: str
    process: str


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    for name in ("billing", "operator"):
        (tmp_path / f"{name}.toml").write_text(CONFIG.format(directory=tmp_path, name=name))
    command = [sys.executable, "-c", HANGING, str(tmp_path / "billing.toml")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            txn_id = program.stdout.readline().strip()
            yield Hanging(tmp_path / "operator.toml", txn_id, f"billing@{socket.gethostname()}:{program.pid}")
        finally:
            program.kill()


class CommandLine:
    """The command line of the operator."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, hanging: Hanging, *words: str) -> tuple[int, str]:
        """Run a command; return its exit status and what it printed."""
        self._capsys.readouterr()
        status = main(["--config", str(hanging.config), *words])
        return status, self._capsys.readouterr().out

    def state_of(self, hanging: Hanging) -> str:
        """Return the state of the transaction."""
        _, printed = self(hanging, "transaction", "describe", hanging.txn_id, "--output", "json")
        return str(json.loads(printed)["state"])


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def test_with_the_command_line(hanging: Hanging, command: CommandLine) -> None:
    """The first command names the transaction, its process and the second command."""
    status, found = command(hanging, "transaction", "find-hanging", "--age-ms", "0")
    assert (status, hanging.process in found) == (1, True)
    assert f"txnframework transaction abort {hanging.txn_id}" in re.sub(r"\s+", " ", found)
    status, ended = command(hanging, "transaction", "abort", hanging.txn_id)
    assert (status, hanging.process in ended) == (0, True)
    assert command.state_of(hanging) == "ABORTED"
    assert command(hanging, "transaction", "list") == (0, "No transaction is open.\n")


@contextmanager
def console(hanging: Hanging) -> Iterator[tuple[str, str]]:
    """Start the console; yield its address and its token."""
    words = ["console", "--allow-changes", "--listen", "127.0.0.1:0"]
    program = [sys.executable, "-m", "txnframework", "--config", str(hanging.config), *words]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address, token = (process.stdout.readline().partition(": ")[2].strip() for _ in range(2))
            yield address.split(" ")[0], token
        finally:
            process.terminate()


@contextmanager
def browser_page() -> Iterator[Page]:
    """Open a page in Chromium; a script that fails is an error of the test."""
    from playwright import sync_api as playwright

    assert CHROMIUM, "install Chromium"
    # Its sockets need a short path.
    with TemporaryDirectory(dir="/tmp") as directory, playwright.sync_playwright() as started:
        environment = os.environ | {"TMPDIR": directory, "HOME": directory}
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = started.chromium.launch(
            executable_path=CHROMIUM, args=arguments, env=environment, timeout=PATIENCE_S * 1000
        )
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            page.set_default_timeout(PATIENCE_S * 1000)
            problems: list[str] = []
            page.on("pageerror", lambda error: problems.append(str(error)))
            yield page
            assert problems == []
        finally:
            browser.close()


@pytest.mark.chromium
def test_with_the_console(hanging: Hanging, command: CommandLine) -> None:
    """From the first page by links and buttons alone; the list follows the end without a reload."""
    with console(hanging) as (address, token), browser_page() as page:
        page.goto(address)
        page.get_by_role("link", name="1 open transaction").click()
        row = page.get_by_role("row").filter(has_text=hanging.txn_id)
        row.get_by_text(hanging.process).wait_for()
        row.get_by_text("alive").wait_for()
        picture = os.environ.get("TXN_PICTURES")
        row.get_by_role("link", name=hanging.txn_id).click()
        page.get_by_text("1 message waits in the segments that it wrote to").wait_for()
        if picture:
            page.screenshot(path=f"{picture}/operator.png", full_page=True)
        page.get_by_role("link", name="Abort…").click()
        page.get_by_label("Token").fill("a guess")
        page.get_by_role("button", name="Abort").click()
        page.get_by_role("alert").get_by_text("not the token").wait_for()
        page.get_by_role("link", name="Cancel").click()
        page.get_by_text("1 message waits").wait_for()
        page.get_by_role("link", name="Abort…").click()
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Abort").click()
        page.get_by_role("link", name="Continue").click()
        page.get_by_text("aborted", exact=True).first.wait_for()
        page.get_by_role("link", name="Transactions", exact=True).first.click()
        page.get_by_text("No transaction is open").wait_for()
    assert command.state_of(hanging) == "ABORTED"
