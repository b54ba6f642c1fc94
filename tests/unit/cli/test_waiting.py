"""What is said while stores do not answer."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.cli._waiting import QUIET_MS, told_if_slow, waiting_for_stores
from txnframework.config import load_config
from txnframework.plugin import load_plugins
from txnframework.testing.clock import VirtualEnvironment


@pytest.mark.parametrize(
    ("for_ms", "told"), [(QUIET_MS - 1, ""), (QUIET_MS, "Waiting.\n"), (10 * QUIET_MS, "Waiting.\n")]
)
def test_who_waits_is_told_once(for_ms: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not before two seconds have passed; on standard error, where it is in no program's way."""
    environment = VirtualEnvironment()

    async def main() -> None:
        async with told_if_slow("Waiting.", environment):
            await environment.advance(for_ms)

    asyncio.run(main())
    assert capsys.readouterr() == ("", told)


def test_it_is_said_for_whom_one_waits_and_where_for_how_long_is_set() -> None:
    """Without passwords, and without an option that the plugin does not have."""
    registry = load_plugins()
    config = {"metadata": {"url": "zookeeper://alice:secret@zk1,zk2/txn"}, "ledger": {"url": "sqlite:///a/b.db"}}
    assert waiting_for_stores(load_config(config), registry) == (
        "Waiting for an answer of zookeeper://alice:***@zk1,zk2/txn and sqlite:///a/b.db."
        " connect_timeout_ms in [metadata.options] says for how long."
    )
    config = {"metadata": {"url": "memory://a"}, "ledger": {"url": "memory://a"}}
    assert waiting_for_stores(load_config(config), registry) == "Waiting for an answer of memory://a."
