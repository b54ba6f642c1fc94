"""The expected outputs, computed from the input by plain Python and without any code of the pipeline.

``pipeline`` expresses the same in Spark. The two are separate on purpose: a mistake in one of them shows as a
difference.

* ``enriched`` has every row. For ratings: numbers as numbers, the time as ISO 8601, the stars. For other files: the
  fields unchanged. Both have a digest of the message.
* ``alerts`` has the ratings of four stars and more. For other files it has the rows whose digest begins with ``0`` or
  ``1`` (one in eight).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from txnframework_spark.demo.input import InputRow, Kind

ENRICHED: Final = "enriched"
ALERTS: Final = "alerts"
OUTPUTS: Final = (ENRICHED, ALERTS)
ALERT_RATING_MIN: Final = 4.0
ALERT_DIGESTS: Final = ("0", "1")

Value = Mapping[str, object]
"""An output row's value: a JSON object, without the row's origin."""


def expected_outputs(kind: Kind, rows: Iterable[InputRow]) -> dict[str, dict[int, Value]]:
    """Return the expected values of each output, by line number."""
    enriched: dict[int, Value] = {}
    alerts: dict[int, Value] = {}
    for row in rows:
        value = _enriched(kind, row)
        enriched[row.line] = value
        if _is_alert(kind, row):
            alerts[row.line] = _alert(kind, row, value)
    return {ENRICHED: enriched, ALERTS: alerts}


def _digest(row: InputRow) -> str:
    return hashlib.sha256(row.to_message()).hexdigest()[:16]


def _enriched(kind: Kind, row: InputRow) -> Value:
    if kind is not Kind.MOVIELENS:
        return {"line": row.line, "fields": row.fields, "digest": _digest(row)}
    rating = float(row.fields["rating"])
    rated_at = datetime.fromtimestamp(int(row.fields["timestamp"]), UTC)
    return {
        "line": row.line,
        "user": int(row.fields["user"]),
        "movie": int(row.fields["movie"]),
        "rating": rating,
        "stars": "*" * int(rating),
        "rated_at": f"{rated_at:%Y-%m-%dT%H:%M:%SZ}",
        "digest": _digest(row),
    }


def _is_alert(kind: Kind, row: InputRow) -> bool:
    if kind is Kind.MOVIELENS:
        return float(row.fields["rating"]) >= ALERT_RATING_MIN
    return _digest(row).startswith(ALERT_DIGESTS)


def _alert(kind: Kind, row: InputRow, enriched: Value) -> Value:
    if kind is not Kind.MOVIELENS:
        return {"line": row.line, "reason": f"digest {enriched['digest']}"}
    reason = f"user {row.fields['user']} gave movie {row.fields['movie']} {enriched['stars']}"
    return {"line": row.line, "reason": reason}
