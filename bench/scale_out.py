"""
Measure ledgers and transactions on NATS and on PostgreSQL in one run: ``python bench/scale_out.py --writers 1,10,50``.

Each writer is a process. For ``raw``, ``own`` and ``one`` it has 64 calls under way. A call of ``raw`` publishes one
message with the driver alone, or inserts one row, of 100 bytes. A call of ``own`` appends one entry of 100 bytes to a
ledger of the process, and a call of ``one`` to a ledger that all processes share. ``end`` is the median time of ending
a transaction that has sent one message, and ``update`` that of one raw update with a condition, with one call under way
in each process. Each round measures all of them in turn, so that other work on the machine disturbs all.

Everything is confirmed: by two of three servers that sync each message, and by a database that syncs each commit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
import nats as driver
from nats.js.api import StreamConfig

import txnframework
from txnframework.model import Append
from txnframework_nats.testing.servers.nats import Nats, Setup
from txnframework_sql.testing.servers.postgresql import PostgresServer

ENTRY = b"x" * 100
UNDER_WAY = 64
SERVERS = 3
RATES, TIMES = ("raw", "own", "one"), ("end", "update")
TABLES = """
CREATE TABLE IF NOT EXISTS raw (place bigserial PRIMARY KEY, data bytea NOT NULL);
CREATE TABLE IF NOT EXISTS one (key text PRIMARY KEY, version bigint NOT NULL, value bytea NOT NULL);
"""

Call = Callable[[], Awaitable[object]]
Started = list[asyncio.subprocess.Process]


# -- one process --------------------------------------------------------------------------------------


async def rate(call: Call, seconds: float) -> float:
    """Return how many calls a second finish, many at a time."""
    begun = time.perf_counter()
    until, finished = begun + seconds, 0

    async def repeat() -> None:
        nonlocal finished
        while time.perf_counter() < until:
            await call()
            finished += 1

    await asyncio.gather(*(repeat() for _ in range(UNDER_WAY)))
    return finished / (time.perf_counter() - begun)


async def median_ms(call: Callable[[], Awaitable[float]], seconds: float) -> float:
    """Return the median of what calls, one after the other, measure."""
    until, taken = time.perf_counter() + seconds, [await call()]
    while time.perf_counter() < until:
        taken.append(await call())
    return 1_000 * statistics.median(taken)


async def raw_nats(hosts: str, number: int, stack: AsyncExitStack) -> tuple[Call, Call]:
    """Return a call that publishes a message, and one that replaces one under a condition."""
    connection = await driver.connect([f"nats://{host}" for host in hosts.split(",")])
    stack.push_async_callback(connection.close)
    stream, last = connection.jetstream(timeout=60), 0

    async def update() -> None:
        nonlocal last
        headers = {"Nats-Expected-Last-Subject-Sequence": str(last), "Nats-Rollup": "sub"}
        last = (await stream.publish(f"raw.one.{number}", ENTRY, headers=headers)).seq

    return lambda: stream.publish(f"raw.many.{number}", ENTRY), update


async def raw_postgresql(url: str, number: int, stack: AsyncExitStack) -> tuple[Call, Call]:
    """Return a call that inserts a row, and one that updates one under a condition; each is committed."""
    connection = await asyncpg.connect(url)
    stack.push_async_callback(connection.close)
    alone, version, key = asyncio.Lock(), 0, str(number)
    await connection.execute("INSERT INTO one VALUES ($1, 0, $2)", key, ENTRY)

    async def insert() -> None:
        async with alone:
            await connection.execute("INSERT INTO raw (data) VALUES ($1)", ENTRY)

    async def update() -> None:
        nonlocal version
        statement = "UPDATE one SET version = version + 1, value = $3 WHERE key = $1 AND version = $2"
        assert await connection.execute(statement, key, version, ENTRY) == "UPDATE 1"
        version += 1

    return insert, update


async def work(engine: str, store: str, raw_at: str, number: int) -> None:
    """Answer each line of the standard input, ``WHAT SECONDS``, with a figure."""
    async with AsyncExitStack() as stack:
        insert, update = await (raw_nats if engine == "nats" else raw_postgresql)(raw_at, number, stack)
        # A busy machine answers late.
        patient = {"connect_timeout_ms": 300_000, "request_timeout_ms": 120_000} if engine == "nats" else {}
        stores = {name: {"url": store, "options": patient} for name in ("metadata", "ledger")}
        client = await stack.enter_async_context(txnframework.open(stores))
        own = await client.host.ledgers.create(f"own-{number}")
        one = await client.host.ledgers.create("one")
        await client.create_topic(f"topic-{number}")
        producer = await client.producer(f"topic-{number}")

        async def end() -> float:
            txn = client.transaction()
            await txn.begin()
            await producer.send(ENTRY, txn=txn)
            begun = time.perf_counter()
            await txn.commit()
            return time.perf_counter() - begun

        async def timed_update() -> float:
            begun = time.perf_counter()
            await update()
            return time.perf_counter() - begun

        calls: dict[str, Call] = {
            "raw": insert,
            "own": lambda: own.append((Append(ENTRY),), None),
            "one": lambda: one.append((Append(ENTRY),), None),
        }
        print("ready", flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            what, seconds = line.split()
            if what in calls:
                print(await rate(calls[what], float(seconds)), flush=True)
            else:
                print(await median_ms(end if what == "end" else timed_update, float(seconds)), flush=True)


# -- all processes ------------------------------------------------------------------------------------


@asynccontextmanager
async def processes(engine: str, store: str, raw_at: str, count: int) -> AsyncIterator[Started]:
    """Start writers, a few at a time; they end with the block."""
    started: Started = []
    try:
        for number in range(count):
            command = (sys.executable, __file__, "--worker", engine, store, raw_at, str(number))
            pipe = asyncio.subprocess.PIPE
            started.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
            if number % 2 == 0:  # the first one makes the streams or tables alone
                await asyncio.gather(*(answer(process) for process in started[-2:]))
        if count % 2 == 0:
            await answer(started[-1])
        yield started
    finally:
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
        for process in started:
            await process.wait()


async def answer(process: asyncio.subprocess.Process) -> str:
    """Return the next line of a writer."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode().strip()
    assert line, "a writer has failed"
    return line


async def ask(started: Started, what: str, seconds: float) -> list[float]:
    """Let all writers measure at once; return their figures."""
    for process in started:
        assert process.stdin is not None
        process.stdin.write(f"{what} {seconds}\n".encode())
    return [float(one) for one in await asyncio.gather(*map(answer, started))]


@contextmanager
def engines(chosen: str) -> Iterator[tuple[str, str]]:
    """Start the servers of an engine; yield the URL of a new store there, and where the raw side connects to."""
    if chosen == "nats":
        with (
            tempfile.TemporaryDirectory() as directory,
            Nats(Path(directory), servers=SERVERS, setup=Setup(sync_interval="always")) as nats,
        ):
            yield f"nats://{nats.hosts}/bench", nats.hosts
    else:
        with PostgresServer({"max_connections": "1000"}) as server:  # each process opens some
            yield server.create_database("bench"), server.create_database("raw")


async def prepare(engine: str, raw_at: str) -> None:
    """Make the stream or the tables of the raw side."""
    if engine == "nats":
        connection = await driver.connect([f"nats://{host}" for host in raw_at.split(",")])
        config = StreamConfig(name="raw", subjects=["raw.>"], num_replicas=SERVERS)
        request = {**config.as_dict(), "allow_rollup_hdrs": True, "storage": "file"}
        await connection.request("$JS.API.STREAM.CREATE.raw", json.dumps(request).encode())
        await connection.close()
    else:
        database = await asyncpg.connect(raw_at)
        await database.execute(TABLES)
        await database.close()


async def measure(engine: str, store: str, raw_at: str, writers: int, rounds: int, seconds: float) -> None:
    """Measure one number of writers, and print the figures and their ratios."""
    await prepare(engine, raw_at)
    found: dict[str, list[float]] = {what: [] for what in RATES + TIMES}
    async with processes(engine, store, raw_at, writers) as started:
        for what in RATES + TIMES:
            await ask(started, what, 0.2)
        for _ in range(rounds):
            for what in RATES:
                found[what].append(sum(await ask(started, what, seconds)))
            for what in TIMES:
                found[what].append(statistics.median(await ask(started, what, seconds)))
    raw, own, one, end, update = (statistics.median(found[what]) for what in RATES + TIMES)
    print(
        f"{engine}, {writers} processes: raw {raw:,.0f} rows/s; a ledger each {own:,.0f} ({own / raw:.2f} of raw); one"
        f" ledger {one:,.0f} ({one / raw:.2f}); end {end:.1f} ms, raw update {update:.1f} ms ({end / update:.2f})",
        flush=True,
    )


def main() -> None:
    """Start the servers of both engines, and measure each number of writers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="nats,postgresql")
    parser.add_argument("--writers", default="1,10,50")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        engine, store, raw_at, number = arguments.worker
        asyncio.run(work(engine, store, raw_at, int(number)))
        return
    for writers in map(int, arguments.writers.split(",")):
        for engine in arguments.engines.split(","):
            with engines(engine) as (store, raw_at):
                asyncio.run(measure(engine, store, raw_at, writers, arguments.rounds, arguments.seconds))


if __name__ == "__main__":
    main()
