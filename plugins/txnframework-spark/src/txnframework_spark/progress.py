"""What a query's progress says of its lag and of its state: ``query.lastProgress``, or what a listener is handed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class StateProgress:
    """What a plan with state holds after a batch.

    ``watermark``: rows whose time lies before it are late; None where the plan has none. ``late_rows``: those that the
    batch has dropped, as Spark counts them: behind what a task has combined already. ``rows`` and ``bytes``: of the
    state.
    """

    watermark: str | None
    late_rows: int
    rows: int
    bytes: int


def lag(progress: Mapping[str, Any] | None) -> int | None:
    """
    Return how many messages can be read and are in no batch yet, over all sources of a query.

    None where nobody knows: before the first progress, where Spark has not asked how far a source can be read, as in
    the batch that it runs again after a start, and with a source of another format.
    """
    if progress is None:
        return None
    lags = [_lag(source.get("latestOffset")) for source in progress["sources"]]
    known = [one for one in lags if one is not None]
    return sum(known) if known and len(known) == len(lags) else None


def unacknowledged(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return how many batches of each topic no sink has acknowledged, where the source has noticed."""
    found: dict[str, int] = {}
    for source in progress["sources"]:
        found |= _table(source.get("latestOffset")).get("unacknowledged", {})
    return found


def state(progress: Mapping[str, Any]) -> StateProgress | None:
    """Return what the plan's operators hold together; None: it keeps no state."""
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
    """Return what a source reports as its latest offset; Spark hands that on as text, as a table, or not at all."""
    if isinstance(offset, str):
        # Another format's may be no JSON.
        with contextlib.suppress(msgspec.DecodeError):
            offset = msgspec.json.decode(offset)
    return offset if isinstance(offset, dict) else {}
