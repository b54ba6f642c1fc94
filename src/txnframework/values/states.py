"""States of transactions."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """States of both families; COMMITTING and ABORTING occur in the log family only."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"
