"""An operator puts a backup back, is refused, runs the command and goes on; all of it from a terminal."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txnframework

if TYPE_CHECKING:
    from conftest import Stores

STORES = ("metadata", "ledger")


@pytest.fixture
def two_stores(cli: Any, tmp_path: Path) -> Any:
    """The command line, with metadata and messages in a file each."""
    tables = (f'[{name}]\nurl = "sqlite:///{tmp_path}/{name}.db"\n' for name in STORES)
    (tmp_path / "txnframework.toml").write_text("".join(tables))
    return cli


def back_up(directory: Path, name: str) -> str:
    """Copy one of the two as it is at one moment; return when that was, as a person writes it."""
    with (
        closing(sqlite3.connect(directory / f"{name}.db")) as source,
        closing(sqlite3.connect(directory / f"{name}.bak")) as copy,
    ):
        source.backup(copy)
    return datetime.now(UTC).isoformat(timespec="seconds")


def put_back(directory: Path, name: str) -> None:
    shutil.copy(directory / f"{name}.bak", directory / f"{name}.db")


def leave_open(directory: Path, registry: Any, text: bytes) -> str:
    """Send a message in a transaction that is not ended; return its id."""

    async def work() -> str:
        config: dict[str, object] = {name: {"url": f"sqlite:///{directory}/{name}.db"} for name in STORES}
        async with txnframework.open(config, registry=registry) as client:
            txn = client.transaction(outlives_client=True)
            await txn.begin()
            await (await client.producer("orders")).send(text, txn=txn)
            return str(txn.id)

    return asyncio.run(work())


def test_an_older_metadata_file(two_stores: Any, sqlite: Stores, tmp_path: Path) -> None:
    """Transactions committed before the backup remain, undecidable ones are aborted, and work continues."""
    cli = two_stores
    cli("topic", "create", "orders")
    assert cli("topic", "produce", "orders", "kept", "--transaction").status == 0
    undecided = leave_open(tmp_path, sqlite.registry, b"open at the backup")
    taken = back_up(tmp_path, "metadata")
    assert cli("transaction", "abort", undecided).status == 0
    assert cli("topic", "produce", "orders", "lost", "--transaction").status == 0
    assert cli("topic", "produce", "orders", "plain").status == 0
    assert cli("topic", "consume", "orders").out.split() == ["kept", "lost", "plain"]
    put_back(tmp_path, "metadata")
    refused = cli("topic", "consume", "orders")
    assert (refused.status, refused.out) == (1, "")
    assert "restore from a backup" in refused.err

    command = ("restore", "--restored", "metadata", "--taken", taken)
    for asked in ((), ("--dry-run",)):
        planned = cli(*command, *asked, stdin=b"n\n")
        assert planned.status == (0 if asked else 1)
        assert "Planned changes:" in planned.out
        assert f"sqlite:///{tmp_path}/metadata.db" in planned.out
        assert cli("topic", "consume", "orders").status == 1
    planned = json.loads(cli(*command, "--dry-run", "--output", "json").out)
    assert (planned["dry_run"], planned["identity"], planned["transactions_aborted"]) == (True, None, 1)
    assert planned["branches_aborted"] >= 1
    done = cli(*command, stdin=b"y\n")
    assert done.status == 0
    assert "Changes:" in done.out
    assert cli("topic", "consume", "orders").out.split() == ["kept", "plain"]
    assert cli("transaction", "find-hanging", "--age-ms", "3600000").status == 0
    assert cli("topic", "produce", "orders", "new", "--transaction").status == 0
    assert cli("maintain").status == 0
    assert cli("topic", "consume", "orders").out.split() == ["kept", "plain", "new"]


def test_an_older_ledger_file(two_stores: Any, sqlite: Stores, tmp_path: Path) -> None:
    """A cursor beyond the end is refused; the command moves it back, and what comes then is received."""
    cli = two_stores
    receive = ("topic", "consume", "orders", "--subscription", "billing", "--wait-ms", "200")
    cli("topic", "create", "orders")
    assert cli("topic", "produce", "orders", "kept", "--transaction").status == 0
    back_up(tmp_path, "ledger")
    assert cli("topic", "produce", "orders", "lost", "--transaction").status == 0
    assert cli(*receive).out.split() == ["kept", "lost"]
    undecided = leave_open(tmp_path, sqlite.registry, b"lost and open")
    put_back(tmp_path, "ledger")
    refused = cli(*receive)
    assert (refused.status, refused.out) == (1, "")
    assert "txnframework restore --restored ledger" in refused.err

    done = cli("restore", "--restored", "ledger", "--yes", "--output", "json")
    assert done.status == 0
    report = json.loads(done.out)
    assert (report["dry_run"], report["transactions_aborted"], report["cursors_moved"]) == (False, 1, 1)
    assert report["identity"] != report["ledger_identity"]
    assert cli("topic", "consume", "orders").out.split() == ["kept"]
    assert cli("topic", "produce", "orders", "new", "--transaction").status == 0
    assert cli(*receive).out.split() == ["new"]
    assert json.loads(cli("transaction", "describe", undecided, "--output", "json").out)["state"] == "ABORTED"


def test_one_database_for_both_needs_no_restore(one_database: None, cli: Any) -> None:
    """It was put back as a whole, and nothing in it is undecidable."""
    cli("topic", "create", "orders")
    refused = cli("restore", "--restored", "ledger", "--yes")
    assert refused.status == 2
    assert "holds both stores" in refused.err
    assert cli("topic", "list").status == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--restored", "metadata", "--yes"), "--restored metadata needs --taken"),
        (("--restored", "metadata", "--taken", "yesterday", "--yes"), "invalid time 'yesterday'"),
        (("--restored", "metadata", "--taken", "2999-01-01", "--yes"), "taken is in the future"),
        (("--restored", "ledger", "--output", "json"), "add --dry-run or --yes"),
        ((), "Missing option '--restored'"),
    ],
)
def test_what_has_to_be_said(two_stores: Any, arguments: tuple[str, ...], said: str) -> None:
    """Before anything is opened, status 2."""
    refused = two_stores("restore", *arguments)
    assert refused.status == 2
    assert said in refused.err
