"""Measure what the design promises, as ratios taken in one run: ``python bench/run.py``.

Absolute times belong to one machine on one day; a ratio of two things measured in turn, in the same process and on
the same disk, can be compared. Each ratio is the median over several rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import txnframework
from txnframework.environment import SystemEnvironment
from txnframework.model import Expect, Key, Put, TopicName
from txnframework_sql import MetadataOptions, open_metadata_store

Measure = Callable[[Path], Awaitable[dict[str, float]]]


async def timed(work: Awaitable[object]) -> float:
    """Seconds that ``work`` takes."""
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


async def put_against_raw_update(directory: Path) -> dict[str, float]:
    """One put of the SQLite metadata store, against one UPDATE and COMMIT by the driver alone, equally durable."""
    raw = sqlite3.connect(directory / "raw.db", isolation_level=None)
    for statement in (
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        "CREATE TABLE t (k TEXT PRIMARY KEY, v BLOB)",
    ):
        raw.execute(statement)
    raw.execute("INSERT INTO t VALUES ('k', x'00')")
    store = await open_metadata_store(f"sqlite:///{directory}/put.db", SystemEnvironment(), MetadataOptions())
    key, writes = Key("/bench"), 200
    await store.put(Put(key, b"", Expect.ABSENT))
    raw_seconds, put_seconds = 0.0, 0.0
    for number in range(writes):
        begun = time.perf_counter()
        raw.execute("BEGIN IMMEDIATE")
        raw.execute("UPDATE t SET v = ? WHERE k = 'k'", (number.to_bytes(8, "big"),))
        raw.execute("COMMIT")
        raw_seconds += time.perf_counter() - begun
        put_seconds += await timed(store.put(Put(key, number.to_bytes(8, "big"), Expect.ANY)))
    await store.close()
    raw.close()
    return {"put / raw UPDATE and COMMIT": put_seconds / raw_seconds}


async def group_commit(directory: Path) -> dict[str, float]:
    """Sends per second of 64 that wait together, against one after the other."""
    async with txnframework.open({"metadata": {"url": f"sqlite:///{directory}/group.db"}}) as client:
        await client.create_topic("t")
        sends = 128
        producers = [await client.producer("t") for _ in range(64)]
        await asyncio.gather(*(producer.send(b"x" * 200) for producer in producers))

        async def one_by_one() -> None:
            for _ in range(sends):
                await producers[0].send(b"x" * 200)

        async def together() -> None:
            for _ in range(sends // 64):
                await asyncio.gather(*(producer.send(b"x" * 200) for producer in producers))

        return {"sends per second, 64 together / one by one": await timed(one_by_one()) / await timed(together())}


async def end_by_participants(directory: Path) -> dict[str, float]:
    """Time to commit a transaction that wrote to 1, 10 and 100 topics: one compare-and-set each."""
    async with txnframework.open({"metadata": {"url": f"sqlite:///{directory}/end.db"}}) as client:
        counts = (1, 10, 100)
        producers = []
        for number in range(max(counts)):
            await client.create_topic(f"t{number}")
            producers.append(await client.producer(f"t{number}"))
        took: dict[int, list[float]] = {count: [] for count in counts}
        for _ in range(5):
            for count in counts:
                async with client.transaction() as txn:
                    await asyncio.gather(*(producer.send(b"x", txn=txn) for producer in producers[:count]))
                    took[count].append(await timed(txn.commit()))
        base = statistics.median(took[1])
        return {f"commit, {count} participants / 1": statistics.median(took[count]) / base for count in counts[1:]}


async def recovery_by_history(directory: Path) -> dict[str, float]:
    """Time to open a segment after 300 finished transactions, against after 3: only what is open now decides."""
    took = {}
    for finished in (3, 300):
        config = {"metadata": {"url": f"sqlite:///{directory}/recovery{finished}.db"}}
        async with txnframework.open(config) as client:
            await client.create_topic("t")
            async with await client.producer("t") as producer:
                for number in range(finished):
                    async with client.transaction() as txn:
                        await producer.send(str(number).encode(), txn=txn)
        async with txnframework.open(config) as client:
            layout = await client.topics.layout(TopicName.parse("t"))
            name = str(layout.name_of(layout.active()[0].id))
            took[finished] = await timed(client.host.segment(name))
    return {"recovery after 300 transactions / 3": took[300] / took[3]}


async def transactional_send(directory: Path) -> dict[str, float]:
    """1,000 messages sent in one transaction, its commit included, against 1,000 sent outside transactions."""
    async with txnframework.open({"metadata": {"url": f"sqlite:///{directory}/send.db"}}) as client:
        await client.create_topic("t")
        async with await client.producer("t") as producer:
            values = [b"x" * 200] * 1_000
            await producer.send_many(values)

            async def in_transaction() -> None:
                async with client.transaction() as txn:
                    await producer.send_many(values, txn=txn)

            return {
                "1,000 messages in a transaction / outside": await timed(in_transaction())
                / await timed(producer.send_many(values))
            }


MEASURES: tuple[Measure, ...] = (
    put_against_raw_update,
    group_commit,
    end_by_participants,
    recovery_by_history,
    transactional_send,
)


def main() -> None:
    """Run every measure in turn, several rounds, and show the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="write the result, with the machine, as JSON to this file")
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {}
    for number in range(arguments.rounds):
        for measure in MEASURES:
            print(f"\rround {number + 1} of {arguments.rounds}: {measure.__name__:<28}", end="", flush=True)
            with tempfile.TemporaryDirectory() as directory:
                for name, ratio in asyncio.run(measure(Path(directory))).items():
                    found.setdefault(name, []).append(ratio)
    print("\r" + " " * 60)
    for name, ratios in found.items():
        print(f"{name:<50} {statistics.median(ratios):7.2f}   ({min(ratios):.2f} to {max(ratios):.2f})")
    if arguments.keep:
        machine = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "system": platform.system(),
            "processors": os.cpu_count(),
        }
        arguments.keep.write_text(json.dumps({"machine": machine, "ratios": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
