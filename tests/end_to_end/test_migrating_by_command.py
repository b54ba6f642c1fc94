"""``txnframework topic migrate``: dry run, rollback, migration, and the output of the other commands afterwards."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from migrating import NEW, OLD

import txnframework
import txnframework.cli
from txnframework.model.names import TopicName

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.log_family

CONFIG = '[metadata]\nurl = "sqlite:///txn.db"\n[ledger]\nurl = "sqlite:///txn.db"\n'


@pytest.fixture
def command(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs a command over a database of its own, and returns its status and output."""
    (tmp_path / "txnframework.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = txnframework.cli.main(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return status, out, err

    return run


def test_look_take_back_and_migrate(command: Any) -> None:
    """A dry run changes nothing; a plan is rolled back; then the topic migrates, and its old name is the new topic."""
    for words in (("create", OLD), ("produce", OLD, "1")):
        assert command("topic", *words)[0] == 0
    assert command("subscription", "create", OLD, "billing", "--start", "earliest")[0] == 0
    facts = json.loads(command("topic", "migrate", OLD, "--dry-run", "--output", "json")[1])
    assert facts == {
        "topic": OLD,
        "to": NEW,
        "step": "none",
        "planned": None,
        "messages": 1,
        "subscriptions": ["billing"],
        "open_transactions": 0,
        "refused": "",
    }
    assert command("topic", "migrate", OLD, "--rollback")[1] == f"{OLD}: no migration is planned.\n"
    asyncio.run(plan())
    assert "planned" in command("topic", "migrate", OLD, "--dry-run")[1]
    assert f"migrates to    {NEW}" in command("topic", "describe", OLD)[1]
    assert command("topic", "migrate", OLD, "--rollback")[1] == f"{OLD}: migration rolled back.\n"
    status, out, _ = command("topic", "migrate", OLD, "--yes")
    assert (status, out.startswith(f"{OLD}: migrated to {NEW} (")) == (0, True)
    described = json.loads(command("topic", "describe", OLD, "--output", "json")[1])
    assert (described["topic"], described["domain"]) == (NEW, "topic")
    assert (described["migrates_to"], described["migrated_from"]) == (None, OLD)
    assert described["plugins"] == json.loads(command("topic", "describe", NEW, "--output", "json")[1])["plugins"]
    facts = json.loads(command("topic", "migrate", OLD, "--dry-run", "--output", "json")[1])
    assert (facts["step"], facts["messages"], facts["subscriptions"]) == ("done", None, None)
    again = json.loads(command("topic", "migrate", OLD, "--yes", "--output", "json")[1])
    assert (again["topic"], again["result"]) == (OLD, f"migrated to {NEW}")
    assert command("topic", "consume", OLD)[1] == "1\n"
    status, _, err = command("topic", "migrate", OLD, "--rollback")
    assert (status, "does not return" in err) == (1, True)


async def plan() -> None:
    async with txnframework.open(
        {"metadata": {"url": "sqlite:///txn.db"}, "ledger": {"url": "sqlite:///txn.db"}}
    ) as one:
        await one.topics.migrations.plan(TopicName.parse(OLD), TopicName.parse(NEW))


def test_refusals(command: Any) -> None:
    """The reason is one sentence, and nothing is changed."""
    for topic in (OLD, "topic://public/default/taken"):
        command("topic", "create", topic)
    for arguments, reason in (
        ((OLD, "topic://public/default/taken"), "taken"),
        ((OLD, "persistent://public/default/x"), "for anything else, copy to a new topic"),
        ((OLD, "topic://public/other/orders"), "another namespace"),
        (("topic://public/default/taken", NEW), "for anything else, copy to a new topic"),
        (("topic://public/default/taken", OLD), "for anything else, copy to a new topic"),
        (("persistent://public/default/missing",), "does not exist"),
    ):
        status, out, err = command("topic", "migrate", *arguments, "--yes")
        assert (status, out) == (1, "")
        assert reason in err
        assert err.count("\n") <= 2
    assert "refused" in command("topic", "migrate", OLD, "topic://public/other/orders", "--dry-run")[1]
    assert json.loads(command("topic", "migrate", OLD, "--dry-run", "--output", "json")[1])["step"] == "none"
    assert command("topic", "migrate", OLD, "--output", "json")[0] == 2
