"""
Measure workers on PostgreSQL beside a table with SKIP LOCKED and beside Procrastinate: ``python bench/queues.py``.

A worker takes a message, writes one, and acknowledges the first one, exactly once. With ``rows`` it also writes a row
of the application in the same transaction. ``c16`` has 16 handlers under way, ``p2`` is two processes with the queue
shared between them, and ``b100`` takes up to 100 messages together. All sides use one server, in turn, with every
commit on disk, so that other work on the machine disturbs all. Procrastinate finishes its jobs at least once, in a
statement of its own; it is measured if it is installed.

The rate counts from a tenth of the messages on, so neither starting nor opening is part of it. The transactions are
those of the database for a message, of all programs, from the start of the workers on. ``--keep`` stores every round in
``bench/results/queues.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
from measurement import machine
from rich.console import Console
from rich.table import Table

import txnframework
from txnframework_sql.testing.servers.postgresql import PostgresServer

RESULTS = Path(__file__).parent / "results" / "queues.json"
SEGMENTS = 4
KEYS = 100
REPORT_S = 0.01
TABLES = """
CREATE SCHEMA txn;
CREATE TABLE payments (id bigserial PRIMARY KEY, order_id text NOT NULL, cents int NOT NULL);
CREATE TABLE queue (id bigserial PRIMARY KEY, key bytea NOT NULL, value bytea NOT NULL);
CREATE TABLE outbox (id bigserial PRIMARY KEY, key bytea NOT NULL, value bytea NOT NULL);
"""
TAKE = """
DELETE FROM queue WHERE id IN (SELECT id FROM queue ORDER BY id FOR UPDATE SKIP LOCKED LIMIT $1) RETURNING key, value
"""
STILL_CONNECTED = """
SELECT count(*) > 1 FROM pg_stat_activity, pg_sleep($1) WHERE datname = current_database()
"""
PAY = "INSERT INTO payments (order_id, cents) VALUES ($1, $2)"


class Work(NamedTuple):
    """What the workers of one measurement do; ``messages``: how many for ``--scale 1``."""

    name: str
    handlers: int
    processes: int
    batch: int
    has_rows: bool
    messages: int
    target: float | None


WORKS = (
    Work("c1", 1, 1, 1, False, 3_000, 0.7),
    Work("c16", 16, 1, 1, False, 10_000, 1.0),
    Work("c16 p2", 16, 2, 1, False, 10_000, 1.0),
    Work("b100", 1, 1, 100, False, 40_000, 0.5),
    Work("rows c1", 1, 1, 1, True, 2_000, 0.6),
    Work("rows c16", 16, 1, 1, True, 5_000, 0.6),
    Work("rows c16 p2", 16, 2, 1, True, 5_000, 0.6),
)


def key(number: int) -> bytes:
    return b"c%d" % (number % KEYS)


def order(number: int) -> bytes:
    return json.dumps({"id": f"{number:032x}", "customer": f"c{number % KEYS}", "cents": 100 + number}).encode()


def stores(url: str) -> dict[str, object]:
    """Return our configuration, with a schema of our own beside the tables of the application."""
    return {"metadata": {"url": f"{url}?options=-csearch_path%3Dtxn"}}


class Round(NamedTuple):
    """Handled messages in a second, and the transactions of the database for each of them."""

    rate: float
    transactions: float


# -- one worker ---------------------------------------------------------------------------------------


class Progress:
    """Counts handled messages, and reports the count and the time to the parent on the standard output."""

    def __init__(self) -> None:
        self.handled = 0

    async def report(self) -> None:
        reported = 0
        while True:
            if self.handled > reported:
                reported = self.handled
                print(reported, time.time(), flush=True)
            await asyncio.sleep(REPORT_S)


async def begin() -> None:
    """Report that the worker is ready, and wait until the parent lets it begin."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def work_ours(url: str, work: Work, progress: Progress) -> None:
    pool = await asyncpg.create_pool(url, min_size=work.handlers, max_size=work.handlers) if work.has_rows else None

    async with txnframework.open(stores(url)) as client, client.producer("paid") as paid:
        await begin()
        async with client.consumer("orders", "charging", type="shared", start="earliest") as orders:
            if pool is not None:

                async def pay(message: txnframework.Message[bytes], connection: Any) -> Any:
                    read = json.loads(message.value)
                    await connection.execute(PAY, read["id"], read["cents"])
                    progress.handled += 1
                    return paid.outgoing(message.value, key=message.key)

                await orders.run(pay, commit_with=pool.acquire, concurrency=work.handlers)
            elif work.batch > 1:

                async def forward_all(messages: tuple[txnframework.Message[bytes], ...]) -> list[Any]:
                    progress.handled += len(messages)
                    return [paid.outgoing(one.value, key=one.key) for one in messages]

                await orders.run_batches(forward_all, messages_max=work.batch, concurrency=work.handlers)
            else:

                async def forward(message: txnframework.Message[bytes]) -> Any:
                    progress.handled += 1
                    return paid.outgoing(message.value, key=message.key)

                await orders.run(forward, concurrency=work.handlers)


async def work_skip_locked(url: str, work: Work, progress: Progress) -> None:
    async with asyncpg.create_pool(url, min_size=work.handlers, max_size=work.handlers) as pool:
        await begin()

        async def handle() -> None:
            while True:
                async with pool.acquire() as connection, connection.transaction():
                    taken = await connection.fetch(TAKE, work.batch)
                    if not taken:
                        return
                    for one in taken if work.has_rows else ():
                        read = json.loads(one["value"])
                        await connection.execute(PAY, read["id"], read["cents"])
                    pairs = [(one["key"], one["value"]) for one in taken]
                    if len(pairs) == 1:
                        await connection.execute("INSERT INTO outbox (key, value) VALUES ($1, $2)", *pairs[0])
                    else:
                        await connection.execute(
                            "INSERT INTO outbox (key, value) SELECT * FROM unnest($1::bytea[], $2::bytea[])",
                            *map(list, zip(*pairs, strict=True)),
                        )
                progress.handled += len(taken)

        await asyncio.gather(*(handle() for _ in range(work.handlers)))
    await asyncio.Event().wait()


def procrastinate_app(url: str, connections: int, pool: Any = None, progress: Progress | None = None) -> Any:
    """Return the app; its connector's pool has ``connections``."""
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=url, min_size=2, max_size=connections))

    @app.task(queue="orders", name="charge")
    async def charge(id: str, cents: int, **_: object) -> None:
        assert progress is not None
        if pool is not None:
            await pool.execute(PAY, id, cents)
        await paid.defer_async(id=id, cents=cents)
        progress.handled += 1

    @app.task(queue="paid", name="paid")
    async def paid(id: str, cents: int) -> None: ...

    return app


async def work_procrastinate(url: str, work: Work, progress: Progress) -> None:
    pool = await asyncpg.create_pool(url, min_size=work.handlers, max_size=work.handlers) if work.has_rows else None
    app = procrastinate_app(url, work.handlers + 4, pool, progress)
    async with app.open_async():
        await begin()
        await app.run_worker_async(queues=["orders"], concurrency=work.handlers, wait=False)
    await asyncio.Event().wait()


async def fill(side: str, url: str, messages: int) -> None:
    """Create the tables of a side, and store the messages that its workers take."""
    connection = await asyncpg.connect(url)
    await connection.execute(TABLES)
    if side == "skip locked":
        rows = [(key(number), order(number)) for number in range(messages)]
        await connection.executemany("INSERT INTO queue (key, value) VALUES ($1, $2)", rows)
    await connection.close()
    if side == "procrastinate":
        app = procrastinate_app(url, 4)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            tasks = [json.loads(order(number)) for number in range(messages)]
            await app.tasks["charge"].batch_defer_async(*tasks)
    if side == "ours":
        async with txnframework.open(stores(url)) as client:
            await client.create_topic("orders", segments=SEGMENTS)
            await client.create_topic("paid", segments=SEGMENTS)
            await client.subscribe("orders", "charging", start="earliest")
            async with client.producer("orders") as producer:
                for first in range(0, messages, 500):
                    some = range(first, min(messages, first + 500))
                    await asyncio.gather(*(producer.send(order(number), key=key(number)) for number in some))


SIDES: dict[str, Callable[[str, Work, Progress], Awaitable[None]]] = {
    "ours": work_ours,
    "skip locked": work_skip_locked,
    "procrastinate": work_procrastinate,
}


async def run_worker(side: str, url: str, work: Work) -> None:
    progress = Progress()
    reporting = asyncio.create_task(progress.report())
    await SIDES[side](url, work, progress)
    reporting.cancel()


# -- the measurement ----------------------------------------------------------------------------------


@contextmanager
def workers(side: str, url: str, work: Work) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the processes of a side, which wait until they may begin."""
    command = [sys.executable, __file__, "--worker", side, url, work.name]
    with ExitStack() as stack:
        started = []
        for _ in range(work.processes):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "the worker failed"
        yield started


async def committed_in(url: str) -> int:
    """Return the number of the database's transactions; those of a session are counted once it has ended."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
    finally:
        await connection.close()


async def sessions_ended(url: str) -> None:
    """Wait until the server has noticed that the workers were killed."""
    connection = await asyncpg.connect(url)
    try:
        while await connection.fetchval(STILL_CONNECTED, REPORT_S):
            pass
    finally:
        await connection.close()


async def measure_round(side: str, url: str, work: Work, messages: int, timeout_s: float) -> Round:
    """Return what the workers of a side did."""
    await fill(side, url, messages)
    await sessions_ended(url)
    before = await committed_in(url)
    with workers(side, url, work) as started:
        counts = [0] * len(started)
        points: list[tuple[float, int]] = []

        def follow(number: int) -> None:
            for line in started[number].stdout or ():
                if not line.endswith("\n"):
                    return  # the worker was killed while it wrote
                count, at = line.split()
                counts[number] = int(count)
                points.append((float(at), sum(counts)))
                if sum(counts) >= messages:
                    return

        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        following = [asyncio.to_thread(follow, number) for number in range(len(started))]
        tasks = [asyncio.ensure_future(one) for one in following]
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for process in started:
            process.kill()
        await asyncio.gather(*tasks)
    points.sort()
    if not points or points[-1][1] < messages / 5:
        raise RuntimeError(f"{side}, {work.name}: the workers failed, or handled too few messages in {timeout_s:g} s")
    first = next(point for point in points if point[1] >= messages / 10)
    await sessions_ended(url)
    transactions = (await committed_in(url) - before) / points[-1][1]
    return Round((points[-1][1] - first[1]) / (points[-1][0] - first[0]), transactions)


async def measure(
    works: list[Work], sides: list[str], rounds: int, scale: float, timeout_s: float, report: Callable[[str], None]
) -> dict[str, dict[str, list[Round]]]:
    """Return the rounds, by work and side."""
    found: dict[str, dict[str, list[Round]]] = {work.name: {side: [] for side in sides} for work in works}
    with PostgresServer() as server:
        for number in range(rounds):
            for work in works:
                for side in sides:
                    report(f"round {number + 1} of {rounds}, {work.name}, {side}")
                    url = server.create_database("measured")
                    messages = max(200, int(work.messages * scale))
                    found[work.name][side].append(await measure_round(side, url, work, messages, timeout_s))
                    server.run("DROP DATABASE measured WITH (FORCE)")
    return found


def table(works: list[Work], found: dict[str, dict[str, list[Round]]]) -> Table:
    """Return the medians and ranges, and our share of SKIP LOCKED in the rounds."""
    shown = Table(title="messages/s (median, range), and transactions of the database for a message")
    shown.add_column("worker")
    sides = list(next(iter(found.values())))
    for side in sides:
        shown.add_column(side, justify="right")
    shown.add_column("ours / skip locked", justify="right")
    shown.add_column("wanted", justify="right")
    for work in works:
        rates = {side: [one.rate for one in some] for side, some in found[work.name].items()}
        counts = {side: statistics.median(one.transactions for one in some) for side, some in found[work.name].items()}
        cells = [
            f"{statistics.median(some):,.0f} ({min(some):,.0f} to {max(some):,.0f}), {counts[side]:.1f}"
            for side, some in rates.items()
        ]
        shares = [one / other for one, other in zip(rates.get("ours", ()), rates.get("skip locked", ()), strict=False)]
        share = f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})" if shares else ""
        shown.add_row(work.name, *cells, share, f"≥ {work.target}" if work.target else "")
    return shown


def as_dicts(found: dict[str, dict[str, list[Round]]]) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Return the rounds as they are kept."""
    return {
        work: {side: [one._asdict() for one in some] for side, some in sides.items()} for work, sides in found.items()
    }


def main() -> None:
    """Measure the sides in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[work.name for work in WORKS], action="append", help="may be repeated")
    parser.add_argument("--side", choices=list(SIDES), action="append", help="may be repeated; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="how many of the messages; default: 1")
    parser.add_argument("--timeout-s", type=float, default=120, help="the longest measurement; then the rate so far")
    parser.add_argument("--keep", action="store_true", help=f"store the figures in {RESULTS.name}")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        side, url, name = arguments.worker
        asyncio.run(run_worker(side, url, next(work for work in WORKS if work.name == name)))
        return
    works = [work for work in WORKS if not arguments.only or work.name in arguments.only]
    installed = [side for side in SIDES if side != "procrastinate" or find_spec("procrastinate")]
    sides = arguments.side or installed
    console = Console()
    with console.status("starting") as status:
        found = asyncio.run(
            measure(works, sides, arguments.rounds, arguments.scale, arguments.timeout_s, status.update)
        )
    console.print(table(works, found))
    if arguments.keep:
        RESULTS.write_text(
            json.dumps({"machine": machine(), "rounds": as_dicts(found)}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
