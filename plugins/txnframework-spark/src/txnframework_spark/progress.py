"""Lag and state in a query's progress: ``query.lastProgress``, or the progress that a listener receives."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class StateProgress:
    """The state of a stateful plan after a batch.

    ``watermark``: rows with an earlier time are late; None if the plan has none. ``late_rows``: rows that the batch
    dropped as late, as Spark counts them: after the partial aggregation of each task. ``rows`` and ``bytes``: size of
    the state.
    """

    watermark: str | None
    late_rows: int
    rows: int
    bytes: int


def lag(progress: Mapping[str, Any] | None) -> int | None:
    """
    Return the number of readable messages that are in no batch yet, over all sources of a query.

    None if the number is unknown: before the first progress, or if a source has another format. It is also unknown if
    Spark has not asked for the latest offset, for example in a batch that is replayed after a start.
    """
    if progress is None:
        return None
    lags = [_lag(source.get("latestOffset")) for source in progress["sources"]]
    known = [one for one in lags if one is not None]
    return sum(known) if known and len(known) == len(lags) else None


def unacknowledged(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of unacknowledged batches for each topic for which the source has detected any."""
    found: dict[str, int] = {}
    for source in progress["sources"]:
        found |= _table(source.get("latestOffset")).get("unacknowledged", {})
    return found


def state(progress: Mapping[str, Any]) -> StateProgress | None:
    """Return the total state of the plan's operators; None if the plan keeps no state."""
    operators = progress.get("stateOperators") or ()
    if not operators:
        return None
    return StateProgress(
        watermark=(progress.get("eventTime") or {}).get("watermark"),
        late_rows=sum(one["numRowsDroppedByWatermark"] for one in operators),
        rows=sum(one["numRowsTotal"] for one in operators),
        bytes=sum(one["memoryUsedBytes"] for one in operators),
    )


def _lag(offset: Any) -> int | None:
    found = _table(offset).get("lag")
    return found["messages"] if isinstance(found, dict) else None


def _table(offset: Any) -> dict[str, Any]:
    """Return the latest offset that a source reports; Spark passes it as text, as a table, or not at all."""
    if isinstance(offset, str):
        # The offset of another format may not be JSON.
        with contextlib.suppress(msgspec.DecodeError):
            offset = msgspec.json.decode(offset)
    return offset if isinstance(offset, dict) else {}
