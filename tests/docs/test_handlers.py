"""The code of handlers.md runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import txnframework
from txnframework import Message, PlannedSend, Transaction

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "handlers.md"
CONFIG = {"metadata": {"url": "memory:"}, "ledger": {"url": "memory:"}}


@pytest.mark.parametrize(("number", "part"), [(0, "run_batches(bill_all"), (1, "transaction=work")])
async def test_the_code_of_the_page(number: int, part: str) -> None:
    """A handler of batches returns what is sent; another one gets an object of its own for each message."""
    blocks = re.findall(r"<!-- run by \S+ -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 2
    block = blocks[number]
    assert part in block
    body = "".join(f"    {line}\n" if line else "\n" for line in block.splitlines())
    names: dict[str, Any] = {
        one.__name__: one for one in (AsyncIterator, Message, PlannedSend, Transaction, asynccontextmanager, dataclass)
    }
    exec(f"async def page(client, orders, invoices):\n{body}", names)

    async with txnframework.open(CONFIG) as client:
        for topic in ("orders", "invoices"):
            await client.create_topic(topic)
        await (await client.producer("orders")).send(b"three apples")
        async with (
            await client.consumer("orders", "billing", start="earliest") as orders,
            await client.producer("invoices") as invoices,
            await client.consumer("invoices", "test", start="earliest") as sent,
        ):
            running = asyncio.ensure_future(names["page"](client, orders, invoices))
            assert (await sent.receive(timeout_ms=60_000)).value == b"three apples"
            orders.stop()
            await running
