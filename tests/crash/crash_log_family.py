"""The log-driven family in these worlds: how its hosts are configured, and what its logs decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txnframework.config._sections import DomainsSection, PersistentDomain, SegmentDomain
from txnframework.model import Append, Appended, LedgerEntry, State, TxnID
from txnframework_legacy.coordinator.log import LOG_PREFIX
from txnframework_legacy.coordinator.records import New, Update, decode
from txnframework_legacy.log import LogRecord, RecordPosition
from txnframework_legacy.log.format import decode_entry
from txnframework_memory.space import MemorySpace

LOG = {"coordinator": "log", "buffer": "marker", "pending_ack": "log"}
DOMAINS = DomainsSection(segment=SegmentDomain(**LOG), persistent=PersistentDomain(**LOG))
PENDING_ACKS: dict[str, dict[str, Any]] = {"log": {"idle_entries_max": 0}}
"""A log of acknowledgments is emptied as soon as none is pending."""
Noted = Callable[[TxnID, State, frozenset[int]], None]


def note_decisions(space: MemorySpace, noted: Noted) -> None:
    """
    Tell what the transaction logs decide, as it is written; ``noted`` gets the first decision of each transaction.

    The log's order decides, so the first record that ends a transaction is its outcome, whatever stands behind it.
    """
    create, find = space.rows.create, space.rows.find
    begun: set[TxnID] = set()
    decided: set[TxnID] = set()

    def note(coordinator: int, entries: tuple[Append, ...], places: tuple[Appended, ...]) -> None:
        for entry, place in zip(entries, places, strict=True):
            for data in decode_entry(LedgerEntry(place.position, entry.data), "a log"):
                record = decode(LogRecord(RecordPosition(place.position), data), "a log")
                if isinstance(record, New):
                    begun.add(TxnID(coordinator, record.number))
                elif isinstance(record, Update) and record.expected == State.OPEN.value:
                    txn_id = TxnID(coordinator, record.number)
                    assert txn_id in begun, f"{txn_id} was decided and had never begun"
                    if txn_id not in decided:
                        decided.add(txn_id)
                        committed = record.state == State.COMMITTING.value
                        state = State.COMMITTED if committed else State.ABORTED
                        noted(txn_id, state, frozenset(record.branches or ()))

    def watched(row: Any) -> Any:
        if row.name.startswith(LOG_PREFIX) and "append" not in vars(row):
            append, coordinator = row.append, int(row.name.removeprefix(LOG_PREFIX), 16)

            def noting(entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
                places: tuple[Appended, ...] = append(entries, ledger_id)
                note(coordinator, entries, places)
                return places

            row.append = noting
        return row

    space.rows.create = lambda name: watched(create(name))  # type: ignore[method-assign]
    space.rows.find = lambda name: watched(find(name))  # type: ignore[method-assign]


def left_in_logs(space: MemorySpace) -> list[str]:
    """
    Return the logs in which something stands, of transactions and of acknowledgments.

    A sealed one is that of a topic that has migrated: it stays until the topic is deleted.
    """
    names = [name for prefix in (LOG_PREFIX, "pending-acks:") for name in space.rows.list_names(prefix, "", 1_000)]
    rows = [(name, space.rows.find(name)) for name in names]
    return [name for name, row in rows if not row.tail().sealed and sum(one.entries for one in row.ledgers(-1, 1_000))]
