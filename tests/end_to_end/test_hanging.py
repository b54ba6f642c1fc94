"""Hanging transactions are listed with the reason; the listing shows no others, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from installed import without_log_family

from txnframework import Client, HangingTransaction, State
from txnframework.errors import InvalidTransactionState, TransactionDomainMismatch, TransactionNotFound, Unavailable
from txnframework.model import Action, End, Participant, TxnID
from txnframework.plugin import load_plugins

if TYPE_CHECKING:
    from conftest import Stores

SEGMENT = "segment://public/default/orders/0000-ffff-0"
LOG_ID = TxnID(0x8000, 1)


async def open_one(client: Client, *, outlives_client: bool = False) -> TxnID:
    """Leave a transaction open that has sent a message."""
    txn = client.transaction(outlives_client=outlives_client)
    await txn.begin()
    await (await client.producer("orders")).send(b"undecided", txn=txn)
    return txn.id


async def ended_one(client: Client, action: Action) -> TxnID:
    """Leave a transaction that was ended by a process which died before it could settle it."""
    txn_id = await open_one(client)
    await (await client.host.coordinator()).end(End(txn_id, action, operator=True))
    return txn_id


async def hanging(client: Client, age_ms_min: int = 0) -> dict[TxnID, HangingTransaction]:
    return {one.transaction.txn_id: one for one in await client.find_hanging(age_ms_min)}


async def test_open_ones_are_told_with_whether_their_process_lives(stores: Stores) -> None:
    """Listing checks the lease of the owner's session without taking it, and reports when the owner has left."""
    quiet: dict[str, object] = {"sweep": False}
    async with stores.open(transactions=quiet) as looking:
        async with stores.open(transactions=quiet, client={"name": "billing"}) as owner:
            await owner.create_topic("orders")
            assert await hanging(looking) == {}
            own = await open_one(owner)
            anybodys = await open_one(owner, outlives_client=True)
            for client in (looking, owner, looking):
                found = await hanging(client)
                assert {txn_id: one.owner_lives for txn_id, one in found.items()} == {own: True, anybodys: None}
                process = owner.host.environment.process_name("billing")
                begun_by = {own: process, anybodys: None}
                assert {txn_id: one.transaction.process for txn_id, one in found.items()} == begun_by
            assert await hanging(looking, 3_600_000) == {}
        found = await hanging(looking)
        assert {txn_id: one.owner_lives for txn_id, one in found.items()} == {own: False, anybodys: None}
        # People look for its logs, so it is named also when it is gone.
        assert {txn_id: one.transaction.process for txn_id, one in found.items()} == begun_by
        assert {one.transaction.state for one in found.values()} == {State.OPEN}


async def test_ended_ones_are_told_until_they_have_taken_effect(stores: Stores) -> None:
    """Ended transactions are listed with the segments where they are not applied.

    ``settle`` applies them or says why not.
    """
    async with stores.open(transactions={"sweep": False}) as client:
        await client.create_topic("orders")
        kept, dropped = [await ended_one(client, action) for action in (Action.COMMIT, Action.ABORT)]
        found = await hanging(client)
        assert {txn_id: one.transaction.state for txn_id, one in found.items()} == {
            kept: State.COMMITTED,
            dropped: State.ABORTED,
        }
        for one in found.values():
            assert (one.owner_lives, one.operations_left) == (None, 1)
            assert one.transaction.participants == {Participant(SEGMENT)}
        settling = client.host.participants.settle

        async def fails(*_: object) -> None:
            raise Unavailable("the segment is out of reach")

        client.host.participants.settle = fails  # type: ignore[method-assign]
        assert await client.settle(dropped) == 1
        assert set(await hanging(client)) == {kept, dropped}
        client.host.participants.settle = settling  # type: ignore[method-assign]
        for txn_id in (kept, dropped):
            assert await client.settle(txn_id) == 0
        assert await hanging(client) == {}
        assert await stores.read(client, "orders") == [b"undecided"]
        with pytest.raises(InvalidTransactionState):
            await client.settle(await open_one(client))
        with pytest.raises(TransactionNotFound):
            await client.settle(TxnID(0, 10**9))


async def test_pages(stores: Stores) -> None:
    """Paging lists each transaction once: open ones first, then ended ones."""
    async with stores.open(transactions={"sweep": False}) as client:
        await client.create_topic("orders")
        opened = {await open_one(client) for _ in range(3)}
        ended = {await ended_one(client, Action.ABORT) for _ in range(4)}
        for size in (1, 2, 3, 100):
            seen: list[HangingTransaction] = []
            while page := await client.find_hanging(0, after=seen[-1] if seen else None, transactions_max=size):
                assert len(page) <= size
                seen += page
                assert len(seen) <= 7
            ids = [one.transaction.txn_id for one in seen]
            assert (set(ids[:3]), set(ids[3:]), len(ids)) == (opened, ended, 7)


async def test_an_id_of_a_family_that_is_not_there(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls with an id of a family that is not installed raise an error that says so."""
    monkeypatch.setattr("txnframework.plugin._discovery.entry_points", without_log_family)
    memory.registry = load_plugins()

    async with memory.open() as client:
        for asking in (client.outcome, client.commit, client.abort, client.settle):
            with pytest.raises(TransactionDomainMismatch, match=r"log family.*no coordinator of that family"):
                await asking(LOG_ID)


def test_blocking(memory: Stores) -> None:
    with memory.open_blocking() as client:
        client.create_topic("orders")
        with client.transaction() as txn:
            client.producer("orders").send(b"one", txn=txn)
            (found,) = client.find_hanging(0)
            assert found.transaction.txn_id == txn.id
            assert found.owner_lives
        assert client.settle(txn.id) == 0
        assert client.find_hanging(0) == ()
