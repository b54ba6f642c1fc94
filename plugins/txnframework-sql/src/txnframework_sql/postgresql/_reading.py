"""Tails and entries of managed ledgers, each as one statement and so as one consistent fact."""

from __future__ import annotations

from txnframework.errors import LedgerNotFound
from txnframework.model import EntryRange, LedgerEntry, Limit, Position, Tail
from txnframework_sql._executor import Executor
from txnframework_sql.postgresql._connections import Connections
from txnframework_sql.postgresql._functions import READ_ENTRIES
from txnframework_sql.schema import entry_id_of, ledger_id_of
from txnframework_sql.steps import reading
from txnframework_sql.steps.ledgers import Managed

_TAIL = """
SELECT m.sealed, m.open_ledger_id, m.last_ledger_id, m.last_entry_id, s.entries
FROM managed_ledgers m JOIN ledger_segments s ON s.ledger_id = m.open_ledger_id
WHERE m.id = $1 AND m.name IS NOT NULL
"""
_READ = READ_ENTRIES.call(7)
# Positions beyond it, which a caller may name as the end of everything, hold nothing.
_HIGHEST = (1 << 31) - 1


async def tail(connections: Connections, managed: Managed) -> Tail:
    """Return last confirmed position, open ledger and sealed flag."""
    rows = await connections.run(lambda connection: connection.read(_TAIL, managed.id))
    if not rows:
        raise LedgerNotFound(managed.name)
    sealed, open_ledger_id, last_ledger_id, last_entry_id, entries = rows[0]
    last = Position(open_ledger_id, entries - 1) if entries else Position(last_ledger_id, last_entry_id)
    return Tail(last, open_ledger_id, bool(sealed))


async def read(
    connections: Connections, executor: Executor, managed: Managed, range_: EntryRange, limit: Limit
) -> tuple[LedgerEntry, ...]:
    """Return the first entries of a range; see IManagedLedger."""
    bounds = (range_.after.ledger_id, range_.after.entry_id, range_.upto.ledger_id, range_.upto.entry_id)
    arguments = (managed.id, *(min(bound, _HIGHEST) for bound in bounds), max(limit.items, 1), limit.bytes)
    rows = await connections.run(lambda connection: connection.read(_READ, *arguments))
    if rows and rows[-1][0] is None:
        # Rare, and something is wrong: these steps say what.
        return await executor.read(lambda: reading.read(managed, range_, limit))
    return tuple(LedgerEntry(Position(ledger_id_of(place), entry_id_of(place)), data) for place, data in rows)
