"""Going on after a restore where the decisions of transactions stand in the ledger store."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from restored_pair import Pair

import txnframework
from txnframework import Client, State
from txnframework.broker import Restored, RestoreRequest, restore
from txnframework.config import load_config
from txnframework.model import paths
from txnframework.plugin import load_plugins

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.log_family

ORDERS = "persistent://public/default/orders"
SOON_MS = 60_000
END = b"the end"
LOG = {"coordinator": "log", "buffer": "marker", "pending_ack": "log"}
PLUGINS = ("sql", "metadata", "legacy", "sidecar", "dispatchers")


@pytest.fixture(params=["marker", "sidecar"])
def pair(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> Pair:
    stores.registry = load_plugins([importlib.import_module(f"txnframework_{name}.plugin") for name in PLUGINS])
    domains = {"persistent": LOG | {"buffer": request.param}, "segment": LOG}
    return Pair(stores, tmp_path, domains=domains, subscriptions={"redelivery_delay_ms": 0})


async def begun(client: Client, value: bytes) -> Any:
    """Send a message in a transaction that may outlive this client."""
    txn = client.transaction(domain="persistent", outlives_client=True, timeout_ms=3_600_000)
    await txn.begin()
    await (await client.producer(ORDERS)).send(value, txn=txn)
    return txn


async def sent(client: Client, value: bytes, *, commit: bool = True) -> Any:
    txn = await begun(client, value)
    await (txn.commit() if commit else txn.abort())
    return txn


async def acknowledged(client: Client, messages: int, txn: Any = None) -> list[bytes]:
    """Acknowledge the next messages of a subscription, in a transaction or in none."""
    async with await client.consumer(ORDERS, "billing", start="earliest") as consumer:
        received = [await consumer.receive(timeout_ms=SOON_MS) for _ in range(messages)]
        await consumer.ack(*received, txn=txn)
        return [message.value for message in received]


async def read(client: Client) -> list[bytes]:
    async with await client.reader(ORDERS) as reader:
        return [message.value async for message in reader]


async def left(client: Client) -> list[bytes]:
    """Return what a subscription has not acknowledged."""
    await (await client.producer(ORDERS)).send(END)
    found: list[bytes] = []
    async with await client.consumer(ORDERS, "billing") as consumer:
        while END not in found:
            found.append((await consumer.receive(timeout_ms=SOON_MS)).value)
    return found[:-1]


async def test_an_older_metadata_store(pair: Pair) -> None:
    """
    Every outcome stays, also one from after the backup, and nothing is recorded about any; what was open is aborted,
    what was acknowledged since is delivered again, and no transaction begins with an id that was used.
    """

    async def before(client: Client) -> Any:
        await client.create_topic(ORDERS)
        await sent(client, b"first")
        await sent(client, b"aborted", commit=False)
        open_then = await begun(client, b"decided later")
        await acknowledged(client, 1)
        taken_ms = pair.back_up("metadata")
        await pair.clock.advance(10)
        await open_then.commit()
        await sent(client, b"all of it later")
        await sent(client, b"aborted later", commit=False)
        acknowledging = await begun(client, b"with an acknowledgment")
        assert await acknowledged(client, 1, acknowledging) == [b"decided later"]
        await acknowledging.commit()
        open_now = await begun(client, b"open")
        assert await acknowledged(client, 1, open_now) == [b"all of it later"]
        return taken_ms, open_now.id

    later = [b"decided later", b"all of it later", b"with an acknowledgment"]

    async def after(client: Client, open_now: Any) -> None:
        await client.host.sweeps.sweep()
        assert await client.outcome(open_now) is State.ABORTED
        assert await read(client) == [b"first", *later]
        assert await left(client) == later
        assert (await client.host.metadata.scan(paths.abort_records_range(ORDERS), 1)).records == ()
        assert (await sent(client, b"new")).id.number > 1_000_000
        assert await read(client) == [b"first", *later, END, b"new"]

    taken_ms, open_now = await pair.play(before)
    pair.put_back("metadata")
    planned = await pair.restore(RestoreRequest(Restored.METADATA, taken_ms, dry_run=True))
    done = await pair.restore(RestoreRequest(Restored.METADATA, taken_ms))
    assert (planned.counts.transactions_aborted, planned.counts.branches_aborted) == (1, 0)
    assert (done.counts.transactions_aborted, done.counts.branches_aborted) == (1, 0)
    await pair.play(lambda client: after(client, open_now))


async def test_ids_of_a_coordinator_that_only_the_ledgers_know(pair: Pair) -> None:
    """A backup from before the family was used knows nothing of its ids; a transaction that wrote nowhere had one."""

    async def before(client: Client) -> tuple[int, set[Any]]:
        await client.create_topic(ORDERS)
        taken_ms = pair.back_up("metadata")
        await pair.clock.advance(10)
        used = set()
        for _ in range(40):  # each process takes one of the coordinators, and its first numbers
            txn = client.transaction(domain="persistent")
            await txn.begin()
            used.add(txn.id)
            await txn.abort()
        return taken_ms, used

    async def after(client: Client, used: set[Any]) -> None:
        for _ in range(40):
            txn = client.transaction(domain="persistent")
            await txn.begin()
            assert txn.id not in used
            await txn.abort()

    taken_ms, used = await pair.play(before)
    pair.put_back("metadata")
    await pair.restore(RestoreRequest(Restored.METADATA, taken_ms))
    for _ in range(3):
        await pair.play(lambda client: after(client, used))


async def test_an_older_ledger_store(pair: Pair) -> None:
    """
    What was open at the backup is aborted, whatever became of it; cursors end where the ledger ends, and what comes
    there next is delivered.
    """

    async def before(client: Client) -> Any:
        await client.create_topic(ORDERS)
        await sent(client, b"kept")
        await sent(client, b"aborted", commit=False)
        torn = await begun(client, b"torn")
        assert await acknowledged(client, 1, torn) == [b"kept"]
        pair.back_up("ledger")
        await torn.commit()
        for number in range(3):
            await sent(client, b"lost %d" % number)
        assert await acknowledged(client, 4) == [b"torn", b"lost 0", b"lost 1", b"lost 2"]
        return torn.id

    async def after(client: Client, torn: Any) -> None:
        await client.host.sweeps.sweep()
        assert await client.outcome(torn) is State.ABORTED
        assert await read(client) == [b"kept"]
        for value in (b"new 1", b"new 2"):
            await sent(client, value)
        assert await read(client) == [b"kept", b"new 1", b"new 2"]
        assert await left(client) == [b"new 1", b"new 2"]

    torn = await pair.play(before)
    pair.put_back("ledger")
    planned = await pair.restore(RestoreRequest(Restored.LEDGER, dry_run=True))
    done = await pair.restore(RestoreRequest(Restored.LEDGER))
    for report in (planned, done):
        assert (report.counts.transactions_aborted, report.counts.cursors_moved) == (1, 1)
    await pair.play(lambda client: after(client, torn))


@pytest.mark.parametrize("older", ["metadata", "ledger"])
async def test_a_large_transaction(pair: Pair, older: str) -> None:
    """
    Its messages stand or go as those of any other, also where they have a ledger of their own; what was aborted leaves
    none.
    """
    pair.sections["buffers"] = {"sidecar": {"marker_messages_max": 1}}
    pair.sections["retention"] = {"time_ms": -1}

    async def send_large(client: Client, value: bytes) -> Any:
        txn = await begun(client, value)
        producer = await client.producer(ORDERS)
        for _ in range(2):
            await producer.send(value, txn=txn)
        return txn

    async def before(client: Client) -> Any:
        await client.create_topic(ORDERS)
        await (await send_large(client, b"kept")).commit()
        torn = await send_large(client, b"torn")
        taken_ms = pair.back_up(older)
        await pair.clock.advance(10)
        await torn.commit()
        return taken_ms, torn.id

    async def after(client: Client, torn: Any) -> None:
        await client.maintain()
        kept = [b"kept"] * 3 + [b"torn"] * 3 * (older == "metadata")
        assert await read(client) == kept
        names = await client.host.ledgers.list_names("sidecar:", "", 99)
        assert not names or any(f"own-{torn}" in name for name in names) == (older == "metadata")
        await (await send_large(client, b"new")).commit()
        assert await read(client) == kept + [b"new"] * 3

    taken_ms, torn = await pair.play(before)
    pair.put_back(older)
    request = RestoreRequest(Restored.METADATA, taken_ms) if older == "metadata" else RestoreRequest(Restored.LEDGER)
    await pair.restore(request)
    await pair.play(lambda client: after(client, torn))


async def test_a_participant_that_takes_no_outcome(pair: Pair) -> None:
    """A transaction that wrote to a sealed segment is decided like any other, and the restore goes on."""
    pair.sections["transactions"] = {"sweep": False, "end_timeout_ms": 1}
    async with txnframework.open(pair.config(), registry=pair.registry) as client:
        await client.create_topic("topic://public/default/orders")
        txn = client.transaction(outlives_client=True)
        await txn.begin()
        await (await client.producer("topic://public/default/orders")).send(b"inside", txn=txn)
        await client.split("topic://public/default/orders", 0)
        pair.back_up("ledger")
    pair.put_back("ledger")
    report = await restore(load_config(pair.config()), RestoreRequest(Restored.LEDGER), pair.registry)
    assert report.counts.transactions_aborted == 1
    async with txnframework.open(pair.config(), registry=pair.registry) as client:
        assert await client.outcome(txn.id) is State.ABORTED
