"""The notices of commands while no server answers."""

from __future__ import annotations

from txnframework.cli.stores import connection_notice
from txnframework.config import load_config
from txnframework.plugin import load_plugins


def test_stores_and_the_option_that_limits_the_wait() -> None:
    """The notice has no password, and names only options of the plugin."""
    registry = load_plugins()
    config = {"metadata": {"url": "zookeeper://alice:secret@zk1,zk2/txn"}, "ledger": {"url": "sqlite:///a/b.db"}}
    assert connection_notice(load_config(config), registry) == (
        "Waiting for zookeeper://alice:***@zk1,zk2/txn and sqlite:///a/b.db to answer."
        " connect_timeout_ms in [metadata.options] limits the wait."
    )
    config = {"metadata": {"url": "memory://a"}, "ledger": {"url": "memory://a"}}
    assert connection_notice(load_config(config), registry) == "Waiting for memory://a to answer."
