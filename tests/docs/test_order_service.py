"""The order service of the documentation: two worker processes under load, of which one is killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest

import txnframework

httpx = pytest.importorskip("httpx")
for needed in ("fastapi", "uvicorn", "aiosqlite"):
    pytest.importorskip(needed)

SERVICE = Path(__file__).parents[2] / "docs" / "examples" / "order_service"
ORDERS, AT_ONCE, KILLED_AFTER = 60, 6, 15
PATIENCE_S = 240


@contextmanager
def started(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start the service with two workers; yield its process and its address."""
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(SERVICE), "app:app", "--workers", "2", "--port", "0"]
    log = folder / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(command, cwd=folder, stderr=written, stdout=written)
    try:
        while not (found := re.search(r"running on (http://\S+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield process, found[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


async def worker_processes(address: str) -> list[int]:
    """Return the ids of both workers, once both are healthy; each request uses a new connection."""
    found: set[int] = set()
    while len(found) < 2:
        try:
            async with httpx.AsyncClient() as client:
                answer = await client.get(f"{address}/health", timeout=PATIENCE_S)
            found |= {answer.json()["process"]} if answer.status_code == 200 else set()
        except httpx.TransportError:
            await asyncio.sleep(0.1)
    return sorted(found)


async def place(address: str, order: UUID) -> None:
    """Place an order, and repeat the request until it is answered."""
    body = {"id": str(order), "customer": "ada", "cents": 250}
    while True:
        try:
            async with httpx.AsyncClient() as client:
                answer = await client.post(f"{address}/orders", json=body, timeout=PATIENCE_S)
        except httpx.TransportError:
            await asyncio.sleep(0.1)
            continue
        if answer.status_code == 201:
            return
        assert answer.status_code == 503, answer.text
        await asyncio.sleep(0.1)


async def refuse(address: str) -> None:
    """Place an order that is larger than a message may be: repeating it would be of no use, and nothing is stored."""
    body = {"id": str(uuid4()), "customer": "a" * 6_000_000, "cents": 250}
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{address}/orders", json=body, timeout=PATIENCE_S)
    assert (answer.status_code, answer.json()) == (422, {"error": "the order cannot be stored"})


async def load(address: str, orders: list[UUID], killed: int) -> None:
    """Place all orders; kill a worker in the middle."""
    waiting, placed = list(orders), 0

    async def customer() -> None:
        nonlocal placed
        while waiting:
            await place(address, waiting.pop())
            placed += 1
            if placed == KILLED_AFTER:
                os.kill(killed, signal.SIGKILL)

    await asyncio.gather(*(customer() for _ in range(AT_ONCE)))


def ids_in(folder: Path, query: str) -> list[UUID]:
    with closing(sqlite3.connect(folder / "orders.db", timeout=60)) as connection:
        return sorted(UUID(found) for (found,) in connection.execute(query))


async def all_billed(folder: Path) -> None:
    """Return when each order has an invoice; before, the session of the killed worker has to expire."""
    while len(ids_in(folder, "SELECT order_id FROM shop_invoices")) < ORDERS:  # noqa: ASYNC110 - of other processes
        await asyncio.sleep(0.1)


async def stored(folder: Path) -> tuple[list[UUID], int]:
    """Return the orders in the topic, and how many are not acknowledged."""
    async with txnframework.open({"metadata": {"url": f"sqlite:///{folder}/orders.db"}}) as client:
        await client.maintain()
        messages = [message async for message in await client.reader("orders")]
        lag = await client.lag("orders", "billing")
    return sorted(UUID(bytes=message.key) for message in messages if message.key is not None), lag.messages


def test_rows_messages_and_acknowledgments_agree(tmp_path: Path) -> None:
    """Whichever worker was killed, each order is one row, one message, one invoice, and acknowledged."""
    orders = [uuid4() for _ in range(ORDERS)]

    async def check(address: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await load(address, orders, (await worker_processes(address))[0])
            await all_billed(tmp_path)
            await refuse(address)

    with started(tmp_path) as (_, address):
        asyncio.run(check(address))
    expected = sorted(orders)
    assert ids_in(tmp_path, "SELECT id FROM shop_orders") == expected
    assert ids_in(tmp_path, "SELECT order_id FROM shop_invoices") == expected
    assert asyncio.run(stored(tmp_path)) == (expected, 0)
