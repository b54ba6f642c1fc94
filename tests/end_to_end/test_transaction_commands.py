"""``txnframework transaction``: what is open or hangs is found, with why, and ended."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txnframework.model import Action, End, TxnID

if TYPE_CHECKING:
    from conftest import Stores


def test_an_open_transaction_is_found_and_aborted(cli: Any, shared: Stores) -> None:
    """It is listed with its age, described with its participants, and ended by its id; once more changes nothing."""
    cli("topic", "create", "orders")
    cli("subscription", "create", "orders", "billing")
    assert cli("transaction", "list").out == "No transaction is open.\n"

    async def leave_open() -> str:
        async with shared.open() as client, await client.producer("orders") as producer:
            txn = client.transaction(outlives_client=True, principal="ada")
            await txn.begin()
            await producer.send(b"undecided", txn=txn)
            return str(txn.id)

    txn_id = asyncio.run(leave_open())
    assert (read := cli("topic", "consume", "orders")).out == ""
    assert read.err.startswith("1 more message waits for an open transaction to end. 'txnframework transaction list'")
    (waiting,) = json.loads(cli("subscription", "describe", "orders", "billing", "--output", "json").out)["segments"]
    assert [waiting["lag"], waiting["undecided"], waiting["waits_for"]] == [0, 1, txn_id]
    assert txn_id in cli("subscription", "describe", "orders", "billing").out
    uncommitted = cli("topic", "consume", "orders", "--isolation", "read_uncommitted")
    assert (uncommitted.out, uncommitted.err) == ("undecided  (not committed)\n", "")
    (listed,) = json.loads(cli("transaction", "list", "--output", "json").out)
    assert (listed["transaction"], listed["state"]) == (txn_id, "OPEN")
    described = json.loads(cli("transaction", "describe", txn_id, "--output", "json").out)
    assert described["participants"] == [{"segment": "segment://public/default/orders/0000-ffff-0", "subscription": ""}]
    assert described["parts"] == [{"branch": 0, "counts": None, "operation": "wrote", **described["participants"][0]}]
    assert txn_id in cli("transaction", "describe", txn_id).out
    assert cli("transaction", "abort", txn_id).out == f"Aborted transaction {txn_id} of principal ada.\n"
    again = json.loads(cli("transaction", "abort", txn_id, "--output", "json").out)
    assert again == {"transaction": txn_id, "state": "ABORTED", "principal": "ada", "process": None}
    settled = json.loads(cli("transaction", "settle", txn_id, "--output", "json").out)
    assert settled == {"transaction": txn_id, "operations_left": 0}
    assert json.loads(cli("transaction", "list", "--output", "json").out) == []
    assert json.loads(cli("transaction", "describe", txn_id, "--output", "json").out)["state"] == "ABORTED"
    assert cli("topic", "consume", "orders").out == ""
    (settled,) = json.loads(cli("subscription", "describe", "orders", "billing", "--output", "json").out)["segments"]
    assert [settled["undecided"], settled["waits_for"]] == [0, None]


def test_the_owner_of_an_aborted_transaction_is_named(cli: Any, shared: Stores) -> None:
    """If its process is running, the output names host and process id."""
    cli("topic", "create", "orders")

    async def abort() -> tuple[str, str]:
        async with shared.open() as client:
            txn = client.transaction()
            await txn.begin()
            (found,) = await client.find_hanging(0)
            aborted = await asyncio.to_thread(cli, "transaction", "abort", str(txn.id))
            return str(found.transaction.process), aborted.out

    process, printed = asyncio.run(abort())
    assert process.endswith(f":{os.getpid()}")
    assert printed.endswith(f" of process {process}.\n")


async def commit_elsewhere(shared: Stores, txn_id: TxnID) -> None:
    """Commit a transaction as another process, which did not write its operations and settles nothing."""
    async with shared.open(transactions={"sweep": False}) as client:
        await (await client.host.coordinator()).end(End(txn_id, Action.COMMIT))


def test_what_hangs_is_found_and_settled(cli: Any, shared: Stores) -> None:
    """Status 1 while something hangs, with why and the command that helps; that command helps."""
    cli("topic", "create", "orders")
    found = cli("transaction", "find-hanging", "--age-ms", "0")
    assert (found.status, found.out) == (0, "No transaction has been hanging for 0 ms or longer.\n")

    async def leave() -> tuple[str, str, str]:
        async with shared.open(transactions={"sweep": False}) as client, await client.producer("orders") as producer:
            ids = []
            for outlives_client in (True, False, False):
                txn = client.transaction(outlives_client=outlives_client)
                await txn.begin()
                await producer.send(b"undecided", txn=txn)
                ids.append(txn.id)
            await commit_elsewhere(shared, ids[2])
            return str(ids[0]), str(ids[1]), str(ids[2])

    outliving, orphan, ended = asyncio.run(leave())
    found = cli("transaction", "find-hanging", "--age-ms", "0", "--output", "json")
    assert found.status == 1
    hanging = {one["transaction"]: one for one in json.loads(found.out)}
    assert list(hanging) == [outliving, orphan, ended]
    assert [one["owner_lives"] for one in hanging.values()] == [None, False, None]
    assert f":{os.getpid()}) has ended" in hanging[orphan]["reason"]
    assert "1 operation has not taken effect in segment://" in hanging[ended]["reason"]
    table = cli("transaction", "find-hanging", "--age-ms", "0")
    assert table.status == 1
    for txn_id, ending in ((outliving, "abort"), (orphan, "abort"), (ended, "settle")):
        command = f"txnframework transaction {ending} {txn_id}"
        assert command in hanging[txn_id]["remedy"]
        assert txn_id in table.out
        assert cli(*command.split()[1:]).status == 0
    assert cli("transaction", "find-hanging", "--age-ms", "0").status == 0
    assert cli("transaction", "find-hanging").status == 0
    assert cli("topic", "consume", "orders").out == "undecided\n"


def test_maintenance_ends_hanging_transactions(cli: Any, shared: Stores) -> None:
    """What is overdue, or whose process is gone, is aborted, and what ended takes effect, without any other client."""
    cli("topic", "create", "orders")

    async def leave() -> None:
        async with shared.open(transactions={"sweep": False}) as client, await client.producer("orders") as producer:
            for timeout_ms, outlives_client in ((60_000, False), (1, True)):
                txn = client.transaction(timeout_ms=timeout_ms, outlives_client=outlives_client)
                await txn.begin()
                if timeout_ms > 1:
                    await producer.send(b"undecided", txn=txn)
            ended = client.transaction()
            await ended.begin()
            await producer.send(b"committed", txn=ended)
            await commit_elsewhere(shared, ended.id)

    asyncio.run(leave())
    assert len(json.loads(cli("transaction", "find-hanging", "--age-ms", "0", "--output", "json").out)) == 3
    config = Path("txnframework.toml")
    config.write_text(config.read_text() + "[transactions]\nmax_clock_skew_ms = 0\n")
    config.write_text(config.read_text() + "[coordinators.metadata]\nsettle_delay_ms = 0\n")
    assert cli("maintain").status == 0
    assert cli("transaction", "find-hanging", "--age-ms", "0").status == 0
    assert cli("topic", "consume", "orders").out == "committed\n"
