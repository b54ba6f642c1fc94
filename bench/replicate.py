"""
Replicate a backlog, then follow writers: ``python bench/replicate.py``.

First, a backlog of transactions over two topics is replicated to an empty deployment. Then writers in processes of
their own send transactions, and the replicator follows. The lag of a step is the age of the first message that the
target did not have after the step; 0 if it had all. At the end, the target is compared with the source. The result is a
table, and the exit code is 1 if a message is missing, doubled or in the wrong order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import txnframework
from txnframework import Client
from txnframework_geo import ID_HEADER

TOPICS = ("orders", "invoices")
PARTS = 2
"""Each transaction sends so many messages to each topic."""
KEYS = 10_000


def config(url: str) -> dict[str, Any]:
    return {"metadata": {"url": url}, "ledger": {"url": url}}


async def write(client: Client, transactions: int, until: float | None = None, at_once: int = 1) -> int:
    """Send transactions, ``at_once`` at one time; return how many."""
    producers = [await client.producer(name) for name in TOPICS]
    done = 0

    async def one_after_another() -> None:
        nonlocal done
        while done < transactions if until is None else time.time() < until:
            done += 1
            async with client.transaction() as txn:
                for _ in range(PARTS):
                    key = b"%d" % random.randrange(KEYS)
                    await asyncio.gather(*(one.send(bytes(100), key=key, txn=txn) for one in producers))

    await asyncio.gather(*(one_after_another() for _ in range(at_once)))
    for one in producers:
        await one.close()
    return done


async def writer(url: str, until: float, at_once: int) -> None:
    async with txnframework.open(config(url)) as client:
        print(await write(client, 0, until, at_once))


async def prepare(url: str, transactions: int, segments: int) -> None:
    async with txnframework.open(config(url)) as client:
        for name in TOPICS:
            await client.create_topic(name, segments=segments)
        await write(client, transactions, at_once=32)


async def differences(source: str, target: str) -> int:
    """Return how many messages are missing or doubled, and how many keys have another order."""
    wrong = 0
    async with txnframework.open(config(source)) as first, txnframework.open(config(target)) as second:
        for name in TOPICS:
            sent: dict[bytes | None, list[str]] = defaultdict(list)
            copied: dict[bytes | None, list[str]] = defaultdict(list)
            async for message in await first.reader(name):
                sent[message.key].append(str(message.id))
            async for message in await second.reader(name):
                copied[message.key].append(message.headers[ID_HEADER].decode())
            wrong += sum(sent[key] != copied[key] for key in sent.keys() | copied.keys())
    return wrong


def replicate(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "txnframework", "replicate", "--from", "a.toml", "--to", "b.toml", *TOPICS]
    return subprocess.Popen([*command, "--output", "json", *options], cwd=folder, stdout=subprocess.PIPE, text=True)


def steps_of(output: str) -> list[dict[str, int]]:
    return [json.loads(line) for line in output.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", help="URL of empty stores; default: SQLite")
    parser.add_argument("--target", help="URL of other empty stores; default: SQLite")
    parser.add_argument("--backlog", type=int, default=25_000, help="transactions of the backlog")
    parser.add_argument("--writers", type=int, default=2, help="processes")
    parser.add_argument("--at-once", type=int, default=4, help="open transactions of each process")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--segments", type=int, default=2)
    parser.add_argument("--write-until", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write_until is not None:
        asyncio.run(writer(args.source, args.write_until, args.at_once))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        source, target = args.source or f"sqlite:///{folder}/a.db", args.target or f"sqlite:///{folder}/b.db"
        for name, url in (("a", source), ("b", target)):
            (folder / f"{name}.toml").write_text(f'[metadata]\nurl = "{url}"\n[ledger]\nurl = "{url}"\n')
        asyncio.run(prepare(source, args.backlog, args.segments))
        began = time.monotonic()
        backlog = steps_of(replicate(folder, "--once").communicate()[0])
        backlog_s = time.monotonic() - began
        following = replicate(folder)
        command = [sys.executable, __file__, "--source", source, "--at-once", str(args.at_once)]
        command += ["--write-until", str(time.time() + args.seconds)]
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(args.writers)]
        written = sum(int(one.communicate()[0]) for one in writers)
        following.terminate()
        steps = steps_of(following.communicate()[0])
        replicate(folder, "--once").communicate()
        lags_ms = sorted(step["lag_ms"] for step in steps) or [0]
        copied = sum(step["copied"] for step in backlog)
        print(f"backlog      {copied:,} messages, {len(backlog)} transactions, {copied / backlog_s:,.0f} messages/s")
        followed = sum(step["copied"] for step in steps)
        print(f"written      {written * PARTS * len(TOPICS) / args.seconds:,.0f} messages/s")
        print(f"followed     {followed:,} messages, {len(steps)} transactions")
        print(f"lag          median {lags_ms[len(lags_ms) // 2]} ms, longest {lags_ms[-1]} ms")
        wrong = asyncio.run(differences(source, target))
        print(f"differences  {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
