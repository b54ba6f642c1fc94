"""A topic that is reconfigured for other plugins shows the same messages as before, or is refused."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest
from installed import without_log_family

from txnframework import Client
from txnframework.errors import (
    ConfigurationError,
    EndTransactionTimeout,
    ReceiveTimeout,
    Unavailable,
    WithoutTransactions,
)
from txnframework.model import Action, End, Participant, TxnID
from txnframework.plugin import PluginRegistry, load_plugins

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.log_family

ORDERS = "persistent://public/default/orders"
SOON_MS = 60_000
LOG = {"coordinator": "log", "buffer": "marker", "pending_ack": "log"}
METADATA = dict.fromkeys(LOG, "metadata")
SERVED: dict[str, dict[str, str]] = {
    "marker": LOG,
    "sidecar": LOG | {"buffer": "sidecar"},
    "metadata": METADATA,
    "plain": LOG,
}
"""How the domain is configured; for ``plain``, its plugins are not installed."""
TRANSACTIONAL = ("marker", "sidecar", "metadata")
REFUSED = (ConfigurationError, WithoutTransactions)


class Served:
    """One test's stores, opened with one choice of plugins or another."""

    def __init__(self, stores: Stores, with_all: PluginRegistry, without: PluginRegistry) -> None:
        self._stores = stores
        self._with_all = with_all
        self._without = without
        self.run = stores.run

    def open(self, name: str, **sections: Any) -> Any:
        self._stores.registry = self._without if name == "plain" else self._with_all
        domains = {"persistent": SERVED[name], "segment": METADATA}
        return self._stores.open(domains=domains, **sections)


@pytest.fixture
def served(stores: Stores) -> Served:
    sidecar = importlib.import_module("txnframework_sidecar.plugin")
    metadata, legacy, memory, dispatchers = (
        importlib.import_module(f"txnframework_{name}.plugin")
        for name in ("metadata", "legacy", "memory", "dispatchers")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txnframework.plugin._discovery.entry_points", without_log_family)
        without = load_plugins()
    return Served(stores, load_plugins([metadata, legacy, sidecar, memory, dispatchers]), without)


async def read(client: Client) -> list[bytes]:
    async with await client.reader(ORDERS) as reader:
        return [message.value async for message in reader]


async def read_or_refusal(client: Client) -> list[bytes] | str:
    try:
        return await read(client)
    except REFUSED as refused:
        return str(refused)


async def nothing(_: Client) -> None:
    """Send only outside transactions."""


async def send_open(client: Client) -> None:
    """Send in a transaction that remains open."""
    txn = client.transaction(domain="persistent", outlives_client=True)
    await txn.begin()
    await (await client.producer(ORDERS)).send(b"open", txn=txn)


async def send_aborted(client: Client) -> None:
    """Send in a transaction that is aborted."""
    txn = client.transaction(domain="persistent")
    await txn.begin()
    await (await client.producer(ORDERS)).send(b"aborted", txn=txn)
    await txn.abort()


async def send_committed(client: Client) -> None:
    """Send in a transaction that is committed."""
    async with client.transaction(domain="persistent") as txn:
        await (await client.producer(ORDERS)).send_many([b"committed 1", b"committed 2"], txn=txn)


async def send_all(client: Client) -> None:
    """Send in an open, an aborted and a committed transaction."""
    await send_committed(client)
    await send_aborted(client)
    await send_open(client)


Use = Callable[[Client], Awaitable[None]]
USES: list[Use] = [send_open, send_aborted, send_committed, send_all]


async def used(served: Served, name: str, use: Use) -> list[bytes]:
    """Use the topic with one choice of plugins; return what the topic then contains."""
    async with served.open(name) as client:
        await client.create_topic(ORDERS)
        await (await client.producer(ORDERS)).send(b"before")
        await use(client)
        await (await client.producer(ORDERS)).send(b"behind")
        return await read(client)


@pytest.mark.parametrize(
    ("own", "other"), [*permutations(TRANSACTIONAL, 2), *((one, "plain") for one in TRANSACTIONAL)]
)
async def test_what_was_sent_in_transactions(served: Served, own: str, other: str) -> None:
    """Messages written through one buffer are shown exactly by another buffer, or the topic is refused.

    The refusal is one sentence that names the topic, before anything is read or sent. With the first buffer, the topic
    is unchanged.
    """
    for use in USES:
        shown = await used(served, own, use)
        async with served.open(other) as client:
            found = await read_or_refusal(client)
            if isinstance(found, str):
                assert ORDERS in found
                assert "\n" not in found
            else:
                # Only what has no transactions can be sure that it shows the same.
                assert (other, found) == ("plain", shown)
            if other != "plain":
                with pytest.raises(ConfigurationError):
                    await (await client.producer(ORDERS)).send(b"more")
                await client.maintain()
        async with served.open(own) as client:
            assert await read(client) == shown
            await client.delete_topic(ORDERS, force=True)


@pytest.mark.parametrize(("own", "other"), list(permutations(SERVED, 2)))
async def test_what_was_sent_outside_transactions(served: Served, own: str, other: str) -> None:
    """A topic that no transaction used is served by any configured plugins, and remains usable with them."""
    assert await used(served, own, nothing) == [b"before", b"behind"]
    async with served.open(other) as client:
        assert await read(client) == [b"before", b"behind"]
        if other != "plain":
            await send_committed(client)
            assert await read(client) == [b"before", b"behind", b"committed 1", b"committed 2"]


async def hold(client: Client, commit: bool) -> TxnID:
    """Acknowledge a message in a transaction.

    It stays open, or is committed and its process dies before it notifies others.
    """
    await client.create_topic(ORDERS)
    await (await client.producer(ORDERS)).send(b"held")
    async with await client.consumer(ORDERS, "billing", start="earliest") as consumer:
        txn = client.transaction(domain="persistent", outlives_client=True)
        await txn.begin()
        await consumer.ack(await consumer.receive(timeout_ms=SOON_MS), txn=txn)
        if commit:
            client.host.participants.settle = _out_of_reach  # type: ignore[method-assign]
            coordinator = await client.host.coordinator("persistent")
            with suppress(EndTransactionTimeout):
                await coordinator.end(End(txn.id, Action.COMMIT, operator=True))
        return txn.id


async def _out_of_reach(*_: object) -> None:
    raise Unavailable("the process died before it told anybody")


@pytest.mark.parametrize("commit", [False, True], ids=["open", "committed"])
@pytest.mark.parametrize(
    ("own", "other"),
    [("marker", "metadata"), ("marker", "plain"), ("marker", "sidecar"), ("metadata", "marker"), ("metadata", "plain")],
)
async def test_what_was_acknowledged_in_transactions(served: Served, own: str, other: str, commit: bool) -> None:
    """Plugins that cannot read pending acknowledgments refuse the subscription instead of delivering held messages.

    Other plugins deliver the messages later. The buffers of one family share its pending acknowledgments.
    """
    short: dict[str, Any] = {"transactions": {"end_timeout_ms": 1, "sweep": False}}

    async with served.open(own, **short) as client:
        txn_id = await hold(client, commit)
    async with served.open(other, **short) as client:
        await client.maintain()
        with pytest.raises(ReceiveTimeout if other == "sidecar" else REFUSED):
            async with await client.consumer(ORDERS, "billing") as consumer:
                await consumer.receive(timeout_ms=30)
    async with served.open(own) as client:
        if not commit:
            await client.abort(txn_id)
        await client.maintain()
        async with await client.consumer(ORDERS, "billing") as consumer:
            if commit:
                with pytest.raises(ReceiveTimeout):
                    await consumer.receive(timeout_ms=30)
            else:
                assert (await consumer.receive(timeout_ms=SOON_MS)).value == b"held"


async def test_hosts_that_do_not_agree(served: Served) -> None:
    """A host that opened the topic earlier with other plugins shows no messages of the later plugins.

    The host does not report transactions as settled that it cannot settle.
    """
    async with served.open("metadata") as stale:
        await stale.create_topic(ORDERS)
        await (await stale.producer(ORDERS)).send(b"before")
        assert await read(stale) == [b"before"]
        async with served.open("marker") as client:
            txn = client.transaction(domain="persistent")
            await txn.begin()
            await (await client.producer(ORDERS)).send(b"aborted", txn=txn)
            await txn.abort()
            coordinator = await client.host.coordinator("persistent")
            with pytest.raises(Unavailable, match="another family"):
                await stale.host.participants.settle(Participant(ORDERS), await coordinator.describe(txn.id))
            assert await read(client) == [b"before"]
        with pytest.raises(ConfigurationError, match=ORDERS):
            await read(stale)
