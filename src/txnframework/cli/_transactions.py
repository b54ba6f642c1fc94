"""Transactions as the commands show them."""

from __future__ import annotations

from typing import Any

from txnframework.cli.output import duration_of, time_of
from txnframework.model.transactions import Participant, State, Transaction


def document_of(found: Transaction, now_ms: int) -> dict[str, Any]:
    """Return a transaction without its participants, as JSON shows it."""
    return {
        "transaction": str(found.txn_id),
        "family": found.txn_id.family,
        "state": found.state.value,
        "age_ms": max(0, now_ms - found.created_ms),
        "left_ms": found.deadline_ms - now_ms if found.state is State.OPEN else None,
        "created": time_of(found.created_ms),
        "ended": time_of(found.finalized_ms),
        "principal": found.principal or None,
        "session": found.session,
        "branches": None if found.branches is None else sorted(found.branches),
    }


def row_of(document: dict[str, Any]) -> dict[str, object]:
    """Return a document as people read it."""
    left_ms = document["left_ms"]
    row = {name: value for name, value in document.items() if name not in ("family", "age_ms", "left_ms")}
    row["age"] = duration_of(document["age_ms"])
    row["times out in"] = None if left_ms is None else duration_of(left_ms) if left_ms > 0 else "overdue"
    return row


def participants_of(found: Transaction) -> list[dict[str, str]]:
    """Return who takes part, as JSON shows it."""
    return [participant_of(one) for one in sorted(found.participants)]


def participant_of(one: Participant) -> dict[str, str]:
    """Return a participant as JSON shows it; without a subscription, the segment was written to."""
    return {"segment": one.segment, "subscription": one.subscription}
