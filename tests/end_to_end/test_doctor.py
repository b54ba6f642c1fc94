"""``doctor`` and ``check --connect`` say what is wrong, and what to do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txnframework.cli import _doctor
from txnframework.environment import SystemEnvironment

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.usefixtures("without_server")


def findings(cli: Any, status: int) -> dict[str, dict[str, str]]:
    """Return what the command found, by check."""
    done = cli("doctor", "--output", "json")
    assert done.status == status, done.out + done.err
    return {one["check"]: one for one in json.loads(done.out)}


def configure(metadata: str, ledger: str) -> None:
    Path("txnframework.toml").write_text(f'[metadata]\nurl = "{metadata}"\n[ledger]\nurl = "{ledger}"\n')


def leave_open(stores: Stores) -> str:
    async def begin() -> str:
        async with stores.open(transactions={"sweep": False}) as client:
            txn = client.transaction(outlives_client=True)
            await txn.begin()
            return str(txn.id)

    return asyncio.run(begin())


def test_nothing_is_wrong(cli: Any) -> None:
    """Status 0; every check has a line, and no line has a remedy."""
    found = findings(cli, 0)
    assert [one["remedy"] for one in found.values()] == [""] * len(found)
    wanted = {"configuration", "metadata store", "ledger store", "stores belong together", "clocks", "hanging"}
    assert wanted | {"Python", "version", "transactions", "sweep"} <= set(found)
    table = cli("doctor")
    assert table.status == 0
    assert "answers, in" in table.out


def test_what_hangs(cli: Any, shared: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging transaction comes with the command that ends it; without a sweeper there is a remedy too."""
    monkeypatch.setattr(_doctor, "HANGING_AGE_MS", 0)
    txn_id = leave_open(shared)
    found = findings(cli, 1)
    assert txn_id in found["hanging"]["found"]
    assert f"transaction abort {txn_id}" in found["hanging"]["remedy"]
    assert "1 open in the family metadata" in found["transactions"]["found"]
    assert "txnframework maintain" in found["sweep"]["remedy"]


def test_clocks(cli: Any, shared: Stores) -> None:
    """A transaction from the future shows that the clock of its host is ahead."""

    class Ahead(SystemEnvironment):
        def now_ms(self) -> int:
            return super().now_ms() + 7_200_000

    shared.environment = Ahead()
    txn_id = leave_open(shared)
    found = findings(cli, 1)
    assert "is at least 1" in found["clocks"]["found"]
    assert txn_id in found["clocks"]["found"]
    assert "synchronise the clocks" in found["clocks"]["remedy"]


def test_the_clock_of_a_sender(cli: Any, shared: Stores) -> None:
    """
    A message from the future shows that the clock of its sender was ahead, also after others have sent more.

    The ledger store, which has no clock of its own, is not blamed.
    """

    class Ahead(SystemEnvironment):
        def now_ms(self) -> int:
            return super().now_ms() + 7_200_000

    async def send(producer: str) -> None:
        async with shared.open(transactions={"sweep": False}) as client:
            await client.create_topic("orders", exist_ok=True)
            async with client.producer("orders", name=producer) as sender:
                await sender.send(b"one")

    asyncio.run(send("right-before"))
    shared.environment = Ahead()
    asyncio.run(send("ahead"))
    shared.environment = SystemEnvironment()
    asyncio.run(send("right-after"))
    found = findings(cli, 1)["clocks"]
    assert "the clock of the host of producer ahead, which sent 1:1 of segment://" in found["found"]
    assert "is at least 1" in found["found"]
    assert "ledger store" not in found["found"]
    assert "synchronise the clocks" in found["remedy"]


def test_a_configuration_that_is_wrong(cli: Any) -> None:
    """The error of the configuration is a finding, and no store is opened."""
    Path("txnframework.toml").write_text("[client]\nretries_max = -1\n")
    found = findings(cli, 1)
    assert "client.retries_max" in found["configuration"]["found"]
    assert "metadata store" not in found


def test_stores_that_cannot_be_used(cli: Any, tmp_path: Path) -> None:
    """One sentence for each store; what was not checked is named."""
    good, file = f"sqlite:///{tmp_path}/good.db", tmp_path / "file"
    bad = f"sqlite:///{file}/bad.db"
    file.write_text("no folder")
    configure(good, bad)
    done = cli("check", "--connect")
    assert done.status == 1
    assert "The metadata store answers." in done.out
    assert f"Error: {bad}" in done.err
    assert "Whether the stores belong together was not checked." in done.err
    assert len(done.err.splitlines()) == 2
    found = findings(cli, 1)
    assert found["ledger store"]["remedy"]
    assert "not checked" in found["stores belong together"]["found"]
    configure(bad, good)
    done = cli("check", "--connect")
    assert done.status == 1
    assert "The ledger store was not checked." in done.err


def test_stores_that_do_not_belong_together(cli: Any, tmp_path: Path) -> None:
    """Two stores that were created separately are reported as no pair."""
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]
    for url in urls:
        configure(url, url)
        assert cli("check", "--connect").status == 0
    configure(*urls)
    done = cli("check", "--connect")
    assert done.status == 1
    assert "do not belong together" in done.err


def test_nothing_is_opened_without_being_asked(cli: Any, tmp_path: Path) -> None:
    """Without ``--connect``, the command creates no store; with it, the command does."""
    configure(f"sqlite:///{tmp_path}/new.db", f"sqlite:///{tmp_path}/new.db")
    assert cli("check").status == 0
    assert not (tmp_path / "new.db").exists()
    done = cli("check", "--connect")
    assert (done.status, (tmp_path / "new.db").exists()) == (0, True)
    assert done.out.endswith("The metadata store answers.\nThe ledger store answers.\nThe stores belong together.\n")


def test_versions_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distributions are released together, so one of another version is named."""

    class Installed:
        def __init__(self, name: str, version: str) -> None:
            self.name, self.version = name, version

    installed = [Installed("txnframework", "0.2.0"), Installed("txnframework-sql", "0.1.0")]
    installed += [Installed("txnframework-memory", "0.2.0"), Installed("other", "9")]
    monkeypatch.setattr(_doctor, "distributions", lambda: installed)
    _, *found = _doctor.versions()
    assert {one.found: bool(one.remedy) for one in found} == {
        "txnframework 0.2.0": False,
        "txnframework-memory 0.2.0": False,
        "txnframework-sql 0.1.0": True,
    }
