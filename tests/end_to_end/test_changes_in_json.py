"""Every command that changes something prints what it did as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("without_server")
ORDERS = "topic://public/default/orders"


def changed(cli: Any, *arguments: str) -> Any:
    done = cli(*arguments, "--output", "json")
    assert done.status == 0, done.err
    return json.loads(done.out)


def test_changes_of_topics(cli: Any) -> None:
    """JSON has full topic names, and the segments after the change."""
    assert changed(cli, "topic", "create", "orders") == {"topic": ORDERS, "segments": [0]}
    assert changed(cli, "topic", "split", "orders", "0") == {"topic": ORDERS, "parents": [0], "children": [1, 2]}
    assert changed(cli, "topic", "merge", "orders", "1", "2") == {"topic": ORDERS, "parents": [1, 2], "children": [3]}
    assert changed(cli, "topic", "create", "orders", "--exist-ok") == {"topic": ORDERS, "segments": [3]}
    assert changed(cli, "topic", "compact", "orders") == {"topic": ORDERS, "order": "position"}
    assert changed(cli, "maintain") == {"rounds": 1}
    assert changed(cli, "topic", "delete", "orders", "--yes") == {"topic": ORDERS, "deleted": True}
    assert changed(cli, "topic", "list") == []


def test_changes_of_subscriptions(cli: Any) -> None:
    """Creating, seeking and deleting name the subscription."""
    cli("topic", "create", "orders")
    named = {"topic": ORDERS, "subscription": "billing"}
    assert changed(cli, "subscription", "create", "orders", "billing") == named
    assert changed(cli, "subscription", "seek", "orders", "billing", "earliest") == {**named, "position": "earliest"}
    assert changed(cli, "subscription", "delete", "orders", "billing", "--yes") == {**named, "deleted": True}
    assert changed(cli, "subscription", "list", "orders") == []


def test_json_asks_nothing(cli: Any) -> None:
    """JSON output contains no question, so nothing is changed without ``--yes``."""
    cli("topic", "create", "orders")
    cli("subscription", "create", "orders", "billing")
    for command in (("topic", "delete", "orders"), ("subscription", "delete", "orders", "billing")):
        refused = cli(*command, "--output", "json")
        assert (refused.status, refused.out) == (2, "")
        assert "--output json cannot ask for confirmation: add --yes" in refused.err
    assert changed(cli, "subscription", "list", "orders") == ["billing"]
