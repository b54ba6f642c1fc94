"""A reader that reaches an open transaction learns that messages wait behind it, and for which transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from txnframework import Client, UndecidedMessages

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.families


async def waiting(client: Client) -> UndecidedMessages:
    """Create the topics; send a message that can be read, and six that cannot, of which an open transaction has one."""
    for topic in ("orders", "invoices"):
        await client.create_topic(topic)
        await client.subscribe(topic, "billing", start="earliest")
    txn = client.transaction()
    await txn.begin()
    async with client.producer("orders") as orders, client.producer("invoices") as invoices:
        first = await orders.send(b"readable")
        await invoices.send(b"readable")
        await orders.send(b"open", txn=txn)
        await orders.send_many([b"behind"] * 5)
    return UndecidedMessages(first.segment, 6, txn.id)


async def test_a_reader(stores: Stores) -> None:
    """The reader knows this from its opening, also after the transaction ended.

    With read_uncommitted, nothing waits.
    """
    async with stores.open() as client:
        expected = await waiting(client)
        reader = await client.reader("orders")
        everything = await client.reader("orders", isolation="read_uncommitted")
        assert [reader.undecided, everything.undecided] == [(expected,), ()]
        assert [one.value async for one in reader] == [b"readable"]
        assert len([one async for one in everything]) == 7
        async with client.reader("orders", follow=True) as follower, client.reader("invoices") as invoices:
            assert [follower.undecided, invoices.undecided] == [(), ()]
        await client.commit(expected.txn_id)
        assert reader.undecided == (expected,)
        async with client.reader("orders") as later:
            assert len([one async for one in later]) == 7
            assert later.undecided == ()


async def test_a_snapshot(stores: Stores) -> None:
    """It knows as its readers do, each of its own topic."""
    async with stores.open() as client:
        expected = await waiting(client)
        snapshot = await client.snapshot("orders", "invoices")
        readers = [await snapshot.reader(topic) for topic in ("orders", "invoices")]
        assert snapshot.undecided == (expected,)
        assert [one.undecided for one in readers] == [(expected,), ()]
        await client.abort(expected.txn_id)
        assert (await client.snapshot("orders", "invoices")).undecided == ()


async def test_the_lag_of_a_subscription(stores: Stores) -> None:
    """Beside the readable messages it has what waits."""
    async with stores.open() as client:
        expected = await waiting(client)
        (orders,) = (await client.lag("orders", "billing")).segments
        (invoices,) = (await client.lag("invoices", "billing")).segments
        assert [orders.messages, orders.undecided] == [1, expected]
        assert [invoices.messages, invoices.undecided] == [1, None]
        await client.commit(expected.txn_id)
        (orders,) = (await client.lag("orders", "billing")).segments
        assert (orders.messages >= 7, orders.undecided) == (True, None)


def test_the_blocking_facade(memory: Stores) -> None:
    """Its readers and snapshots tell the same."""
    with memory.open_blocking() as client:
        client.create_topic("orders")
        with client.producer("orders") as orders, client.transaction() as txn:
            sent = orders.send(b"open", txn=txn)
            expected = (UndecidedMessages(sent.segment, 1, txn.id),)
            with client.reader("orders") as reader:
                assert list(reader) == []
                assert reader.undecided == expected
            assert client.snapshot("orders").undecided == expected
            with client.snapshot("orders").reader("orders") as reader:
                assert reader.undecided == expected
