"""Repeated sends: stored once within the deduplication window; beyond the window, stored again, counted and logged."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from txnframework import Client
from txnframework.metrics import Metrics

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.families

WINDOW = 100
SENT = 300
COUNTED = "txnframework_sends_beyond_window_total"


def values(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


async def counted(client: Client, metrics: Metrics, first: int, last: int, together: bool = True) -> float | None:
    """Send messages with these sequence ids; return what is counted when the producer has closed."""
    async with await client.producer("orders", name="importer") as producer:
        if together:
            await producer.send_many(values(first, last), sequence_id=first)
        else:
            for number in range(first, last):
                await producer.send(b"%d" % number, sequence_id=number)
    return metrics.registry.get_sample_value(COUNTED, {"topic": "topic://public/default/orders"})


def limited(stores: Stores) -> dict[str, object]:
    return {"url": stores.ledger_url or stores.url, "options": {"deduplication_window_sequences": WINDOW}}


@pytest.mark.parametrize("together", [True, False])
async def test_what_is_sent_again_too_late(sqlite: Stores, caplog: pytest.LogCaptureFixture, together: bool) -> None:
    """Repeats within the window are stored once; older ones are stored again, counted, and logged once."""
    metrics = Metrics()
    async with sqlite.open(ledger=limited(sqlite)) as client:
        await client.create_topic("orders")
        async with await client.producer("orders", name="importer") as producer:
            for number, value in enumerate(values(0, SENT)):
                await producer.send(value, sequence_id=number)
    with caplog.at_level(logging.WARNING, "txnframework"):
        async with sqlite.open(ledger=limited(sqlite), metrics=metrics) as client:
            assert await counted(client, metrics, SENT - WINDOW, SENT) == 0
            assert await sqlite.read(client, "orders") == values(0, SENT)
            assert await counted(client, metrics, 0, 10, together) == 10
            assert await counted(client, metrics, SENT, SENT + 10) == 10
            assert len(await sqlite.read(client, "orders")) == SENT + 20
    (said,) = [record.getMessage() for record in caplog.records if "importer" in record.getMessage()]
    assert "only the last 100 are recognised (deduplication_window_sequences" in said


async def test_what_is_late_for_the_first_time_is_not_lost(sqlite: Stores) -> None:
    """A gap that is filled within the window is not counted; a late message below the window is counted and stored."""
    metrics = Metrics()
    async with sqlite.open(ledger=limited(sqlite), metrics=metrics) as client:
        await client.create_topic("orders")
        await counted(client, metrics, 1, 2)
        await counted(client, metrics, 10, 10 + WINDOW - 1)
        assert await counted(client, metrics, 5, 6) == 0
        await counted(client, metrics, 1_000, 1_000 + WINDOW)
        assert await counted(client, metrics, 6, 7) == 1
        assert sorted(await sqlite.read(client, "orders")) == sorted(
            [b"1", b"5", b"6", *values(10, 10 + WINDOW - 1), *values(1_000, 1_000 + WINDOW)]
        )


async def test_the_default_window(memory: Stores) -> None:
    """Ten thousand messages can be sent again, however they are batched.

    A producer that counts its own sequence ids is not checked.
    """
    metrics = Metrics()
    async with memory.open(metrics=metrics) as client:
        await client.create_topic("orders")
        sent = values(0, 10_000)
        async with await client.producer("orders", name="importer") as producer:
            await producer.send(b"before", sequence_id=0)
            await producer.send_many(sent, sequence_id=1)
        async with await client.producer("orders", name="importer") as producer:
            await producer.send_many(sent, sequence_id=1)
            assert metrics.registry.get_sample_value(COUNTED, {"topic": "topic://public/default/orders"}) == 0
        async with await client.producer("orders") as producer:
            await producer.send_many(sent)
        assert len(await memory.read(client, "orders")) == 20_001
