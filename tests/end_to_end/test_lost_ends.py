"""A ledger store that lost its last entries is refused, and a restore repairs it."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from restored_pair import DatabasePair, Pair

import txnframework
from txnframework import Client, DeadLetter
from txnframework.broker import Restored, RestoreRequest
from txnframework.broker.topics.layouts import StoredLayouts
from txnframework.errors import InvalidInput, StoreMismatch
from txnframework.model import EARLIEST, Action, Append, End, Limit, Position, ReadRequest, paths
from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.layout_changes import with_subscription
from txnframework.model.names import topic_of
from txnframework.plugin import load_plugins

if TYPE_CHECKING:
    from conftest import ServerStores, Stores

SOON_MS = 60_000
REMEDY = r"'txnframework restore --restored ledger'"
# Those of the log-driven family where its plugins are installed.
TOPICS = ["orders", *(["persistent://public/default/orders"] if find_spec("txnframework_legacy") else [])]
LOG = {"coordinator": "log", "buffer": "marker", "pending_ack": "log"}


@pytest.fixture
def pair(sqlite: Stores, tmp_path: Path) -> Pair:
    return Pair(sqlite, tmp_path, subscriptions={"redelivery_delay_ms": 0})


async def send(client: Client, *values: bytes, topic: str = "orders") -> None:
    async with client.producer(topic) as producer:
        for value in values:
            await producer.send(value)


async def receive(client: Client, messages: int, topic: str = "orders") -> list[bytes]:
    """Acknowledge the next messages of a subscription."""
    found = []
    async with client.consumer(topic, "billing", start="earliest") as consumer:
        for _ in range(messages):
            message = await consumer.receive(timeout_ms=SOON_MS)
            found.append(message.value)
            await consumer.ack(message)
    return found


async def lose_end(pair: Pair, before: Callable[[Client], Awaitable[Any]], after: Callable[[Client], Any]) -> None:
    """Restore the ledger store to its state between two scenes."""
    await pair.play(before)
    pair.back_up("ledger")
    await pair.play(after)
    pair.put_back("ledger")


async def require_repair(pair: Pair, topic: str = "orders") -> None:
    """No message is confirmed before the restore, and each is delivered after it."""
    with pytest.raises(StoreMismatch, match=REMEDY):
        await pair.play(lambda client: send(client, b"swallowed", topic=topic))
    await pair.restore(RestoreRequest(Restored.LEDGER))
    new = [b"new %d" % number for number in range(5)]

    async def works(client: Client) -> list[bytes]:
        await send(client, *new, topic=topic)
        return await receive(client, 5, topic)

    assert await pair.play(works) == new


async def created(client: Client) -> None:
    await client.create_topic("orders")


def of_family(pair: Pair, topic: str) -> Pair:
    """Let the log family serve a persistent topic."""
    if topic.startswith("persistent:"):
        names = ("sql", "metadata", "legacy", "dispatchers")
        pair.registry = load_plugins([importlib.import_module(f"txnframework_{name}.plugin") for name in names])
        pair.sections["domains"] = {"persistent": LOG}
    return pair


async def require_refused_producer(pair: Pair, topic: str) -> None:
    async def before(client: Client) -> None:
        await client.create_topic(topic)

    async def after(client: Client) -> None:
        await send(client, b"one", b"two", b"three", topic=topic)
        await receive(client, 3, topic)

    await lose_end(pair, before, after)
    await require_repair(pair, topic)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_producer_is_refused(pair: Pair, topic: str) -> None:
    """Nothing is appended while the cursor of any subscription is beyond the end, in both families."""
    pair.run(require_refused_producer(of_family(pair, topic), topic))


@pytest.mark.parametrize("topic", TOPICS)
def test_a_producer_is_refused_on_postgresql(postgresql: ServerStores, tmp_path: Path, topic: str) -> None:
    """The same where the ledger store failed over to a standby that lagged behind."""
    pair = DatabasePair(postgresql, tmp_path, subscriptions={"redelivery_delay_ms": 0})
    pair.run(require_refused_producer(of_family(pair, topic), topic))


async def test_a_failover_under_an_open_client(postgresql: ServerStores, tmp_path: Path) -> None:
    """A process that continues to send notices that its new messages get positions that it has already used.

    The client repeats calls that fail because the failover ended their connections.
    """
    pair = DatabasePair(postgresql, tmp_path)

    async def after(client: Client) -> None:
        async with client.producer("orders") as producer:
            for number in range(3):
                await producer.send(b"%d" % number)
            pair.put_back("ledger")
            with pytest.raises(StoreMismatch, match=REMEDY):
                await producer.send(b"swallowed")

    await pair.play(created)
    pair.back_up("ledger")
    async with txnframework.open(pair.config(), registry=pair.registry) as client:  # real time, to connect again
        await after(client)


async def test_acknowledgments_that_no_cursor_has_yet(pair: Pair) -> None:
    """Unsettled committed acks are found too: settling them would move the cursor past new messages."""

    async def after(client: Client) -> None:
        await send(client, b"one", b"two")
        txn = client.transaction(outlives_client=True)
        await txn.begin()
        async with client.consumer("orders", "billing", start="earliest") as consumer:
            await consumer.ack(*[await consumer.receive(timeout_ms=SOON_MS) for _ in range(2)], txn=txn)
        await (await client.host.coordinator()).end(End(txn.id, Action.COMMIT, operator=True))

    await lose_end(pair, created, after)
    await require_repair(pair)


async def test_a_subscription_that_begins_at_the_end(pair: Pair) -> None:
    """A subscription that has received nothing would otherwise start after new messages."""

    async def after(client: Client) -> None:
        await send(client, b"one", b"two")
        await client.subscribe("orders", "billing", start="latest")

    await lose_end(pair, created, after)
    await require_repair(pair)


async def test_a_subscription_whose_cursors_are_not_created_yet(pair: Pair) -> None:
    """A process may end between listing the subscription and creating its cursors.

    The list has their start positions.
    """

    async def after(client: Client) -> None:
        await send(client, b"one", b"two")
        layouts = StoredLayouts(client.host.metadata)
        layout, version = await layouts.load(topic_of("topic://public/default/orders"))
        await layouts.put(with_subscription(layout, "billing", {0: Position(1, 1)}), version)

    await lose_end(pair, created, after)
    await require_repair(pair)


async def test_ledgers_that_were_trimmed(pair: Pair) -> None:
    """Ids of trimmed ledgers would be reused, and their abort records would apply to new messages."""

    async def after(client: Client) -> None:
        segment = await client.host.segment(str((await client.layout("orders")).name_of(0)))
        async with client.producer("orders") as producer:
            for number in range(3):
                txn = client.transaction()
                await txn.begin()
                await producer.send(b"%d" % number, txn=txn)
                await txn.abort()
                await client.settle(txn.id)
                await segment.ledger.roll()
        for _ in range(2):
            await segment.buffer.trim((await segment.ledger.tail()).open_ledger_id)
            await pair.clock.advance(2 * 3_600_000)
        assert not (await client.host.metadata.scan(paths.abort_records_range(segment.name), 1)).records

    await lose_end(pair, created, after)
    await require_repair(pair)


async def test_a_segment_that_is_missing(pair: Pair) -> None:
    """A topic whose segment is missing is not reported as unknown."""

    async def nothing(_: Client) -> None:
        """Only create the stores."""

    await lose_end(pair, nothing, created)
    await require_repair(pair)


async def test_counts_of_deliveries_of_lost_messages(pair: Pair) -> None:
    """A restore deletes them, because the next messages at these positions were never delivered."""

    async def after(client: Client) -> None:
        await send(client, b"poison")
        async with client.consumer("orders", "billing", start="earliest", dead_letter=DeadLetter(9)) as consumer:
            await consumer.nack(await consumer.receive(timeout_ms=SOON_MS))
            await consumer.receive(timeout_ms=SOON_MS)

    await lose_end(pair, created, after)
    await pair.restore(RestoreRequest(Restored.LEDGER))

    async def first(client: Client) -> int:
        await send(client, b"new")
        async with client.consumer("orders", "billing", dead_letter=DeadLetter(9)) as consumer:
            return (await consumer.receive(timeout_ms=SOON_MS)).redelivery_count

    assert await pair.play(first) == 0


async def test_a_compaction_of_lost_messages(pair: Pair) -> None:
    """A restore drops the compaction: the snapshot then has the remaining and the later messages."""

    async def keyed(client: Client, value: bytes) -> None:
        async with client.producer("orders") as producer:
            await producer.send(value, key=b"key")

    async def before(client: Client) -> None:
        await created(client)
        await keyed(client, b"kept")

    async def after(client: Client) -> None:
        await keyed(client, b"lost")
        await client.compact("orders")

    async def snapshot(client: Client) -> list[bytes]:
        async with client.reader("orders", compacted=True) as reader:
            return [message.value async for message in reader]

    await lose_end(pair, before, after)
    done = await pair.restore(RestoreRequest(Restored.LEDGER))
    assert done.counts.compactions_dropped == 1
    assert await pair.play(snapshot) == [b"kept"]
    await pair.play(lambda client: keyed(client, b"new"))
    await pair.play(lambda client: client.compact("orders"))
    assert await pair.play(snapshot) == [b"new"]


@pytest.mark.usefixtures("without_server")
def test_commands_check_every_segment(cli: Any, pair: Pair) -> None:
    """``doctor`` and ``check --connect`` name a position beyond an end, or a missing segment, and the remedy."""

    def refuse(found: str) -> None:
        for command in (("doctor", "--output", "json"), ("check", "--connect")):
            done = cli(*command)
            assert done.status == 1
            assert found in done.out + done.err
            assert "txnframework restore --restored ledger" in done.out + done.err

    async def consumed(client: Client) -> None:
        await send(client, b"one")
        await receive(client, 1)

    async def aborted(client: Client) -> None:
        async with client.producer("orders") as producer:
            await producer.send(b"two")
            txn = client.transaction()
            await txn.begin()
            await producer.send(b"three", txn=txn)
            await txn.abort()
        await client.settle(txn.id)

    async def nothing(_: Client) -> None:
        """Only create the stores."""

    async def repair() -> None:
        await pair.restore(RestoreRequest(Restored.LEDGER))

    urls = (f'[{name}]\nurl = "{pair.urls[name]}"\n' for name in ("metadata", "ledger"))
    Path("txnframework.toml").write_text("".join(urls))
    pair.run(lose_end(pair, nothing, created))
    refuse("has no ledger")
    pair.run(repair())
    assert cli("check", "--connect").status == 0
    pair.run(lose_end(pair, nothing, consumed))
    refuse("billing has acknowledged 1:0 of")
    pair.run(repair())
    pair.run(lose_end(pair, nothing, aborted))
    refuse("a transaction was aborted that wrote after")
    pair.run(repair())
    assert cli("check", "--connect").status == 0


async def test_a_lost_segment_can_be_inspected_only(pair: Pair) -> None:
    """The rest of the segment can be read, but any caller that would change it is refused."""

    async def before(client: Client) -> None:
        await created(client)
        await send(client, b"kept")

    async def after(client: Client) -> None:
        await send(client, b"lost")
        await receive(client, 2)

    async def inspected(client: Client) -> None:
        name = str((await client.layout("orders")).name_of(0))
        entry = encode_entry([EntryMessage(None, b"swallowed", (), 0, 0)], "x", None)
        async with client.host.segments.visit(name, may_have_lost_end=True) as opened:
            page = await opened.buffer.read(ReadRequest(EARLIEST, Limit(10)))
            assert [one.position for one in page.entries] == [Position(1, 0)]
            for change in (
                opened.buffer.append((Append(entry, 1),)),
                opened.ledger.append((Append(entry, 1),), None),
                opened.ledger.roll(),
                opened.ledger.seal(),
                opened.ledger.trim(1, frozenset()),
            ):
                with pytest.raises(InvalidInput, match="inspected only"):
                    await change
        for use in (client.host.segment(name), send(client, b"swallowed")):
            with pytest.raises(StoreMismatch, match=REMEDY):
                await use

    await lose_end(pair, before, after)
    await pair.play(inspected)
    await require_repair(pair)


def test_an_open_segment_can_be_inspected_only(pair: Pair) -> None:
    """Inspection gets a ledger that refuses changes, even while another caller has the segment open."""

    async def work(client: Client) -> None:
        await created(client)
        await send(client, b"kept")
        name = str((await client.layout("orders")).name_of(0))
        await client.host.segment(name)
        entry = encode_entry([EntryMessage(None, b"refused", (), 0, 0)], "x", None)
        async with client.host.segments.visit(name, may_have_lost_end=True) as opened:
            with pytest.raises(InvalidInput, match="inspected only"):
                await opened.ledger.append((Append(entry, 1),), None)
        await send(client, b"still accepted")
        assert await receive(client, 2) == [b"kept", b"still accepted"]

    pair.run(pair.play(work))
