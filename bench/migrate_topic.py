"""
Migrate a topic under load and kills, and check every message: ``python bench/migrate_topic.py``.

Four writers send to a persistent topic, alone and two messages in a transaction. Four consumers of one shared
subscription acknowledge in transactions. Meanwhile ``txnframework topic migrate`` runs, and processes of all kinds are
killed at random and started again. Each process notes the replies to its calls in a journal. At the end, the topic and
the subscription are read and compared with the journals: nothing may be lost, doubled or torn, and no writer may pause
for longer than ``--pause-ms-max``. A pause is the time between two confirmations of one writer during the migration; a
pause in which the writer was killed does not count. The result is a table, and the exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import txnframework
from txnframework import Client
from txnframework.errors import ReceiveTimeout, TxnFrameworkError

TOPICS = ("persistent://public/default/orders", "topic://public/default/orders")
"""The topic before and after; each process uses the first name."""
BILLING = "billing"
FILLED_TOGETHER = 10_000
RECEIVED_TOGETHER = 500
WORKERS = 4
MIGRATOR_KILLS = 3
EXAMPLES_MAX = 20


class Journal:
    """The replies to the calls of one process, line by line; a line that was written survives the process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def note(self, event: str, values: list[str]) -> None:
        self._file.write(json.dumps([time.time(), event, values]) + "\n")


def config(url: str) -> dict[str, Any]:
    return {"metadata": {"url": url}, "ledger": {"url": url}}


async def write(client: Client, topic: str, journal: Journal, run: str) -> None:
    producer = await client.producer(topic)
    number = 0
    while True:
        number += 1
        values = [f"{run}-{number}"] if number % 2 else [f"{run}-{number}-a", f"{run}-{number}-b"]
        journal.note("try", values)
        try:
            if len(values) == 1:
                await producer.send(values[0].encode())
            else:
                async with client.transaction(domain=await client.transaction_domain(topic)) as txn:
                    for value in values:
                        await producer.send(value.encode(), txn=txn)
        except TxnFrameworkError as error:
            # What was not confirmed may be there whole, or not at all.
            journal.note(f"failed {type(error).__name__}", values)
            continue
        journal.note("done", values)


async def consume(client: Client, topic: str, journal: Journal, _: str) -> None:
    async with await client.consumer(topic, BILLING, type="shared", start="earliest") as consumer:
        while True:
            try:
                messages = await consumer.receive_many(messages_max=RECEIVED_TOGETHER, timeout_ms=1_000)
            except ReceiveTimeout:
                continue
            values = [message.value.decode() for message in messages]
            journal.note("try", values)
            try:
                async with client.transaction(domain=await client.transaction_domain(topic)) as txn:
                    await consumer.ack(*messages, txn=txn)
            except TxnFrameworkError as error:
                journal.note(f"failed {type(error).__name__}", values)
                await consumer.redeliver_unacknowledged()
                continue
            journal.note("done", values)


ROLES = {"writer": write, "consumer": consume}


async def work(role: str, url: str, topic: str, journal: Path) -> None:
    async with txnframework.open(config(url)) as client:
        await ROLES[role](client, topic, Journal(journal), journal.stem)


async def fill(url: str, topic: str, messages: int) -> None:
    async with txnframework.open(config(url)) as client:
        await client.create_topic(topic)
        await client.subscribe(topic, BILLING, start="earliest")
        producer = await client.producer(topic)
        for first in range(0, messages, FILLED_TOGETHER):
            last = min(messages, first + FILLED_TOGETHER)
            await producer.send_many([f"filled-{number}".encode() for number in range(first, last)])


async def read_all(url: str, topic: str) -> tuple[list[str], list[str]]:
    """Return all messages of the topic, and those that the subscription still delivers."""
    async with txnframework.open(config(url)) as client:
        # What the killed processes left open is aborted when their sessions have expired; it hides what is behind it.
        while any((await client.undecided(topic)).values()):
            await client.maintain()
            await asyncio.sleep(0.1)
        stored = [message.value.decode() async for message in await client.reader(topic)]
        left: list[str] = []
        async with await client.consumer(topic, BILLING, type="shared", stand_by=True) as consumer:
            while True:
                try:
                    found = await consumer.receive_many(messages_max=10_000, timeout_ms=30_000)
                except ReceiveTimeout:
                    return stored, left
                left += [message.value.decode() for message in found]
                await consumer.ack(*found)


class Crew:
    """The processes of a run, which are killed and started again."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._started = 0
        self._journals: dict[str, Path] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills: Counter[str] = Counter()

    def start(self, name: str) -> None:
        self._started += 1
        if name == "migrator":
            command = [
                "-m",
                "txnframework",
                "topic",
                "migrate",
                *TOPICS,
                "--yes",
                "--wait-s",
                "1",
                "--output",
                "json",
            ]
        else:
            role = name.partition(" ")[0]
            journal = self._folder / f"{role}-{self._started}.jsonl"
            self._journals[name] = journal
            command = [__file__, "--role", role, "--url", self._url, "--topic", TOPICS[0]]
            command += ["--journal", str(journal)]
        log = (self._folder / f"{name.replace(' ', '-')}.log").open("ab")
        self.running[name] = subprocess.Popen([sys.executable, *command], cwd=self._folder, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.kills[name.partition(" ")[0]] += 1
        self.running[name].kill()
        self.running[name].wait()

    def is_working(self, name: str) -> bool:
        """Return whether a process has begun its work, so that a kill interrupts something."""
        journal = self._journals.get(name)
        return name in self.running and (journal is None or (journal.exists() and journal.stat().st_size > 0))

    def stop(self) -> None:
        for one in self.running.values():
            one.kill()
            one.wait()


def events(folder: Path, role: str) -> Iterator[tuple[Path, list[tuple[float, str, list[str]]]]]:
    for path in sorted(folder.glob(f"{role}-*.jsonl")):
        lines = path.read_text().splitlines()
        yield path, [(at, event, values) for at, event, values in map(json.loads, filter(_whole, lines))]


def _whole(line: str) -> bool:
    return line.endswith("]]")


class Verdict:
    """What is wrong, by kind, with the first examples."""

    def __init__(self) -> None:
        self.counts = Counter({"lost": 0, "doubled": 0, "torn": 0, "unknown": 0, "long pauses": 0})
        self.examples: list[str] = []

    def add(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(f"{kind}: {text}")


def judge(folder: Path, messages: int, stored: list[str], left: list[str]) -> Verdict:
    """Compare what is stored, and what the subscription still delivers, with the replies in the journals."""
    verdict, counted = Verdict(), Counter(stored)
    known = {f"filled-{number}" for number in range(messages)}
    for _, noted in events(folder, "writer"):
        for _, event, values in noted:
            known.update(values)
            found = {counted[value] for value in values}
            if len(found) > 1:
                verdict.add("torn", f"{values}, {event}, are there {sorted(found)} times")
            elif event == "done" and found == {0}:
                verdict.add("lost", f"confirmed {values}")
    for one in (f"filled-{number}" for number in range(messages)):
        if not counted[one]:
            verdict.add("lost", one)
    for one, times in counted.items():
        if times > 1:
            verdict.add("doubled", f"{one} is stored {times} times")
        if one not in known:
            verdict.add("unknown", f"{one} was never sent")
    acked: Counter[str] = Counter()
    tried: set[str] = set()
    for _, noted in events(folder, "consumer"):
        for _, event, values in noted:
            tried.update(values)
            if event == "done":
                acked.update(values)
    again = Counter(left)
    for one, times in acked.items():
        if times > 1:
            verdict.add("doubled", f"{one} was acknowledged {times} times")
    for one, times in again.items():
        if times > 1 or one in acked:
            verdict.add("doubled", f"{one} is delivered again")
    for one in counted.keys() - again.keys() - tried:
        verdict.add("lost", f"{one} was neither acknowledged nor delivered")
    return verdict


def pauses_ms(folder: Path, first: float, last: float) -> list[float]:
    """Return the times between two confirmations of one writer that overlap the migration, shortest first."""
    found: list[float] = []
    for _, noted in events(folder, "writer"):
        times = [at for at, event, _ in noted if event == "done"]
        found += [(b - a) * 1_000 for a, b in pairwise(times) if b >= first and a <= last]
    return sorted(found)


def quantile(found: list[float], part: float) -> float:
    """Return the value below which a part of the sorted values lies."""
    return found[min(len(found) - 1, int(len(found) * part))] if found else 0.0


def run(url: str, folder: Path, given: argparse.Namespace) -> int:
    chance, messages = random.Random(given.seed), given.messages
    asyncio.run(fill(url, TOPICS[0], messages))
    (folder / "txnframework.toml").write_text(f'[metadata]\nurl = "{url}"\n[ledger]\nurl = "{url}"\n')
    crew = Crew(url, folder)
    names = [f"{role} {number}" for role in ROLES for number in range(WORKERS)]
    for name in names:
        crew.start(name)
    ends_s, migrates_s = None, time.time() + given.before_s
    first = last = 0.0
    while ends_s is None or time.time() < ends_s:
        time.sleep(chance.uniform(0.5, 2.0))
        if not first and time.time() >= migrates_s:
            first = time.time()
            crew.start("migrator")
            names.append("migrator")
        for name, one in tuple(crew.running.items()):
            if one.poll() is None:
                continue
            if name == "migrator" and one.returncode == 0:
                last = time.time()
                ends_s = last + given.after_s
                names.remove(name)
                del crew.running[name]
            else:
                crew.start(name)
        victim = chance.choice(names)
        spared = victim == "migrator" and crew.kills[victim] >= MIGRATOR_KILLS
        if crew.is_working(victim) and not spared and chance.random() < 0.5:
            crew.kill(victim)
            crew.start(victim)
    crew.stop()
    stored, left = asyncio.run(read_all(url, TOPICS[1]))
    verdict = judge(folder, messages, stored, left)
    pauses = pauses_ms(folder, first, last)
    if not pauses or pauses[-1] > given.pause_ms_max:
        verdict.add("long pauses", f"the longest one has {quantile(pauses, 1):.0f} ms")
    rows = {
        "messages stored": f"{len(stored):,}",
        "acknowledged by consumers": f"{len(stored) - len(left):,}",
        "kills": ", ".join(f"{role} {count}" for role, count in sorted(crew.kills.items())) or "none",
        **{kind: str(count) for kind, count in verdict.counts.items()},
        "migration with kills, s": f"{last - first:.1f}",
        "pause of a writer p50, ms": f"{quantile(pauses, 0.5):.0f}",
        "pause of a writer p99, ms": f"{quantile(pauses, 0.99):.0f}",
        "pause of a writer max, ms": f"{quantile(pauses, 1):.0f}",
    }
    print("| what | value |\n|---|---|")
    print("\n".join(f"| {what} | {value} |" for what, value in rows.items()))
    print("\n".join(verdict.examples))
    return 1 if verdict.examples else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--before-s", type=float, default=10)
    parser.add_argument("--after-s", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause-ms-max", type=float, default=2_000)
    parser.add_argument("--url", help="default: an SQLite database in a temporary folder")
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--journal", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role:
        asyncio.run(work(given.role, given.url, given.topic, given.journal))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:///{folder}/txn.db"
        return run(url, Path(folder), given)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
