"""How a call ended, in one word that a label can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from txnframework.errors import Conflict, NotFound, OutcomeUnknown

if TYPE_CHECKING:
    from prometheus_client import Counter

    from txnframework.metrics import Metrics

OK: Final = "ok"
CONFLICT: Final = "conflict"
REJECT: Final = "reject"
UNKNOWN: Final = "unknown"
FAILED: Final = "failed"


def result_of(error: BaseException, forbidden: str) -> str:
    """Return the word for ``error``; ``forbidden``: the word where the state forbids the call."""
    if isinstance(error, Conflict | NotFound):
        return forbidden
    # A call that was cancelled may have been applied, as one whose reply was lost.
    return FAILED if isinstance(error, Exception) and not isinstance(error, OutcomeUnknown) else UNKNOWN


def header_cas(metrics: Metrics) -> Counter:
    """Return PIP-473's counter of decisions: the store sees them fail, the coordinator sees that one is forbidden."""
    return metrics.counter(
        "pulsar_txn_metadata_store_header_cas_total",
        "Compare-and-sets of a transaction's header: ok, conflict (another one came first), reject (what the header"
        " says forbids it, so nothing was written), unknown (the reply was lost), failed.",
        ("result",),
    )
