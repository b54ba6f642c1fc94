"""Metrics of a process's calls and of the state of the stores are correct."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, DeadLetter
from txnframework.broker import FamilyStatus, StatusReport
from txnframework.cli._metrics import serving
from txnframework.cli._store_metrics import StatusReader
from txnframework.cli.background_client import RETRY_MS, BackgroundClient
from txnframework.errors import InvalidInput, InvalidTransactionState, ReceiveTimeout, TransactionConflict, Unavailable
from txnframework.metrics import Metrics
from txnframework.model import Action, End, TxnID
from txnframework.testing import VirtualEnvironment

if TYPE_CHECKING:
    from conftest import Stores

PATIENT_MS = 120_000
ORDERS = "topic://public/default/orders"
CAS = "txnframework_header_updates_total"


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


def of_metadata(report: StatusReport) -> FamilyStatus:
    """Return the metrics of the tested family; others may be installed."""
    return next(one for one in report.families if one.family == "metadata")


async def committed(client: Client) -> TxnID:
    async with client.transaction() as txn:
        for number in range(3):
            await (await client.producer(f"t{number}")).send(b"x", txn=txn)
    return txn.id


async def test_decisions_and_operations_are_counted(stores: Stores) -> None:
    """One operation record for each topic, one decision, timed; one that is forbidden counts as rejected."""
    metrics = Metrics()

    async with stores.open(metrics=metrics, transactions={"sweep": False}) as client:
        for number in range(3):
            await client.create_topic(f"t{number}")
        txn_id = await committed(client)
        assert value(metrics, "txnframework_operation_records_written_total") == 3
        assert value(metrics, CAS, result="ok") == 1
        with pytest.raises(InvalidTransactionState):
            await (await client.host.coordinator()).end(End(txn_id, Action.ABORT))
        assert value(metrics, CAS, result="reject") == 1
        ended = {"family": "metadata", "action": "commit", "result": "ok"}
        assert value(metrics, "txnframework_end_seconds_count", **ended) == 1
        await client.find_hanging(0)
        assert value(metrics, "txnframework_index_query_seconds_count") > 0


async def test_conflicts_are_counted(stores: Stores) -> None:
    """Two transactions acknowledge one message: the second one's conflict is counted."""
    metrics = Metrics()

    async with stores.open(metrics=metrics) as client:
        await client.create_topic("orders")
        await (await client.producer("orders")).send(b"x")
        consumer = await client.consumer("orders", "s", start="earliest")
        message = await consumer.receive()
        async with client.transaction() as first:
            await consumer.ack(message, txn=first)
            second = client.transaction()
            await second.begin()
            with pytest.raises(TransactionConflict):
                await consumer.ack(message, txn=second)
            await second.abort()
        assert value(metrics, "txnframework_ack_conflicts_total", topic=ORDERS, subscription="s") == 1
        assert value(metrics, "txnframework_sent_messages_total", topic=ORDERS) == 1
        assert value(metrics, "txnframework_sent_bytes_total", topic=ORDERS) == 1
        assert value(metrics, "txnframework_received_messages_total", topic=ORDERS, subscription="s") == 1
        assert value(metrics, "txnframework_received_bytes_total", topic=ORDERS, subscription="s") == 1
        # That of the transaction that commits; the refused one is not counted.
        assert value(metrics, "txnframework_acknowledged_messages_total", topic=ORDERS, subscription="s") == 1
        await consumer.close()


async def test_the_wait_for_a_commit_is_timed(stores: Stores) -> None:
    """The wait is measured once for each waiting segment; commits from before the process started are ignored."""
    metrics = Metrics()

    async with stores.open(transactions={"sweep": False}) as writer, stores.open(metrics=metrics) as looking:
        await writer.create_topic("orders")
        orders = await writer.producer("orders")
        async with writer.transaction() as txn:
            await orders.send(b"before", txn=txn)
        consumer = await looking.consumer("orders", "s", start="earliest")
        assert (await consumer.receive()).value == b"before"
        assert value(metrics, "txnframework_commit_to_visible_seconds_count", topic=ORDERS) == 0
        txn = writer.transaction(outlives_client=True)
        await txn.begin()
        await orders.send(b"waited for", txn=txn)
        # Observed before its end: a transaction that is settled before an observation cannot be timed.
        assert sum((await looking.undecided("orders")).values()) == 1
        await (await writer.host.coordinator()).end(End(txn.id, Action.COMMIT))
        assert (await consumer.receive()).value == b"waited for"
        assert value(metrics, "txnframework_commit_to_visible_seconds_count", topic=ORDERS) == 1
        await consumer.close()


async def test_how_the_stores_stand(stores: Stores) -> None:
    """Metrics show open transactions, the messages that they block, unsettled ones, and subscription lag."""
    async with stores.open(transactions={"sweep": False}) as client:
        await client.create_topic("orders")
        await client.subscribe("orders", "billing", start="earliest")
        orders = await client.producer("orders")
        await orders.send(b"readable")
        txn = client.transaction(outlives_client=True)
        await txn.begin()
        await orders.send(b"undecided", txn=txn)
        await orders.send(b"behind it")
        report = await client.host.status.report()
        family = of_metadata(report)
        assert (family.family, family.open_count, family.operations_left) == ("metadata", 1, 0)
        assert family.oldest_age_ms is not None
        (topic,) = report.topics
        assert topic.topic == ORDERS
        (segment,) = topic.segments
        assert (segment.messages, segment.undecided) == (3, 2)
        (billing,) = topic.subscriptions
        assert (billing.subscription, billing.lag, billing.dead_letters) == ("billing", 1, 0)
        assert billing.oldest_age_ms is not None
        await (await client.host.coordinator()).end(End(txn.id, Action.ABORT))
        family = of_metadata(await client.host.status.report())
        assert family == FamilyStatus("metadata", 0, None, 1)


def test_the_command_prints_what_prometheus_reads(cli: Any) -> None:
    """The command prints the metrics once, without starting a server."""
    cli("topic", "create", "orders", "--segments", "2")
    cli("subscription", "create", "orders", "billing", "--start", "earliest")
    cli("topic", "produce", "orders", "a", "b", "c", "--key", "k")
    printed = cli("metrics")
    assert printed.status == 0, printed.err
    assert 'txnframework_open_transactions{family="metadata"} 0.0' in printed.out
    lag = 'txnframework_subscription_lag_messages{subscription="billing",topic="topic://public/default/orders"} 3.0'
    assert lag in printed.out
    for name in ("undecided_messages", "stored_messages", "stored_bytes"):
        assert printed.out.count(f"txnframework_{name}{{") == 2
    assert 'txnframework_dead_letters{subscription="billing",topic="topic://public/default/orders"} 0.0' in printed.out
    assert re.search(r'txnframework_oldest_unacknowledged_message_age_seconds\{.*"billing".*\} \d', printed.out)
    assert re.search(r'txnframework_build_info\{python="3\..*",version=".*"\} 1\.0', printed.out)


def test_the_command_prints_json_for_programs(cli: Any) -> None:
    """The same families and values; served scrapes are text only."""
    cli("topic", "create", "orders")
    cli("topic", "produce", "orders", "a", "b")
    printed = cli("metrics", "--output", "json")
    assert printed.status == 0, printed.err
    families = {family["name"]: family for family in json.loads(printed.out)}
    (stored,) = families["txnframework_stored_messages"]["samples"]
    assert (stored["labels"]["topic"], stored["value"]) == (ORDERS, 2.0)
    assert families["txnframework_up"]["help"]
    refused = cli("metrics", "--output", "json", "--listen", "127.0.0.1:0")
    assert (refused.status, "remove --output json" in refused.err) == (2, True)


@pytest.mark.parametrize("address", ["9464", "host:", ":9464", "host:port", "host:70000"])
def test_an_address_that_is_none_is_refused(cli: Any, address: str) -> None:
    """The error is one sentence that says what to write."""
    refused = cli("metrics", "--listen", address)
    assert refused.status == 2
    assert f"--listen {address}: write HOST:PORT" in refused.err


async def test_scrapes_are_answered(stores: Stores) -> None:
    """Each scrape reads the stores anew, in another thread than the loop's."""
    async with stores.open() as client:
        await client.create_topic("orders")
        async with serving(lambda: client, "127.0.0.1", 0, PATIENT_MS) as port:
            await (await client.producer("orders")).send(b"x")
            await client.subscribe("orders", "billing", start="earliest")
            assert re.search(r'lag_messages\{.*"billing".*\} 1\.0', await asyncio.to_thread(scraped, port))


async def test_a_slow_reading_answers_the_next_scrape(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape that does not wait gets the last reading, and the reading that it began is the next one's answer."""
    async with stores.open() as client:
        await client.create_topic("orders")
        reader = StatusReader(lambda: client, 0)
        first = await reader.reading()
        status, report, going_on = client.host.status, client.host.status.report, asyncio.Event()

        async def slow() -> StatusReport:
            await going_on.wait()
            return await report()

        monkeypatch.setattr(status, "report", slow)
        await client.create_topic("invoices")
        assert await reader.reading() is first
        assert await reader.reading() is first
        going_on.set()
        reader.wait_s = PATIENT_MS / 1000
        second = await reader.reading()
        assert (len(first.report.topics), len(second.report.topics)) == (1, 2)
        await reader.close()


async def test_a_scrape_does_not_wait_for_the_loop(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the loop is busy with a reading, a scrape gets the last one."""
    async with stores.open() as client:
        await client.create_topic("orders")
        async with serving(lambda: client, "127.0.0.1", 0, 0) as port:
            await asyncio.to_thread(scraped, port)
            status, report = client.host.status, client.host.status.report
            answered, in_time = threading.Event(), asyncio.get_running_loop().create_future()

            async def blocking() -> StatusReport:
                in_time.set_result(answered.wait(PATIENT_MS / 1000))
                return await report()

            def scrape() -> str:
                found = scraped(port)
                answered.set()
                return found

            monkeypatch.setattr(status, "report", blocking)
            assert "txnframework_stored_messages{" in await asyncio.to_thread(scrape)
            assert await in_time  # the answer may come before the reading begins


async def test_a_scrape_may_be_compressed(stores: Stores) -> None:
    """It is the same text, but for its age."""
    async with stores.open() as client:
        await client.create_topic("orders")
        async with serving(lambda: client, "127.0.0.1", 0, PATIENT_MS) as port:
            plain = (await asyncio.to_thread(scraped, port)).splitlines()
            found = gzip.decompress(await asyncio.to_thread(scraped_compressed, port)).decode().splitlines()
            assert [one for one in found if "report_" not in one] == [one for one in plain if "report_" not in one]
            assert len(found) == len(plain)


async def test_an_outage_is_not_hidden(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed reading, the last successful one is no longer served."""
    async with stores.open() as client:
        reader = StatusReader(lambda: client, PATIENT_MS / 1000)
        await reader.reading()

        async def away() -> StatusReport:
            raise Unavailable("the server does not answer")

        monkeypatch.setattr(client.host.status, "report", away)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await reader.reading()
        await reader.close()


async def test_backlog_of_a_subscription(stores: Stores) -> None:
    """The age of its oldest message over all segments, what is stored, and its dead letters."""
    async with stores.open() as client:
        await client.create_topic("orders", segments=2)
        await client.subscribe("orders", "billing", start="earliest")
        async with await client.producer("orders") as orders:
            for key in range(8):
                await orders.send(b"12345", key=b"%d" % key)
        consumer = await client.consumer("orders", "billing", dead_letter=DeadLetter(0))
        first = await consumer.receive()
        rest = [await consumer.receive() for _ in range(7)]
        await consumer.ack(*rest[:-1])
        await consumer.nack(first)
        while (await client.lag("orders", "billing")).messages > 1:  # the refused message is put aside
            with contextlib.suppress(ReceiveTimeout):
                await consumer.receive(timeout_ms=50)
        now_ms = client.host.environment.now_ms()
        report = await client.host.status.report()
        topic = next(one for one in report.topics if one.topic == ORDERS)
        (billing,) = topic.subscriptions
        assert (billing.lag, billing.dead_letters) == (1, 1)
        assert billing.oldest_age_ms is not None
        assert now_ms - billing.oldest_age_ms <= rest[-1].published_ms
        assert (len(topic.segments), sum(one.messages for one in topic.segments)) == (2, 8)
        assert sum(one.bytes for one in topic.segments) > 8 * 5
        await consumer.ack(rest[-1])
        report = await client.host.status.report()
        topic = next(one for one in report.topics if one.topic == ORDERS)
        assert (topic.subscriptions[0].lag, topic.subscriptions[0].oldest_age_ms) == (0, None)
        await consumer.close()


def test_while_the_stores_are_away(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scrape reports only the outage, one line without a traceback is logged, and the next scrape recovers."""

    async def work() -> None:
        async with stores.open() as client:
            standing = client.host.status
            report = standing.report

            async def away() -> Any:
                raise Unavailable("the server does not answer\nfor now")

            async with serving(lambda: client, "127.0.0.1", 0, PATIENT_MS) as port:
                for _ in range(3):
                    monkeypatch.setattr(standing, "report", away)
                    for _ in range(2):
                        answer = await asyncio.to_thread(scraped, port)
                        assert "txnframework_up 0.0" in answer
                        assert "txnframework_open" not in answer
                    monkeypatch.setattr(standing, "report", report)
                    assert "txnframework_up 1.0" in await asyncio.to_thread(scraped, port)

    stores.run(work())
    told = ["The stores are unavailable: the server does not answer for now", "The stores are available again."]
    assert capsys.readouterr().err.splitlines() == told * 3


def test_it_starts_during_an_outage(stores: Stores, capsys: pytest.CaptureFixture[str]) -> None:
    """Scrapes say so, and find the stores as soon as they answer; no restart is needed."""
    attempts = 0

    @contextlib.asynccontextmanager
    async def opening() -> AsyncIterator[Client]:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise Unavailable("the server does not answer")
        async with stores.open() as client:
            yield client

    async def work() -> None:
        environment = VirtualEnvironment()
        async with BackgroundClient(opening, environment) as opened:
            await opened.tried()
            async with serving(opened.client, "127.0.0.1", 0, PATIENT_MS) as port:
                assert "txnframework_up 0.0" in await asyncio.to_thread(scraped, port)
                await environment.advance(RETRY_MS)
                assert "txnframework_up 0.0" in await asyncio.to_thread(scraped, port)
                await environment.advance(RETRY_MS)
                while "txnframework_up 1.0" not in await asyncio.to_thread(scraped, port):
                    assert attempts == 3
                assert "txnframework_open_transactions{" in await asyncio.to_thread(scraped, port)

    stores.run(work())
    told = ["The stores are unavailable: the server does not answer", "The stores are available again."]
    assert capsys.readouterr().err.splitlines() == told


async def test_a_wrong_configuration_ends_the_start(stores: Stores) -> None:
    """The command ends, because retrying cannot help."""

    @contextlib.asynccontextmanager
    async def opening() -> AsyncIterator[Client]:
        raise InvalidInput("the option is wrong")
        yield

    with pytest.raises(InvalidInput, match="the option is wrong"):
        async with BackgroundClient(opening, VirtualEnvironment()) as opened:
            await opened.tried()


def test_an_address_that_others_reach_is_noted(cli: Any) -> None:
    """A public address causes a warning, because metrics name topics and subscriptions.

    The address belongs to no machine, so the command ends.
    """
    refused = cli("metrics", "--listen", "192.0.2.1:9464")
    assert refused.status == 2
    assert "Note: everyone who can reach this address can read the metrics." in refused.err
    assert "--listen: cannot listen at 192.0.2.1:9464" in " ".join(refused.err.split())


@pytest.mark.parametrize("path", ["/", "/metric", "/metrics/", "/favicon.ico", "/../etc/passwd", "/metrics%00"])
async def test_nothing_is_at_another_path(stores: Stores, path: str) -> None:
    """Other paths return 404 without reading the stores."""
    async with stores.open() as client, serving(lambda: client, "127.0.0.1", 0, PATIENT_MS) as port:
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}{path}", timeout=PATIENT_MS / 1000)
        assert refused.value.code == 404
        refused.value.close()


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENT_MS / 1000) as answer:
        return str(answer.read().decode())


def scraped_compressed(port: int) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=PATIENT_MS / 1000) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        return bytes(answer.read())
