"""Statistics of a log: its batched entries, its needed records, and the oldest of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from txnframework.environment import Environment
from txnframework.errors import EntryTrimmed, LedgerNotFound
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import Position
from txnframework_legacy.batching.switches import LogKind, Scope
from txnframework_legacy.coordinator.log import TransactionLog
from txnframework_legacy.coordinator.logs import LOG_PREFIX as TRANSACTION_LOGS
from txnframework_legacy.coordinator.logs import coordinator_of, log_scope
from txnframework_legacy.log import BatchedLogWriter, Batching, LogRecord, read_records
from txnframework_legacy.pending_acks.log import PendingAckLog
from txnframework_legacy.pending_acks.records import Acked, Base, decode
from txnframework_legacy.pending_acks.store import LOG_PREFIX as PENDING_ACK_LOGS
from txnframework_legacy.pending_acks.store import scope_of

_PAGE = 1_000
PREFIXES = {LogKind.TRANSACTIONS: TRANSACTION_LOGS, LogKind.PENDING_ACKS: PENDING_ACK_LOGS}


@dataclass(frozen=True, slots=True)
class Standing:
    """
    Statistics of one log.

    ``first`` is its first remaining entry, ``last`` the last confirmed one. ``needed`` counts the records of
    transactions that are not forgotten, or of acknowledgments that are held. ``oldest_needed`` is the first of them.
    """

    log: Scope
    ledgers: int
    first: Position | None
    last: Position
    entries: int
    batched: int
    last_batched: Position | None
    records: int
    needed: int
    oldest_needed: Position | None


@dataclass(slots=True)
class _Contents:
    """Counters of a log while it is being read."""

    first: Position | None = None
    entries: int = 0
    batched: int = 0
    last_batched: Position | None = None
    records: int = 0

    def add(self, records: tuple[LogRecord, ...]) -> None:
        place = records[0].place
        self.first = self.first or place.entry
        self.entries += 1
        self.records += place.size
        if place.size > 1:
            self.batched += 1
            self.last_batched = place.entry


async def log_names(ledgers: ILedgerStore, kind: LogKind) -> AsyncIterator[str]:
    """Yield the names of all logs of a kind; a log exists from its first record on."""
    after = ""
    while names := await ledgers.list_names(PREFIXES[kind], after, _PAGE):
        for name in names:
            yield name
        after = names[-1]


async def standing_of(ledgers: ILedgerStore, environment: Environment, kind: LogKind, name: str) -> Standing | None:
    """
    Read a log and return its statistics; None if it was deleted meanwhile.

    The log is read as in a recovery, and takes as long.
    """
    try:
        async with opened(ledgers, environment, kind, name) as (ledger, log):
            while True:
                try:
                    return await _standing(kind, name, ledger, log)
                except EntryTrimmed:
                    continue  # trimmed meanwhile: the rest is read again
    except LedgerNotFound:
        return None


def log_of(kind: LogKind, name: str) -> Scope:
    """Return the batching scope of the log with this name."""
    return log_scope(coordinator_of(name)) if kind is LogKind.TRANSACTIONS else scope_of(name)


@asynccontextmanager
async def opened(
    ledgers: ILedgerStore, environment: Environment, kind: LogKind, name: str
) -> AsyncIterator[tuple[IManagedLedger, TransactionLog | PendingAckLog]]:
    """Open a log to read or to trim it; only its hosts append transactions or acknowledgments to it."""
    ledger = await ledgers.open(name)
    writer = BatchedLogWriter(ledger, environment, Batching())
    log: TransactionLog | PendingAckLog
    if kind is LogKind.TRANSACTIONS:
        log = TransactionLog(coordinator_of(name), ledger, writer)
    else:
        log = PendingAckLog(ledger, writer)
    try:
        yield ledger, log
    finally:
        await log.close()


async def _standing(kind: LogKind, name: str, ledger: IManagedLedger, log: TransactionLog | PendingAckLog) -> Standing:
    await log.catch_up()
    ids = await _ledger_ids(ledger)
    last = (await ledger.tail()).last_confirmed
    contents, places = _Contents(), dict[int, Position]()
    async for records in read_records(ledger, Position(ids[0], -1), last):
        contents.add(records)
        if kind is LogKind.PENDING_ACKS:
            _find(records, name, places)
    if isinstance(log, TransactionLog):
        live = log.transactions.live
        needed, oldest = live.records, live.oldest()
    else:
        tokens = [hold.record.token for txn in log.held.transactions() for hold in log.held.of(txn)]
        needed, oldest = len(tokens), min((places[token] for token in tokens if token in places), default=None)
    return Standing(
        log=log_of(kind, name),
        ledgers=len(ids),
        first=contents.first,
        last=last,
        entries=contents.entries,
        batched=contents.batched,
        last_batched=contents.last_batched,
        records=contents.records,
        needed=needed,
        oldest_needed=oldest,
    )


def _find(records: tuple[LogRecord, ...], name: str, places: dict[int, Position]) -> None:
    """Note the position of each acknowledgment record; if it was trimmed, the position of the base that repeats it."""
    for record in records:
        at = Position(record.place.entry.ledger_id, record.place.entry.entry_id, record.place.index)
        decoded = decode(record, name)
        if isinstance(decoded, Acked):
            places[decoded.token] = at
        elif isinstance(decoded, Base):
            for document in decoded.held:
                places.setdefault(document.acked.token, at)


async def _ledger_ids(ledger: IManagedLedger) -> list[int]:
    ids: list[int] = []
    while page := await ledger.ledgers(ids[-1] if ids else -1, _PAGE):
        ids += [one.ledger_id for one in page]
    return ids
