"""What people type that click has no type for."""

from __future__ import annotations

from datetime import UTC, datetime

from txnframework.errors import InvalidInput


def time_ms_of(text: str) -> int:
    """Return a time in ms since 1970; without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r} is not a time: write one such as 2026-01-31T12:00:00Z") from error
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
