"""
Measure the order service of docs/examples beside one that is written by hand: ``python bench/services.py``.

Both are FastAPI with SQLAlchemy and asyncpg, on one embedded PostgreSQL with every commit on disk, in turn. A request
stores an order and a message in one transaction. A worker of the same process stores an invoice and removes the message
in another one. By hand (``service_by_hand.py``), messages are rows of a table, and NOTIFY wakes the worker.

The first figure is the time from a request to the invoice, of one order after the other; the second one the number of
orders that become invoices in a second, with several clients. ``--keep`` stores every round in
``bench/results/services.json``. Needs fastapi, uvicorn and httpx.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import asyncpg
import httpx
from measurement import machine
from rich.console import Console
from rich.table import Table

from txnframework_sql.testing.servers.postgresql import PostgresServer

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "services.json"
SIDES = {
    "ours": (HERE.parent / "docs" / "examples" / "order_service", "app:app"),
    "by hand": (HERE, "service_by_hand:app"),
}
CLIENTS = 16
WARM_UP = 50
START_S = 60
TARGET = 0.8
BILLED = "SELECT count(*) FROM shop_invoices"


class Round(NamedTuple):
    """The median time from a request to its invoice, and the orders billed in a second."""

    ms: float
    rate: float


@contextmanager
def service(side: str, url: str) -> Iterator[str]:
    """Run a service; yield its address."""
    directory, app = SIDES[side]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "DATABASE_URL": url, "STORES_URL": f"{url}?options=-csearch_path%3Dtxn"}
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "warning", "--no-access-log"]
    process = subprocess.Popen(command, cwd=directory, env=environment)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


async def serving(client: httpx.AsyncClient) -> None:
    """Wait until the service answers."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            if (await client.get("/health")).status_code == 200:
                return
        except httpx.TransportError:
            await asyncio.sleep(0.1)
    raise RuntimeError("the service does not start")


async def place(client: httpx.AsyncClient) -> None:
    """Place an order."""
    answer = await client.post("/orders", json={"id": str(uuid4()), "customer": "ada", "cents": 700})
    answer.raise_for_status()


async def until_billed(database: asyncpg.Connection, count: int) -> None:
    """Wait until there are this many invoices."""
    while await database.fetchval(BILLED) < count:  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.0005)


async def measure_round(side: str, url: str, latencies: int, orders: int) -> Round:
    """Return both figures of a service on an empty database."""
    database = await asyncpg.connect(url)
    await database.execute("CREATE SCHEMA txn")
    with service(side, url) as address:
        async with httpx.AsyncClient(base_url=address, timeout=30) as client:
            await serving(client)
            times = []
            for number in range(1, WARM_UP + latencies + 1):
                began = time.perf_counter()
                await place(client)
                await until_billed(database, number)
                times.append((time.perf_counter() - began) * 1e3)
            billed = WARM_UP + latencies
            left = iter(range(orders))

            async def place_some() -> None:
                for _ in left:
                    await place(client)

            began = time.perf_counter()
            await asyncio.gather(*(place_some() for _ in range(CLIENTS)))
            await until_billed(database, billed + orders)
            rate = orders / (time.perf_counter() - began)
    await database.close()
    return Round(statistics.median(times[WARM_UP:]), rate)


async def measure(rounds: int, latencies: int, orders: int, console: Console) -> dict[str, list[Round]]:
    """Return the rounds of each side."""
    found: dict[str, list[Round]] = {side: [] for side in SIDES}
    with PostgresServer() as server, console.status("starting") as status:
        for number in range(rounds):
            for side in SIDES:
                status.update(f"round {number + 1} of {rounds}, {side}")
                url = server.create_database("measured")
                found[side].append(await measure_round(side, url, latencies, orders))
                server.run("DROP DATABASE measured WITH (FORCE)")
    return found


def table(found: dict[str, list[Round]]) -> Table:
    """Return the medians and ranges, and our share of the service by hand."""
    shown = Table(title=f"an order becomes an invoice: medians and ranges; wanted: at least {TARGET} of by hand")
    for column in ("figure", *SIDES, "ours / by hand"):
        shown.add_column(column, justify="left" if column == "figure" else "right")

    def row(what: str, values: dict[str, list[float]], *, is_rate: bool) -> None:
        pairs = zip(values["ours"], values["by hand"], strict=True)
        shares = [ours / other if is_rate else other / ours for ours, other in pairs]
        cells = [f"{statistics.median(some):,.1f} ({min(some):,.1f} to {max(some):,.1f})" for some in values.values()]
        shown.add_row(what, *cells, f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})")

    row("ms to the invoice", {side: [one.ms for one in some] for side, some in found.items()}, is_rate=False)
    row("orders a second", {side: [one.rate for one in some] for side, some in found.items()}, is_rate=True)
    return shown


def main() -> None:
    """Measure the sides in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latencies", type=int, default=300, help="orders one after the other")
    parser.add_argument("--orders", type=int, default=2_000, help=f"orders of {CLIENTS} clients")
    parser.add_argument("--keep", action="store_true", help=f"store the figures in {RESULTS.name}")
    arguments = parser.parse_args()
    console = Console()
    found = asyncio.run(measure(arguments.rounds, arguments.latencies, arguments.orders, console))
    console.print(table(found))
    if arguments.keep:
        kept: dict[str, Any] = {side: [one._asdict() for one in some] for side, some in found.items()}
        RESULTS.write_text(json.dumps({"machine": machine(), "rounds": kept}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
