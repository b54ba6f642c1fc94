"""What names a ledger in a step, and what a step with rows of an application is decided by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from txnframework.model import Put, Step
from txnframework_sql.steps.ledgers import LedgerRef


@dataclass(frozen=True, slots=True)
class LedgerReference:
    """Names a ledger in a step, with the operations of its store, which appends the entries."""

    managed: LedgerRef
    location: object = field(compare=False)
    """The database that has the ledger."""
    operations: Any = field(compare=False, repr=False)
    """See ``_database.Entries``."""


def require_located(step: Step, location: object) -> None:
    """Raise ValueError if an append of a step is to a ledger that is not in this database."""
    for one in step.appends:
        if not isinstance(one.ledger, LedgerReference) or one.ledger.location != location:
            raise ValueError(f"{one.ledger!r} is no reference of a ledger in the database of this store")


def ledger_of(reference: object) -> LedgerRef:
    """Return the ledger of a reference."""
    assert isinstance(reference, LedgerReference), "see require_located"
    return reference.managed


def operations_of(reference: object) -> Any:
    """Return the operations of the store of a ledger."""
    assert isinstance(reference, LedgerReference), "see require_located"
    return reference.operations


def deciding_put(step: Step) -> Put:
    """Return the put that decides a step with rows of an application."""
    put = step.puts[0]
    assert isinstance(put, Put), "see require_decided"
    return put
