"""What commands say while no server answers."""

from __future__ import annotations

from txnframework.cli._waiting import waiting_for_stores
from txnframework.config import load_config
from txnframework.plugin import load_plugins


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
