"""
How long a page of the console takes with many topics, and a scrape with many open transactions.

``python bench/glance.py [--topics 5000] [--transactions 10000] [--rounds 20]`` makes deployments in SQLite in a
temporary directory, and starts ``txnframework console`` and ``txnframework metrics`` on them. For each it prints the
time of a request and the processor time of the process, in milliseconds: the median and the longest.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import txnframework

PAGES = ("/", "/topics", "/subscriptions", "/processes", "/topic?name=topic-0")
CONFIG = '[metadata]\nurl = "sqlite:///{0}/txn.db"\n[ledger]\nurl = "sqlite:///{0}/txn.db"\n'
DAY_MS = 24 * 3600 * 1000
AT_ONCE = 100


async def make(config: Path, topics: int, transactions: int) -> None:
    """Create topics with a subscription each, and leave transactions open that have each written to a topic."""
    async with txnframework.open(config) as client:

        async def topic(number: int) -> None:
            await client.create_topic(f"topic-{number}")
            await client.subscribe(f"topic-{number}", "billing", start="earliest")

        async def transaction(_: int) -> None:
            txn = client.transaction(outlives_client=True, timeout_ms=DAY_MS)
            await txn.begin()
            await producer.send(b"undecided", txn=txn)

        for first in range(0, topics, AT_ONCE):
            await asyncio.gather(*map(topic, range(first, min(first + AT_ONCE, topics))))
        producer = await client.producer("topic-0")
        for first in range(0, transactions, AT_ONCE):
            await asyncio.gather(*map(transaction, range(first, min(first + AT_ONCE, transactions))))


@contextmanager
def serving(config: Path, *command: str) -> Iterator[tuple[str, int]]:
    """Start a command that serves; yield its address and its process id."""
    program = [sys.executable, "-m", "txnframework", "--config", str(config), *command, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            yield next(one for one in words if one.startswith("http")).rstrip("/.,;"), process.pid
        finally:
            process.terminate()


def processor_ms(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def measure(name: str, url: str, pid: int, rounds: int) -> None:
    """Print the times of requests, of which the first is left out: it reads what later ones know."""
    took_ms, used_ms, size = [], processor_ms(pid), 0
    for number in range(rounds + 1):
        begun = time.perf_counter()
        with urllib.request.urlopen(url, timeout=600) as reply:
            size = len(reply.read())
        if number:
            took_ms.append((time.perf_counter() - begun) * 1000)
        else:
            print(f"{name:<24} first {(time.perf_counter() - begun) * 1000:8.1f}", flush=True)
            used_ms = processor_ms(pid)
    used_ms = (processor_ms(pid) - used_ms) / rounds
    print(
        f"{name:<24} median {statistics.median(took_ms):7.1f}  longest {max(took_ms):7.1f}  processor {used_ms:7.1f}"
        f"  bytes {size}",
        flush=True,
    )


def main() -> None:
    """Make the deployment and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--transactions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for name, topics, transactions in (("topics", chosen.topics, 3), ("transactions", 1, chosen.transactions)):
            folder = Path(directory) / name
            folder.mkdir()
            config = folder / "txn.toml"
            config.write_text(CONFIG.format(folder), encoding="utf-8")
            asyncio.run(make(config, topics, transactions))
            print(f"\n{topics} topics, {transactions} open transactions", flush=True)
            with serving(config, "console") as (address, pid):
                for page in PAGES:
                    measure(f"console {page}", address + page, pid, chosen.rounds)
            with serving(config, "metrics") as (address, pid):
                measure("metrics", address, pid, chosen.rounds)


if __name__ == "__main__":
    main()
