"""The scenarios, one module for each kind of operation."""

from __future__ import annotations

from scenarios import (
    acknowledging,
    applications,
    compacting,
    dead_letters,
    deleting,
    layouts,
    own_rows,
    publishing,
    races,
    standing_by,
    subscribing,
    transactions,
    trimming,
)

SCENARIOS = (
    *publishing.SCENARIOS,
    *acknowledging.SCENARIOS,
    *transactions.SCENARIOS,
    *own_rows.SCENARIOS,
    *races.SCENARIOS,
    *layouts.SCENARIOS,
    *subscribing.SCENARIOS,
    *standing_by.SCENARIOS,
    *dead_letters.SCENARIOS,
    *trimming.SCENARIOS,
    *compacting.SCENARIOS,
    *deleting.SCENARIOS,
    *applications.SCENARIOS,
)
