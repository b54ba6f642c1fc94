"""Switching batching of the logs and reporting their status, through the stores alone; it needs no running host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from txnframework.environment import Environment
from txnframework.errors import EntryTrimmed, LedgerNotFound
from txnframework.interfaces import ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.model import Position
from txnframework_legacy.coordinator.log import LOG_PREFIX as TRANSACTION_LOGS
from txnframework_legacy.coordinator.log import TransactionLog, coordinator_of, log_scope
from txnframework_legacy.log import BatchedLogWriter, Batching, LogRecord, read_records
from txnframework_legacy.log.switches import (
    Decision,
    LogKind,
    Scope,
    SwitchDocument,
    Switches,
    load_switches,
    put_switch,
)
from txnframework_legacy.pending_acks.log import PendingAckLog
from txnframework_legacy.pending_acks.records import Acked, Base, decode
from txnframework_legacy.pending_acks.store import LOG_PREFIX as PENDING_ACK_LOGS
from txnframework_legacy.pending_acks.store import scope_of

_PAGE = 1_000
PREFIXES = {LogKind.TRANSACTIONS: TRANSACTION_LOGS, LogKind.PENDING_ACKS: PENDING_ACK_LOGS}


@dataclass(frozen=True, slots=True)
class LogStatistics:
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
        position = records[0].position
        self.first = self.first or position.entry
        self.entries += 1
        self.records += position.size
        if position.size > 1:
            self.batched += 1
            self.last_batched = position.entry


async def log_names(ledgers: ILedgerStore, kind: LogKind) -> AsyncIterator[str]:
    """Yield the names of all logs of a kind; a log exists from its first record on."""
    after = ""
    while names := await ledgers.list_names(PREFIXES[kind], after, _PAGE):
        for name in names:
            yield name
        after = names[-1]


async def read_statistics(
    ledgers: ILedgerStore, environment: Environment, kind: LogKind, name: str
) -> LogStatistics | None:
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
                    continue  # trimmed during the read: the remaining log is read again
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


async def _standing(
    kind: LogKind, name: str, ledger: IManagedLedger, log: TransactionLog | PendingAckLog
) -> LogStatistics:
    await log.catch_up()
    ids = await _ledger_ids(ledger)
    last = (await ledger.tail()).last_confirmed
    contents, positions = _Contents(), dict[int, Position]()
    async for records in read_records(ledger, Position(ids[0], -1), last):
        contents.add(records)
        if kind is LogKind.PENDING_ACKS:
            _find(records, name, positions)
    if isinstance(log, TransactionLog):
        live = log.transactions.live
        needed, oldest = live.records, live.oldest()
    else:
        tokens = [hold.record.token for txn in log.held.transactions() for hold in log.held.of(txn)]
        needed, oldest = len(tokens), min((positions[token] for token in tokens if token in positions), default=None)
    return LogStatistics(
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


def _find(records: tuple[LogRecord, ...], name: str, positions: dict[int, Position]) -> None:
    """
    Note the position of each acknowledgment record, or the position of the base that repeats it if the record was
    trimmed.
    """
    for record in records:
        at = Position(record.position.entry.ledger_id, record.position.entry.entry_id, record.position.index)
        decoded = decode(record, name)
        if isinstance(decoded, Acked):
            positions[decoded.token] = at
        elif isinstance(decoded, Base):
            for document in decoded.held:
                positions.setdefault(document.acked.token, at)


async def _ledger_ids(ledger: IManagedLedger) -> list[int]:
    ids: list[int] = []
    while page := await ledger.ledgers(ids[-1] if ids else -1, _PAGE):
        ids += [one.ledger_id for one in page]
    return ids


@dataclass(frozen=True, slots=True)
class LogStatus:
    """Whether a log is written in batches, and its contents."""

    decision: Decision
    standing: LogStatistics


class LogAdministration:
    """
    Administration of the logs of one kind.

    ``configured`` is whether this process's configuration enables batching. Each host uses its own configuration.
    """

    def __init__(
        self,
        kind: LogKind,
        metadata: IMetadataStore,
        ledgers: ILedgerStore,
        environment: Environment,
        *,
        configured: bool,
    ) -> None:
        self._kind = kind
        self._metadata = metadata
        self._ledgers = ledgers
        self._environment = environment
        self._configured = configured

    async def switch(self, scope: Scope, *, enabled: bool | None) -> None:
        """
        Enable or disable batching for the logs of a scope. None: use the switch of a wider scope, or the configuration.

        Running hosts follow within moments.

        :raises OutcomeUnknown: the switch may be stored; repeating the call is safe.
        """
        document = None
        if enabled is not None:
            document = SwitchDocument(enabled=enabled, switched_ms=self._environment.now_ms())
        await put_switch(self._metadata, self._kind, scope, document)

    async def decision(self) -> Decision:
        """Return the decision for a log without a narrower switch."""
        return self._decide(await load_switches(self._metadata, self._kind), Scope())

    async def logs(self, within: Scope) -> AsyncIterator[LogStatus]:
        """Yield the logs within a scope one by one; each is read from its beginning."""
        switches = await load_switches(self._metadata, self._kind)
        async for name in log_names(self._ledgers, self._kind):
            if not within.covers(log_of(self._kind, name)):
                continue
            standing = await read_statistics(self._ledgers, self._environment, self._kind, name)
            if standing is not None:
                yield LogStatus(self._decide(switches, standing.log), standing)

    async def drop_batches(self, within: Scope) -> int:
        """
        Drop batched entries from logs that are no longer written in batches; return how many such entries are left.

        The open ledger of such a log is closed, so that it can be trimmed when none of its records is needed. Held
        acknowledgments are first written again, in an entry of their own. Transactions stay until they are forgotten.
        """
        names = {log_of(self._kind, name): name async for name in log_names(self._ledgers, self._kind)}
        left = 0
        async for found in self.logs(within):
            name, batched = names.get(found.standing.log), found.standing.batched
            if name is not None and batched and not found.decision.enabled:
                batched = await self._shrunk(name)
            left += batched
        return left

    async def _shrunk(self, name: str) -> int:
        try:
            async with opened(self._ledgers, self._environment, self._kind, name) as (_, log):
                await log.shrink(1)
        except LedgerNotFound:
            return 0
        standing = await read_statistics(self._ledgers, self._environment, self._kind, name)
        return 0 if standing is None else standing.batched

    def _decide(self, switches: Switches, log: Scope) -> Decision:
        return switches.decide(log, configured=self._configured)
