"""
An order service whose workers are killed: each order gives one row, one invoice and one acknowledgment, or nothing.

    python tests/end_to_end/order_service.py --backend postgresql --orders 20000 --workers 4 --kills 100 --topics 2

Each worker consumes orders, inserts a row into its own table, sends an invoice and acknowledges the order. One COMMIT
decides all three. The parent kills a random worker at a random step with SIGKILL, and starts another one. At the end it
compares rows, invoices and acknowledgments with the orders.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import queue
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

import txnframework
from txnframework import Client, Consumer, Message, Producer
from txnframework.errors import Conflict, NotFound, OutcomeUnknown, ReceiveTimeout, Unavailable

SUBSCRIPTION = "billing"
_TABLE = "CREATE TABLE invoices (number BIGINT NOT NULL, worker BIGINT NOT NULL)"
_INSERT = text("INSERT INTO invoices (number, worker) VALUES (:number, :worker)")
_ROWS = "SELECT number FROM invoices"
_IDLE_MS = 500
# The steps of a transaction at which a worker may be killed; after the last one, the COMMIT is being sent.
_STEPS = ("begun", "sent", "acknowledged", "inserted")
_AFTER_STEP_MAX_S = 0.008


@dataclass(frozen=True)
class Plan:
    """How much work there is, and how often it is disturbed."""

    orders: int
    workers: int
    kills: int
    topics: int
    batch: int
    seed: int
    patience_s: float = 3600
    report_s: float = 60


@dataclass
class Found:
    """The rows, invoices and acknowledgments at the end."""

    rows: Counter[int] = field(default_factory=Counter)
    invoices: Counter[int] = field(default_factory=Counter)
    left: int = 0
    kills: int = 0
    failed: int = 0
    seconds: float = 0

    def differences(self, orders: int) -> list[str]:
        """Return a sentence for each violation of exactly-once processing."""
        wanted = Counter(range(orders))
        found = []
        for what, counted in (("rows", self.rows), ("invoices", self.invoices)):
            if counted != wanted:
                lost, extra = wanted - counted, counted - wanted
                found.append(f"{what}: {len(lost)} lost, {sum(extra.values())} too many ({[*lost, *extra][:5]})")
        if self.left:
            found.append(f"{self.left} orders are not acknowledged")
        return found


# -- the application's own database -------------------------------------------------------------------


def _engine(url: str) -> AsyncEngine:
    if url.startswith("sqlite"):
        # A connection that waits for the file's write lock must not block the loop in which its holder runs.
        return create_async_engine(f"sqlite+aiosqlite:///{_path(url)}", connect_args={"timeout": 30})
    return create_async_engine(urlsplit(url)._replace(scheme="postgresql+asyncpg").geturl())


def _path(url: str) -> str:
    return url.removeprefix("sqlite:///")


async def _execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(_path(url))) as connection:
            return connection.execute(statement).fetchall()
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# -- a worker -----------------------------------------------------------------------------------------


async def work(config: Mapping[str, object], url: str, topics: int, batch: int) -> None:
    """Serve every topic until no order is left."""
    engine = _engine(url)
    async with txnframework.open(config) as client:
        await asyncio.gather(*(_serve(client, engine, number, batch) for number in range(topics)))
    await engine.dispose()


async def _serve(client: Client, engine: AsyncEngine, number: int, batch: int) -> None:
    consumer = await client.consumer(f"orders-{number}", SUBSCRIPTION, start="earliest", stand_by=True)
    producer = await client.producer(f"invoices-{number}")
    while True:
        try:
            orders = await consumer.receive_many(messages_max=batch, timeout_ms=_IDLE_MS)
        except ReceiveTimeout:
            # A killed worker may have held orders, which come again later.
            if (await client.lag(f"orders-{number}", SUBSCRIPTION)).messages == 0:
                return
            continue
        try:
            async with AsyncSession(engine) as session:
                await _bill(client, session, consumer, producer, orders)
        except (Conflict, NotFound, Unavailable, OutcomeUnknown, DBAPIError) as error:
            _say(f"failed {type(error).__name__}: {error}")
            await consumer.redeliver_unacknowledged()


async def _bill(
    client: Client, session: AsyncSession, consumer: Consumer, producer: Producer, orders: tuple[Message, ...]
) -> None:
    async with client.transaction(commit_with=session) as txn:
        _say("begun")
        for order in orders:
            await producer.send(order.value, txn=txn)
        _say("sent")
        await consumer.ack(*orders, txn=txn)
        _say("acknowledged")
        # Own rows come last: SQLite has one writer for each file.
        for order in orders:
            await session.execute(_INSERT, {"number": int(order.value), "worker": os.getpid()})
        _say("inserted")
    _say("committed")


# -- the parent ---------------------------------------------------------------------------------------


class Service:
    """The running workers, and the lines that they print."""

    def __init__(self, config: Mapping[str, object], url: str, plan: Plan) -> None:
        self._arguments = [json.dumps({"config": config, "url": url, "topics": plan.topics, "batch": plan.batch})]
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._lines: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._workers: dict[int, subprocess.Popen[str]] = {}
        self.kills = self.committed = 0
        self.failures: Counter[str] = Counter()

    def run(self) -> None:
        """Start workers, kill some of them, and return when the last ones have ended by themselves."""
        try:
            for _ in range(self._plan.workers):
                self._start()
            until_kill, step = self._next()
            report_s = time.monotonic()
            while self._workers:
                pid, line = self._lines.get(timeout=self._plan.patience_s)
                self.committed += line == "committed"
                if line.startswith("failed "):
                    self.failures[line.split()[1].rstrip(":")] += 1
                if time.monotonic() > report_s:
                    report_s = time.monotonic() + self._plan.report_s
                    self._report()
                if not line:
                    self._end(pid)
                elif line == step and pid in self._workers and self.kills < self._plan.kills:
                    until_kill -= 1
                    if until_kill <= 0:
                        self._kill(pid)
                        until_kill, step = self._next()
        finally:
            for process in self._workers.values():
                process.kill()
                process.communicate()

    def _report(self) -> None:
        failures = ", ".join(f"{count} {kind}" for kind, count in sorted(self.failures.items())) or "no failures"
        sys.stderr.write(f"{self.committed} transactions committed, {self.kills} kills, {failures}\n")

    def _next(self) -> tuple[int, str]:
        """Return at which occurrence of which step the next worker is killed."""
        transactions = self._plan.orders / self._plan.batch
        return 1 + self._random.randrange(max(1, int(transactions / (self._plan.kills + 1)))), self._random.choice(
            _STEPS
        )

    def _start(self) -> None:
        process = subprocess.Popen(
            [sys.executable, __file__, "--work", *self._arguments], stdout=subprocess.PIPE, text=True
        )
        self._workers[process.pid] = process
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put((process.pid, line.strip() or "-"))
        process.stdout.close()
        self._lines.put((process.pid, ""))

    def _kill(self, pid: int) -> None:
        # The step has been announced; somewhat later the process is in the next one, such as the COMMIT.
        time.sleep(self._random.random() * _AFTER_STEP_MAX_S)
        process = self._workers.pop(pid)
        process.kill()
        process.wait()
        self.kills += 1
        self._start()

    def _end(self, pid: int) -> None:
        process = self._workers.pop(pid, None)
        if process is not None and process.wait():
            raise AssertionError(f"worker {pid} ended with status {process.returncode}")


async def prepare(config: Mapping[str, object], url: str, plan: Plan) -> None:
    """Make topics and table, and send the orders."""
    async with txnframework.open(config) as client:
        for number in range(plan.topics):
            for name in (f"orders-{number}", f"invoices-{number}"):
                await client.create_topic(name)
            await client.subscribe(f"orders-{number}", SUBSCRIPTION, start="earliest")
            async with await client.producer(f"orders-{number}") as producer:
                mine = range(number, plan.orders, plan.topics)
                for start in range(0, len(mine), 1000):
                    await asyncio.gather(*(producer.send(str(order).encode()) for order in mine[start : start + 1000]))
    await _execute(url, _TABLE)


async def count(config: Mapping[str, object], url: str, plan: Plan) -> Found:
    """Return what counts in the end."""
    found = Found(Counter(number for (number,) in await _execute(url, _ROWS)))
    async with txnframework.open(config) as client:
        await client.maintain()
        for number in range(plan.topics):
            async with await client.reader(f"invoices-{number}") as reader:
                found.invoices.update([int(message.value) async for message in reader])
            found.left += (await client.lag(f"orders-{number}", SUBSCRIPTION)).messages
    return found


def run(config: Mapping[str, object], url: str, plan: Plan) -> Found:
    """Run the whole service; return what counts in the end."""
    asyncio.run(prepare(config, url, plan))
    service = Service(config, url, plan)
    began_s = time.monotonic()
    service.run()
    seconds = time.monotonic() - began_s
    found = asyncio.run(count(config, url, plan))
    found.kills, found.failed, found.seconds = service.kills, service.failures.total(), seconds
    return found


@contextlib.contextmanager
def database(backend: str) -> Iterator[str]:
    """Yield the URL of an empty database."""
    if backend == "sqlite":
        with tempfile.TemporaryDirectory() as directory:
            yield f"sqlite:///{Path(directory) / 'txn.db'}"
        return
    from txnframework_sql.testing.servers.databases import fresh_database

    with fresh_database() as url:
        yield url


def config_of(url: str, session_ttl_ms: int) -> dict[str, object]:
    """Return the configuration of all processes."""
    return {
        "metadata": {"url": url, "options": {"session_ttl_ms": session_ttl_ms}},
        "ledger": {"url": url},
    }


def main() -> None:
    """Run the service once, and print what counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sqlite", "postgresql"], default="postgresql")
    parser.add_argument("--orders", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--topics", type=int, default=2)
    parser.add_argument("--batch", type=int, default=10, help="orders of one transaction")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--session-ttl-ms", type=int, default=2_000)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        given = json.loads(arguments.work)
        asyncio.run(work(given["config"], given["url"], given["topics"], given["batch"]))
        return
    plan = Plan(
        *(arguments.orders, arguments.workers, arguments.kills, arguments.topics, arguments.batch, arguments.seed)
    )
    with database(arguments.backend) as url:
        found = run(config_of(url, arguments.session_ttl_ms), url, plan)
    differences = found.differences(plan.orders)
    _say(
        f"{plan.orders} orders, {found.kills} kills, {found.failed} failed transactions, {found.seconds:.1f} s:"
        f" {'; '.join(differences) or 'rows = invoices = acknowledgments'}"
    )
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
