"""Quotas of backlogs: when the backlogs are measured."""

from __future__ import annotations

import pytest

from txnframework.broker.backlog import BacklogSize
from txnframework.broker.quotas import TopicQuota
from txnframework.config import BacklogQuotaSection
from txnframework.errors import BacklogQuotaExceeded
from txnframework.model.names import TopicName
from txnframework.testing.clock import VirtualEnvironment

HOUR_MS = 3_600_000
INTERVAL_MS = 1_000


async def test_a_clock_that_is_set_back_delays_no_measurement() -> None:
    """Producers are accepted as soon as consumers have caught up, even if the clock was set back."""
    environment = VirtualEnvironment()
    backlog = BacklogSize(3, 3)

    async def measure() -> dict[str, BacklogSize]:
        return {"billing": backlog}

    bounds = BacklogQuotaSection(messages=3, interval_ms=INTERVAL_MS)
    topic = TopicName.parse("topic://public/default/orders")
    quota = TopicQuota(topic, bounds, measure, environment, "p@h:1")
    with pytest.raises(BacklogQuotaExceeded):
        await quota.require_room()
    backlog = BacklogSize(0, 0)
    with pytest.raises(BacklogQuotaExceeded):
        await quota.require_room()
    environment.set_clock(-HOUR_MS)
    await environment.advance(INTERVAL_MS)
    await quota.require_room()
    backlog = BacklogSize(3, 3)
    await quota.require_room()
    await environment.advance(INTERVAL_MS)
    with pytest.raises(BacklogQuotaExceeded):
        await quota.require_room()
