"""Whether others have committed, and what they may have changed: SQLite notifies nobody."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from sqlalchemy import text

from txnframework.model import Key
from txnframework_sql.steps.calls import Steps, row
from txnframework_sql.steps.changes import LedgerChange, Target
from txnframework_sql.steps.ledgers import end_state
from txnframework_sql.steps.records import get_record

# It differs if another connection has committed in between.
_DATA_VERSION = text("PRAGMA data_version")


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the database found: whether others have committed since, and the state of some targets."""

    version: int
    states: dict[Target, Hashable | None]


def look(targets: Collection[Target]) -> Steps[Look]:
    """Look at the database, and at some targets."""
    version = yield from row(_DATA_VERSION)
    assert version is not None
    states: dict[Target, Hashable | None] = {}
    for target in targets:
        states[target] = yield from _state(target)
    return Look(version[0], states)


def _state(target: Target) -> Steps[Hashable | None]:
    """Return what differs after every change of a target; None where only a scan would show a change."""
    if isinstance(target, Key):
        record = yield from get_record(target)
        # An absent record may have come and gone.
        return None if record is None else record.version
    if isinstance(target, LedgerChange):
        return (yield from end_state(target.managed_id))
    return None
