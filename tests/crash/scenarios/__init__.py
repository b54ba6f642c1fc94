"""The scenarios, one module for each kind of operation."""

from __future__ import annotations

from scenarios import acknowledging, layouts, publishing, races, subscribing, transactions

SCENARIOS = (
    *publishing.SCENARIOS,
    *acknowledging.SCENARIOS,
    *transactions.SCENARIOS,
    *races.SCENARIOS,
    *layouts.SCENARIOS,
    *subscribing.SCENARIOS,
)
