"""
Take the pictures of the page about the console again.

``python bench/console_pictures.py [FOLDER]`` makes a deployment in SQLite with programs that hang, waits until the
console calls their transactions hanging, and writes its pages as pictures to FOLDER, by default to docs/how-to/console.
It needs txnframework-console and Chromium, and takes two minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

import txnframework
from txnframework import Client

PORT = 8471
HANGS_AFTER_S = 62
"""The console calls a transaction hanging after a minute."""
SIZE = "1100,860"
CHROMIUM = next(
    (found for one in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(one))), ""
)
CONFIG = """
[metadata]
url = "sqlite:///{folder}/txn.db"
[metadata.options]
session_ttl_ms = 600_000
[client]
name = "{name}"
[transactions]
sweep = false
settling_delay_ms = 3_600_000
"""
TOPICS = {"orders": 2, "payments": 2, "invoices": 1, "shipments": 1, "stock": 1, "returns": 1, "emails": 1, "audit": 1}


async def fill(client: Client) -> None:
    """Create topics with messages, and subscriptions that are behind."""
    for name, segments in TOPICS.items():
        await client.create_topic(name, segments=segments)
        await client.subscribe(name, "analytics", start="earliest")
        async with await client.producer(name) as producer:
            for number in range(len(name) * 40):
                await producer.send(b"x", key=b"%d" % number)
    await client.subscribe("orders", "billing", start="earliest")
    await client.subscribe("payments", "ledger", start="earliest")
    await client.split("orders", 0)
    await client.split("orders", 2)
    async with await client.producer("orders") as orders:
        for number in range(400):
            await orders.send(b"x", key=b"%d" % number)


async def checkout(client: Client) -> None:
    """A program that does not end its transaction, and has messages of all segments wait."""
    txn = client.transaction(timeout_ms=3_600_000)
    await txn.begin()
    consumer = await client.consumer("orders", "billing")
    await consumer.ack(await consumer.receive(), txn=txn)
    orders = await client.producer("orders")
    for number in range(37):
        await orders.send(b"x", key=b"%d" % number, txn=txn)


async def packer(client: Client) -> None:
    """A program whose transaction is past its timeout, while no process sweeps."""
    txn = client.transaction(timeout_ms=5_000)
    await txn.begin()
    await (await client.producer("shipments")).send(b"x", txn=txn)


async def reporting(client: Client) -> None:
    """A program whose transaction any process may end."""
    txn = client.transaction(outlives_client=True, timeout_ms=3_600_000)
    await txn.begin()
    producer = await client.producer("emails")
    for _ in range(4):
        await producer.send(b"x", txn=txn)


async def ledger(client: Client) -> None:
    """A consumer that is behind."""
    await (await client.consumer("payments", "ledger", name="ledger-1")).receive()


PROGRAMS = {one.__name__: one for one in (checkout, packer, reporting, ledger)}


async def hang(name: str, config: str) -> None:
    """Run a program, say so, and do nothing more."""
    async with txnframework.open(config) as client:
        await PROGRAMS[name](client)
        print("hangs", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def read(path: str) -> str:
    """Return a page when it shows what was read."""
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=300) as answer:
            text: str = answer.read().decode()
        if "data-reading" not in text:
            return text
        time.sleep(1)


def keep_reading(path: str, taken: threading.Event) -> None:
    """Read a page until its picture is taken, so that the console always has a reading of it."""
    while not taken.wait(0.3):
        read(path)


def take(path: str, picture: Path) -> None:
    """Write a page as a picture."""
    read(path)
    taken = threading.Event()
    threading.Thread(target=keep_reading, args=(path, taken), daemon=True).start()
    with TemporaryDirectory(dir="/tmp") as home:  # its sockets need a short path
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        words += [f"--window-size={SIZE}", "--timeout=60000", f"--screenshot={picture}"]
        command = [CHROMIUM, *words, f"http://127.0.0.1:{PORT}{path}"]
        environment = os.environ | {"HOME": home, "TMPDIR": home}
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=300)
    taken.set()
    print(f"wrote {picture}")


def configured(folder: Path, name: str) -> str:
    """Write the configuration of a program."""
    path = folder / f"{name}.toml"
    path.write_text(CONFIG.format(folder=folder, name=name), encoding="utf-8")
    return str(path)


async def prepare(config: str) -> None:
    """Fill a new deployment."""
    async with txnframework.open(config) as client:
        await fill(client)


def main(target: Path) -> None:
    """Take all pictures."""
    assert CHROMIUM, "install Chromium"
    running: list[subprocess.Popen[str]] = []
    with TemporaryDirectory() as made:
        folder = Path(made)
        asyncio.run(prepare(configured(folder, "seed")))
        try:
            for name in PROGRAMS:
                command = [sys.executable, __file__, name, configured(folder, name)]
                running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
                assert running[-1].stdout is not None
                assert running[-1].stdout.readline() == "hangs\n"
            console = [sys.executable, "-m", "txnframework", "console", "--config", configured(folder, "console")]
            console += ["--allow-changes", "--listen", f"127.0.0.1:{PORT}"]
            running.append(subprocess.Popen(console, stdout=subprocess.PIPE, text=True))
            assert running[-1].stdout is not None
            running[-1].stdout.readline()
            time.sleep(HANGS_AFTER_S)
            client = [sys.executable, "-m", "txnframework", "transaction", "list", "--output", "json"]
            client += ["--config", configured(folder, "list")]
            listed = json.loads(subprocess.run(client, check=True, capture_output=True, text=True).stdout)
            hanging = next(one for one in listed if str(one["process"]).startswith("checkout@"))
            take("/", target / "overview.png")
            take(f"/transaction?id={hanging['transaction']}", target / "transaction.png")
            take("/topic?name=topic://public/default/orders", target / "topic.png")
        finally:
            for process in running:
                process.kill()
                process.wait()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(hang(sys.argv[1], sys.argv[2]))
    else:
        main(Path(sys.argv[1]) if len(sys.argv) == 2 else Path(__file__).parents[1] / "docs" / "how-to" / "console")
