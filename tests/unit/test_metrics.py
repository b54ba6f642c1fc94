"""The metrics of a process have one family for each name, for all callers."""

from __future__ import annotations

import sys

import pytest
from prometheus_client import CollectorRegistry

from txnframework.errors import MissingExtra
from txnframework.metrics import Metrics


def test_a_family_is_made_once() -> None:
    """Two hosts of one process may share a registry, which refuses duplicate families."""
    metrics = Metrics(CollectorRegistry())
    metrics.counter("sent_total", "Sent.").inc()
    metrics.counter("sent_total", "Sent.").inc()
    assert metrics.registry.get_sample_value("sent_total") == 2
    with pytest.raises(ValueError, match="sent_total is a counter already, not a gauge"):
        metrics.gauge("sent_total", "Sent.")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which package to install."""
    monkeypatch.delitem(sys.modules, "txnframework.metrics")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r'needs prometheus_client: pip install "txnframework\[metrics\]"'):
        import txnframework.metrics  # noqa: F401
