"""Positions of entries and messages in a managed ledger, from ``txnframework.values``."""

from __future__ import annotations

from txnframework.values import (
    ASIDE,
    EARLIEST,
    TIME_MS_MAX,
    EntryRange,
    Limit,
    Position,
    PositionText,
)

__all__ = [
    "ASIDE",
    "EARLIEST",
    "TIME_MS_MAX",
    "EntryRange",
    "Limit",
    "Position",
    "PositionText",
]
