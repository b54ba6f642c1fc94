"""Reading a span of entries."""

from __future__ import annotations

from txnframework.errors import CorruptEntry
from txnframework.interfaces import IManagedLedger
from txnframework.model import EntryRange, LedgerEntry, Limit
from txnframework_sidecar.model.parts import Span


async def read_span(ledger: IManagedLedger, span: Span) -> list[LedgerEntry]:
    """
    Return every entry of a span.

    :raises CorruptEntry: an entry of the span was never stored.
    """
    found: list[LedgerEntry] = []
    after = span.after
    while after < span.upto:
        page = await ledger.read(EntryRange(after, span.upto), Limit(span.last - span.first + 1))
        if not page:
            raise CorruptEntry(span.upto, "a marker lists it, and it is not there", ledger.name)
        found += page
        after = page[-1].position
    return found
