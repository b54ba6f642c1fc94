"""Reading documents that were appended in parts, starting at the last part."""

from __future__ import annotations

from txnframework.interfaces import IManagedLedger
from txnframework.model import EntryRange, LedgerEntry, Limit, Position
from txnframework_legacy.buffer.snapshot_format import parts_of

PAGE = Limit(100)


async def read_document(ledger: IManagedLedger, last: Position) -> list[LedgerEntry]:
    """
    Return the entries of the document whose last entry is at ``last``; an empty list if no entry is stored there.

    :raises EntryTrimmed: the document was trimmed.
    """
    before = Position(last.ledger_id, last.entry_id - 1)
    found = await ledger.read(EntryRange(before, last), Limit(1))
    if not found:
        return []
    after = Position(last.ledger_id, last.entry_id - parts_of(found[0], ledger.name))
    entries: list[LedgerEntry] = []
    while after < before:
        page = await ledger.read(EntryRange(after, before), PAGE)
        if not page:
            break
        entries += page
        after = page[-1].position
    return [*entries, found[0]]
