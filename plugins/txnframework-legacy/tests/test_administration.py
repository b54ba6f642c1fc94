"""The operator's view of the logs, and what switching them back removes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from legacy_world import World, in_world

import txnframework
from txnframework import Client
from txnframework.cli import main
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model import Position, State, TxnID
from txnframework_legacy.administration import LogAdministration, LogStatistics
from txnframework_legacy.log import Batching
from txnframework_legacy.log.switches import Decision, LogKind, Scope
from txnframework_legacy.options import CoordinatorOptions

ORDERS = "persistent://public/default/orders"
BATCHING = CoordinatorOptions(batching=Batching(enabled=True, records_max=4, delay_ms=1))
FOREVER_MS = 3_600_000


async def standings(administration: LogAdministration, within: Scope = Scope()) -> list[LogStatistics]:  # noqa: B008
    return [one.standing async for one in administration.logs(within)]


async def administration_of(world: World) -> LogAdministration:
    metadata = cast(IMetadataStore, await world.space.open_metadata())
    ledgers = cast(ILedgerStore, await world.space.open_ledgers())
    return LogAdministration(LogKind.TRANSACTIONS, metadata, ledgers, world.environment, configured=True)


# -- transaction logs ---------------------------------------------------------------------------------


@in_world
async def test_what_is_in_a_transaction_log(world: World) -> None:
    """Entries, batches and records are shown as written; open ones with their oldest position."""
    process, administration = await world.process(BATCHING), await administration_of(world)
    assert await standings(administration) == []
    beginnings = [asyncio.ensure_future(process.begin()) for _ in range(6)]
    await world.environment.advance(1)
    ids = await asyncio.gather(*beginnings)
    (found,) = await standings(administration)
    ledger, log = found.last.ledger_id, Scope("8000")
    assert found == LogStatistics(
        log, 1, Position(ledger, 0), Position(ledger, 1), 2, 2, Position(ledger, 1), 6, 6, Position(ledger, 0, 0)
    )
    for txn in ids[:2]:
        await at_once(world, process.end(txn))
    await at_once(world, process.coordinator.collect(world.later_ms()))
    (found,) = await standings(administration)
    assert (found.entries, found.batched, found.records) == (7, 2, 11)
    assert (found.needed, found.oldest_needed) == (4, Position(ledger, 0, 2))
    assert await standings(administration, Scope("8001")) == []


@in_world
async def test_what_is_batched_stays_until_it_is_done(world: World) -> None:
    """Dropping batches removes no entry with a needed record; the remaining records are reported, and go later."""
    process, administration = await world.process(BATCHING), await administration_of(world)
    beginnings = [asyncio.ensure_future(process.begin()) for _ in range(4)]
    await asyncio.gather(*beginnings)
    last = beginnings.pop().result()
    for one in beginnings:
        await at_once(world, process.end(one.result()))
    await at_once(world, process.coordinator.collect(world.later_ms()))
    await administration.switch(Scope(), enabled=False)
    assert await administration.decision() == Decision(enabled=False, scope=Scope())
    assert await administration.drop_batches(Scope()) == 1
    (found,) = await standings(administration)
    assert (found.batched, found.needed, found.oldest_needed) == (1, 1, Position(found.last.ledger_id, 0, 3))
    fresh = await world.process()
    assert (await fresh.coordinator.describe(last)).state is State.OPEN
    await fresh.end(last)
    await fresh.coordinator.collect(world.later_ms())
    assert await administration.drop_batches(Scope()) == 0
    assert (await fresh.begin()).number > last.number


async def at_once(world: World, work: Any) -> None:
    """Let work be done that waits for the delay of its batches."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await world.environment.advance(1)
    await task


# -- logs of acknowledgments, and the command line ----------------------------------------------------


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a configuration of a database of its own, in the working directory."""
    pytest.importorskip("txnframework_sql")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "txnframework.toml"
    file.write_text("[transactions]\nretention_ms = 0\nmax_clock_skew_ms = 0\ncoordinators = 1\n")
    return file


@pytest.fixture
def run(config: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs ``txnframework transaction ...`` and returns status, output and errors."""

    def invoked(*arguments: str) -> tuple[int, str, str]:
        status = main(["transaction", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return invoked


async def acknowledge(client: Client, messages: int, *, held: Sequence[int]) -> list[TxnID]:
    """Acknowledge each message in a transaction of its own, all at a time; leave some of them open."""
    await client.create_topic(ORDERS)
    await (await client.producer(ORDERS)).send_many([str(number).encode() for number in range(messages)])
    left: list[TxnID] = []
    async with await client.consumer(ORDERS, "billing", start="earliest") as consumer:
        received = [await consumer.receive(timeout_ms=60_000) for _ in range(messages)]

        async def handle(number: int) -> None:
            txn = client.transaction(domain="persistent", outlives_client=True, timeout_ms=FOREVER_MS)
            await txn.begin()
            await consumer.ack(received[number], txn=txn)
            if number in held:
                left.append(txn.id)
            else:
                await txn.commit()

        await asyncio.gather(*map(handle, range(messages)))
    return left


def test_logs_of_acknowledgments(config: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """Logs are switched and listed by subscription.

    Pending acks survive the removal of batches, and are committed later.
    """
    enabled = json.loads(run("pending-ack-batching", "enable", "--output", "json")[1])
    assert enabled == {"logs": "subscriptions", "topic": None, "subscription": None, "enabled": True}

    async def before() -> list[TxnID]:
        async with txnframework.open(config) as client:
            return await acknowledge(client, 12, held=(3, 7))

    left = asyncio.run(before())
    found = document(run, "pending-ack-batching")
    (log,) = found.pop("subscriptions")
    assert found == {
        "enabled": True,
        "decided_by": "switch for all",
        "records_max": 512,
        "bytes_max": 4 * 1024 * 1024,
        "delay_ms": 1,
    }
    assert (log["topic"], log["subscription"], log["open_records"]) == (ORDERS, "billing", 2)
    assert log["batched_entries"] > 0
    assert log["records"] > log["entries"]
    first, oldest = Position.parse(log["first_position"]), Position.parse(log["oldest_open_position"])
    assert first <= oldest.entry <= Position.parse(log["last_position"])
    assert oldest.batch_index >= 0

    assert run("pending-ack-batching", "status", "--fail-if-batched")[0] == 1
    status, out, _ = run("pending-ack-batching", "disable", "--topic", ORDERS, "--subscription", "billing")
    assert (status, out) == (
        0,
        f"Batching disabled for the logs of pending acknowledgments of subscription billing of {ORDERS}.\n",
    )
    (log,) = document(run, "pending-ack-batching", "--topic", ORDERS)["subscriptions"]
    assert (log["enabled"], log["decided_by"]) == (False, f"switch for subscription billing of {ORDERS}")
    assert (log["batched_entries"], log["open_records"]) == (0, 2)
    assert run("pending-ack-batching", "status", "--fail-if-batched")[0] == 0

    async def after() -> None:
        async with txnframework.open(config) as client:
            for txn in left:
                await client.commit(str(txn))
            async with await client.consumer(ORDERS, "billing") as consumer:
                with pytest.raises(txnframework.errors.ReceiveTimeout):
                    await consumer.receive(timeout_ms=50)

    asyncio.run(after())


def document(run: Callable[..., tuple[int, str, str]], group: str, *where: str) -> dict[str, Any]:
    status, out, _ = run(group, "status", "--output", "json", *where)
    assert status == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_transaction_logs(config: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """Batching is enabled, disabled and reset, for all logs or for one; text and JSON output show it."""
    status, out, _ = run("log-batching", "status")
    assert status == 0
    assert "disabled, by configuration" in out
    assert "No logs:" in out
    config.write_text(config.read_text() + "[coordinators.log]\nbatching = { enabled = true, delay_ms = 3 }\n")
    assert "enabled, by configuration" in run("log-batching", "status")[1]
    assert run("log-batching", "disable")[:2] == (0, "Batching disabled for all transaction logs.\n")
    assert run("log-batching", "enable", "--coordinator", "8000")[:2] == (
        0,
        "Batching enabled for the transaction logs of 8000.\n",
    )

    async def work() -> str:
        async with txnframework.open(config) as client:
            await acknowledge(client, 6, held=())
            async with client.transaction(domain="persistent") as one:
                return str(one.id)

    first = asyncio.run(work())
    found = document(run, "log-batching")
    assert (found["enabled"], found["delay_ms"]) == (False, 3)
    (log,) = found["coordinators"]
    assert (log["coordinator"], log["enabled"], log["decided_by"]) == ("8000", True, "switch for 8000")
    assert "four digits of its transactions' ids" in " ".join(run("log-batching", "status", "--help")[1].split())
    assert first.startswith(log["coordinator"])
    # Those of the acknowledged transactions may be removed by now.
    assert 1 <= log["open_records"] <= 7
    assert log["records"] > log["entries"]
    status, out, _ = run("log-batching", "disable", "--coordinator", "8000")
    assert f"{log['batched_entries']} batched entries remain." in out
    assert main(["maintain"]) == 0
    _, out, _ = run("log-batching", "disable", "--coordinator", "8000", "--output", "json")
    again = json.loads(out.removeprefix("Done.\n"))
    assert again == {"logs": "coordinators", "coordinator": "8000", "enabled": False, "batched_entries": 0}
    assert run("log-batching", "reset", "--coordinator", "8000")[0] == 0
    assert "switch for all" in run("log-batching", "status")[1]
    assert run("log-batching", "reset")[:2] == (0, "Switch removed for all transaction logs.\n")
    assert document(run, "log-batching")["decided_by"] == "configuration"


@pytest.mark.parametrize(
    ("status", "arguments", "reason"),
    [
        (2, ("log-batching", "enable", "--coordinator", "12"), "invalid coordinator '12'"),
        (2, ("log-batching", "status", "--coordinator", "0001"), "invalid coordinator '0001'"),
        (2, ("pending-ack-batching", "enable", "--subscription", "s"), "requires --topic"),
        (2, ("pending-ack-batching", "enable", "--topic", "orders"), "use a persistent:// topic"),
        (
            1,
            ("pending-ack-batching", "enable", "--topic", ORDERS),
            "'txnframework topic list' lists all topics",
        ),
    ],
)
def test_what_people_mistype(
    run: Callable[..., tuple[int, str, str]], status: int, arguments: Sequence[str], reason: str
) -> None:
    """The error names the invalid value and the remedy; status 2, or 1 for a missing topic."""
    found, _, err = run(*arguments)
    assert found == status
    assert reason in " ".join(err.split())
    assert err.startswith("Error: ")


def test_a_subscription_that_is_not_there(config: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """A switch for a missing subscription is refused; a switch of a missing subscription can be removed."""
    assert main(["topic", "create", ORDERS]) == 0
    where = ("--topic", ORDERS, "--subscription", "biling")
    status, _, err = run("pending-ack-batching", "enable", *where)
    assert (status, "has no subscription biling" in err) == (1, True)
    assert run("pending-ack-batching", "reset", *where)[0] == 0
