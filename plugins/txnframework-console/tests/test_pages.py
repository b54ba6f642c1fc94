"""Each page shows and escapes stored data, and reads a bounded part of it."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest
from console_world import served

from txnframework import Client, DeadLetter, TxnID
from txnframework.client import HeldLease
from txnframework.model.transactions import Action, End
from txnframework_console.views.processes import processes

ORDERS = quote("topic://public/default/orders", safe="")


async def prepared(client: Client, *values: bytes) -> None:
    await client.create_topic("orders", segments=2)
    await client.subscribe("orders", "billing", start="earliest")
    async with await client.producer("orders") as orders:
        for value in values:
            await orders.send(value, key=value)


async def opened(client: Client, topic: str = "orders", **options: Any) -> TxnID:
    """Leave a transaction open that has written."""
    txn = client.transaction(**options)
    await txn.begin()
    await (await client.producer(topic)).send(b"undecided", txn=txn)
    return txn.id


def text_of(html: str) -> str:
    """Return the text of a page, as a person reads it."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).replace("&#39;", "'").split())


async def test_a_hanging_transaction_is_found() -> None:
    """From the first page to its owner, its age, what it holds back, and its timeline."""
    async with served() as world:
        await prepared(world.client, b"1", b"2")
        txn_id = await opened(world.client, principal="checkout", timeout_ms=600_000)
        assert "No transaction has been hanging for a minute" in await world.page("/")
        await world.environment.advance(120_000)
        first = await world.page("/")
        assert f'href="/transaction?id={txn_id}"' in first
        assert "open for long" in first
        listed = text_of(await world.page("/transactions"))
        assert "1 open in the metadata family" in listed
        assert f"{txn_id} open for long open 2 min 30 s checkout" in listed
        assert "alive 1 segment 1" in listed
        shown = text_of(await world.page(f"/transaction?id={txn_id}"))
        assert "1 message waits in the segments that it wrote to" in shown
        assert "Timeout 2023-11-14T22:23:20Z in 7 min 20 s then it is aborted" in shown
        assert re.search(r"wrote orders [0-9a-f]{4}-[0-9a-f]{4}-[01] 0 1", shown)


async def test_an_ended_transaction() -> None:
    """What is not settled is named; afterwards it has taken effect, and is forgotten later."""
    async with served() as world:
        await prepared(world.client)
        txn_id = await opened(world.client)
        await (await world.client.host.coordinator()).end(End(txn_id, Action.COMMIT, operator=True))
        shown = text_of(await world.page(f"/transaction?id={txn_id}"))
        assert "Committed 2023-11-14T22:13:20Z" in shown
        assert "Settled not yet at 1 participant" in shown
        assert "committed" in text_of(await world.page("/transactions"))
        await world.client.settle(txn_id)
        shown = text_of(await world.page(f"/transaction?id={txn_id}"))
        assert "it has taken effect everywhere" in shown
        assert "Forgotten" in shown
        assert "No transaction is open" in await world.page("/transactions")


async def test_what_is_young_is_no_trouble() -> None:
    """A transaction that is open or has just ended raises no warning, until it is late."""
    async with served() as world:
        await prepared(world.client)
        await opened(world.client, timeout_ms=30_000)
        ended = await opened(world.client)
        await (await world.client.host.coordinator()).end(End(ended, Action.COMMIT, operator=True))
        assert 'class="why"' not in (await world.browser.get("/transactions")).text
        first = await world.page("/")
        assert "tile warn" not in first
        assert "1 unsettled operation" in text_of(first)
        assert "No transaction has been hanging for a minute" in first
        listed = text_of(await world.page("/transactions"))
        assert "ended, and has not taken effect everywhere" in listed
        assert "its timeout has passed" not in listed
        await world.environment.advance(20_000)
        assert "open, and its timeout has passed" in text_of(await world.page("/transactions"))
        await world.environment.advance(60_000)
        assert (await world.page("/")).count("tile warn") == 2


async def test_the_owner_is_gone() -> None:
    """A session without its lease shows that the process has ended."""
    async with served() as world:
        await prepared(world.client)
        txn = world.client.transaction()
        await txn.begin()
        await world.client.host.sessions.close()
        assert "open, and its process is gone" in await world.page(f"/transaction?id={txn.id}")


@pytest.mark.parametrize("log_family", [False, True])
async def test_topics_and_subscriptions(log_family: bool) -> None:
    """Counts, positions, holders, pending acknowledgments and dead letters, of topics of both families."""
    topic = "persistent://public/default/orders" if log_family else "orders"

    async with served("the token", log_family=log_family, consumes=True) as world:
        client: Client = world.client
        await client.create_topic(topic)
        await client.subscribe(topic, "billing", start="earliest")
        async with await client.producer(topic) as producer:
            await producer.send_many([b"1"])
            await producer.send_many([b"2"])
        letters = str(DeadLetter(0).topic_for((await client.layout(topic)).topic, "billing"))
        await client.create_topic(letters)
        async with await client.producer(letters) as producer:
            await producer.send(b"dead")
        consumer = await client.consumer(topic, "billing", name="worker")
        txn = client.transaction(domain="persistent" if log_family else "segment")
        await txn.begin()
        await consumer.ack(await consumer.receive(), txn=txn)
        full = str((await client.layout(topic)).topic)
        row = text_of(await world.page("/subscriptions"))
        assert re.search(r"billing \S*orders (≤ )?2 worker on \S+@\S+ \S+ as exclusive 0 1", row), row
        shown = await world.page(f"/subscription?topic={quote(full, safe='')}&name=billing")
        assert f"/transaction?id={txn.id}" in shown
        assert "1 in" in text_of(shown)
        assert "worker" in await world.page(f"/topic?name={quote(full, safe='')}")
        assert re.search(r"orders 1 2 .* billing 2", text_of(await world.page("/topics?q=orders&sort=lag")))
        assert "dispatch billing of" in await world.page("/processes")
        await txn.abort()
        await consumer.close()


async def test_a_segment_tree() -> None:
    """Children are drawn below the segments that they replaced, in their range of key hashes."""
    async with served() as world:
        await prepared(world.client, b"1", b"2", b"3")
        await world.client.split("orders", 1)
        shown = await world.page(f"/topic?name={ORDERS}")
        boxes = re.findall(
            r'<g class="segment (\w+)[^"]*">.*?<rect x="([\d.]+)%" y="(\d+)" width="([\d.]+)%"', shown, re.S
        )
        assert [(state, float(x), int(y), float(width)) for state, x, y, width in boxes] == [
            ("active", 0, 1, 50),
            ("replaced", 50, 1, 50),
            ("active", 50, 47, 25),
            ("active", 75, 47, 25),
        ]
        assert "style=" not in shown, "the content security policy refuses it"


async def test_what_is_stored_is_escaped() -> None:
    """Names are no HTML, no script, and no text that turns around; an address is no HTML either."""
    hostile = "<script>alert(1)<&'\""

    async with served(token="t") as world:
        await world.client.create_topic(f"topic://public/default/{hostile}")
        await world.client.subscribe(f"topic://public/default/{hostile}", hostile)
        name = quote(f"topic://public/default/{hostile}", safe="")
        paths = ["/", "/topics", "/subscriptions", "/topic?name=" + name, f"/act/split?topic={name}&segment=0"]
        paths.append(f"/subscription?topic={name}&name={quote(hostile)}")
        for path in paths:
            shown = await world.page(path)
            assert "&lt;script&gt;alert(1)" in shown or path == "/"
            assert "<script>alert" not in shown
        for path in (f"/topics?q={quote(hostile)}", f"/live/topics?q={quote(hostile)}"):
            assert "<script>alert" not in (await world.browser.get("/topics?q=" + quote(hostile))).text, path
        missing = await world.page("/topic?name=topic://a/b/" + quote("\u202egpj<b>"), 404)
        assert "\\u202egpj&lt;b&gt;" in missing or "&lt;b&gt;" in missing
        assert "\u202e" not in missing


async def test_long_lists_have_pages() -> None:
    """A page has 50 rows, and only their topics are read; other pages are reached by links."""
    async with served() as world:
        client: Client = world.client
        for number in range(120):
            await client.create_topic(f"t{number:03}")
        read: list[str] = []
        describe = world.looking.describe_topic

        async def counted(topic: Any) -> Any:
            read.append(str(topic))
            return await describe(topic)

        world.looking.describe_topic = counted  # type: ignore[method-assign]
        first = await world.page("/topics")
        assert len(read) == 50
        assert "Page 1 of 3" in text_of(first)
        assert "t049" in first
        assert "t050" not in first
        assert "page=2" in first
        last = await world.page("/topics?page=99")
        assert "t119" in last
        assert "Page 3 of 3" in text_of(last)
        read.clear()
        partly = text_of(await world.page("/topics?sort=lag"))
        assert "topics have not been read yet" in partly or len(read) <= 100
        assert len(read) <= 100
        assert "t007" in await world.page("/topics?q=T007")


async def test_a_topic_with_many_subscriptions() -> None:
    """Its page shows the first ones, and links to the list with the others."""
    async with served() as world:
        await world.client.create_topic("orders")
        for number in range(203):
            await world.client.subscribe("orders", f"s{number:03}")
        shown = await world.page(f"/topic?name={ORDERS}")
        assert "s199" in shown
        assert "s200" not in shown
        assert "3 more are in the list of subscriptions" in text_of(shown)
        assert f"/subscriptions?q={ORDERS}" in shown


async def test_transactions_have_pages() -> None:
    """Every transaction is on one page."""
    async with served() as world:
        ids = set()
        for _ in range(60):
            txn = world.client.transaction()
            await txn.begin()
            ids.add(str(txn.id))
        first = await world.page("/transactions")
        (after,) = re.findall(r"/transactions\?after=(\w+)", first)
        second = await world.page(f"/transactions?after={after}")
        found = [re.findall(r"/transaction\?id=(\w+)", one) for one in (first, second)]
        assert [len(one) for one in found] == [50, 10]
        assert {*found[0], *found[1]} == ids


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/topic?name=topic://a/b/c", 404, "topic://a/b/c"),
        ("/topic?name=a/b", 400, "is not a topic name"),
        ("/topic", 404, "The address names nothing to show."),
        ("/transaction?id=00000000000000000000000000000001", 404, "00000000000000000000000000000001"),
        ("/transaction?id=x", 400, "is not a transaction id"),
        ("/nothing", 404, "There is no such page."),
    ],
)
async def test_what_does_not_exist(path: str, status: int, said: str) -> None:
    """Is said in one sentence."""
    async with served() as world:
        assert said in await world.page(path, status)


async def test_the_stores_are_down() -> None:
    """One sentence says so, beside what was read last; when they are back, so is the page."""
    async with served() as world:
        await prepared(world.client)
        await world.page("/topics")
        world.cut()
        down = text_of(await world.page("/topics", 503))
        assert "The stores do not answer: " in down
        assert "The page shows what was read at 22:13:30 UTC." in down
        assert "orders" in down
        assert "The stores do not answer: " in await world.page("/", 503)
        world.restore()
        assert "The stores do not answer" not in await world.page("/topics")
        assert "1 topic with 2 active segments" in text_of(await world.page("/"))


async def test_no_secret_is_shown() -> None:
    """The token is on no page."""
    async with served(token="secret-token") as world:
        await prepared(world.client)
        for path in ("/", "/topics", "/processes", f"/act/split?topic={ORDERS}&segment=0"):
            assert "secret-token" not in await world.page(path)


async def test_who_serves_coordinators() -> None:
    """The page of processes names each process once, with the ids that it serves."""
    async with served() as world:
        names = [
            HeldLease("coordinator metadata host a1", "on billing@web-1:7 in a1"),
            *(HeldLease(f"coordinator metadata id {one}", "a1") for one in (0, 1, 2, 10)),
            HeldLease("coordinator metadata id 3", "b2"),  # of a host that has just ended
            HeldLease("sweep metadata", "on billing@web-1:7 in session-1"),
            HeldLease("dispatch s of segment://public/default/orders/member session-1", "on b@c:1 in session-1"),
        ]
        found = processes(await world.client.ping(), tuple(names), is_complete=True)
        assert [one.held for one in found.coordinators] == [(("b2", "3"), ("on billing@web-1:7 in a1", "0-2, 10"))]
        assert (len(found.dispatching), len(found.others)) == (0, 1)
        shown = text_of(world.console.pages.view(found))
        assert "metadata · 1 host · swept by billing@web-1:7 session-1" in shown
        assert "billing@web-1:7 a1 serves 0-2, 10" in shown
