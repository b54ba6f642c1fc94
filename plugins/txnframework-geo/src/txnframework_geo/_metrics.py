"""Metrics of a replication, where a process has metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txnframework.instruments import Instruments
    from txnframework_geo._values import Step

LABELS = ("replication",)


class ReplicationMetrics:
    """Records each step; ``instruments`` None: records nothing."""

    def __init__(self, instruments: Instruments | None, name: str) -> None:
        self._instruments = instruments
        self._name = name

    def note(self, step: Step) -> None:
        """Record a step."""
        found = self._instruments
        if found is None:
            return
        copied = found.counter("txnframework_geo_messages_total", "Messages that were copied.", LABELS)
        copied.labels(self._name).inc(step.copied)
        steps = found.counter("txnframework_geo_transactions_total", "Committed transactions of the target.", LABELS)
        steps.labels(self._name).inc()
        self.note_lag(step.lag_messages, step.lag_ms)

    def note_lag(self, messages: int, age_ms: int) -> None:
        """Record how many messages the target does not have, and the age of the first of them."""
        found = self._instruments
        if found is None:
            return
        lag = found.gauge("txnframework_geo_lag_messages", "Messages that the target does not have yet.", LABELS)
        lag.labels(self._name).set(messages)
        seconds = found.gauge("txnframework_geo_lag_seconds", "Age of the first message that it does not have.", LABELS)
        seconds.labels(self._name).set(age_ms / 1000)
