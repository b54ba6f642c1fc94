"""Rare events that operators look for, logged once each by the process that they happen in."""

from __future__ import annotations

import logging
from enum import StrEnum

_LOG = logging.getLogger("txnframework.events")


class Event(StrEnum):
    """What happened."""

    SEGMENT_TAKEN_OVER = "segment_taken_over"
    SEGMENT_GIVEN_UP = "segment_given_up"
    SEGMENT_TAKEN = "segment_taken"
    LEASE_LOST = "lease_lost"
    SESSION_LOST = "session_lost"
    ORPHAN_ABORTED = "orphan_aborted"
    OVERDUE_ABORTED = "overdue_aborted"
    COORDINATORS_TAKEN_OVER = "coordinators_taken_over"
    SWEEPS_TAKEN_OVER = "sweeps_taken_over"
    PRODUCERS_REFUSED = "producers_refused"
    PRODUCERS_ACCEPTED = "producers_accepted"


def log_event(level: int, event: Event, sentence: str, **facts: str) -> None:
    """
    Log an event: ``sentence`` for people, and for programs ``event`` and ``facts``, which the log record has as extras.

    ``sentence`` contains all facts. A fact that names a process has the form ``CLIENT@HOST:PID``.
    """
    _LOG.log(level, "%s", sentence, extra={"event": event.value, "facts": facts})
