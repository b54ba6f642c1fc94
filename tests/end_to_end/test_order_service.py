"""An order service that is killed at random steps: rows, invoices and acknowledgments always agree."""

from __future__ import annotations

import os

import pytest
from order_service import Plan, config_of, database, run

SESSION_TTL_MS = 500
BACKENDS = [name for name in ("sqlite", "postgresql") if name in os.environ.get("TXN_BACKENDS", "sqlite").split()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_workers_bill_each_order_once(backend: str) -> None:
    """No row without its invoice and its acknowledgment, and none twice, wherever a worker is killed."""
    pytest.importorskip({"sqlite": "aiosqlite", "postgresql": "asyncpg"}[backend])
    plan = Plan(orders=16, workers=2, kills=3, topics=2, batch=2, seed=1, patience_s=240)
    with database(backend) as url:
        found = run(config_of(url, SESSION_TTL_MS), url, plan)
    assert found.differences(plan.orders) == []
    assert found.kills == plan.kills
