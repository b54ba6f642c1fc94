"""The text in a lease that names its holder can be parsed."""

from __future__ import annotations

import pytest

from txnframework.broker.coordination import Holder


@pytest.mark.parametrize(
    "holder",
    [
        Holder("", "billing@web-1:42", "s1"),
        Holder("worker-1", "billing@web-1:42", "s1"),
        Holder("on call in May", "billing@web-1:42", "s1"),
        Holder(" on ", "billing@web-1:42", "s1"),
        Holder(" in s1 as shared", "billing@web-1:42", "s2", "key_shared"),
        Holder("", "billing@web-1:42", "s1", "key_shared"),
    ],
)
def test_read_back(holder: Holder) -> None:
    """It can be parsed for any consumer name."""
    assert Holder.parse(str(holder)) == holder


@pytest.mark.parametrize(
    ("text", "holder"),
    [
        ("s1", Holder("", "", "s1")),
        ("worker in s1", Holder("worker", "", "s1")),
        ("worker on call at night in s1", Holder("worker on call at night", "", "s1")),
        ("worker on web-1 in s1", Holder("worker on web-1", "", "s1")),
        ("", Holder("", "", "")),
    ],
)
def test_without_a_process(text: str, holder: Holder) -> None:
    """Leases of earlier releases name only the session, and the consumer if it has a name."""
    assert Holder.parse(text) == holder
