"""Steps of the records and ledgers of one space; nothing is awaited, so no process sees a part."""

from __future__ import annotations

from msgspec import structs

from txnframework.model import Applied, LedgerAppend, Put, Record, Step
from txnframework_memory._ledgers import LedgerCollection, StoredLedger
from txnframework_memory._records import Records


def apply_step(records: Records, step: Step, foreseen: Applied | None = None) -> Applied:
    """
    Make a valid step, or raise its refusal: every condition precedes the first write.

    ``foreseen``: what ``foresee_step`` has returned for it.
    """
    _examine(records, step)
    rows = [(_row_of(one), one) for one in step.appends]
    intended = tuple([one.intent.put_at(row.tail()) for row, one in rows if one.intent is not None])
    appended = tuple([row.append(one.entries, row.tail().open_ledger_id) for row, one in rows])
    versions = None if foreseen is None else [record.version for record in foreseen.records]
    return Applied(records.apply(structs.replace(step, puts=step.puts + intended), versions), appended)


def foresee_step(records: Records, step: Step) -> Applied:
    """Return what a step of known keys will write, under versions of its own; or raise its refusal."""
    _examine(records, step)
    appended = tuple([_row_of(one).foresee(len(one.entries)) for one in step.appends])
    puts = [put for put in step.puts if isinstance(put, Put)]
    return Applied(tuple([Record(put.key, put.value, records.new_number()) for put in puts]), appended)


def _examine(records: Records, step: Step) -> None:
    records.require(step)
    for entries in step.vacant:
        records.require_vacant(entries)
    for append in step.appends:
        _row_of(append).require_unsealed()


def require_located(step: Step, rows: LedgerCollection) -> None:
    """Raise ValueError if an append of a step is to a ledger of another space."""
    for one in step.appends:
        if not isinstance(one.ledger, StoredLedger) or not one.ledger.is_of(rows):
            raise ValueError(f"{one.ledger!r} is no reference of a ledger of this space")


def _row_of(append: LedgerAppend) -> StoredLedger:
    assert isinstance(append.ledger, StoredLedger), "see require_located"
    return append.ledger
