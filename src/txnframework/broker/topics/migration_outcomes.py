"""Outcomes of a migrating topic's transactions, read from its segment and stored as abort records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import dataclass, field

from txnframework.broker.segments import OpenSegment
from txnframework.errors import (
    EndTransactionTimeout,
    EntryTrimmed,
    InvalidTransactionState,
    MigrationRefused,
    TransactionNotFound,
)
from txnframework.interfaces import IMetadataStore, ITransactionCoordinator
from txnframework.model.ids import Branch, TxnID
from txnframework.model.indexes import abort_indexes
from txnframework.model.metadata import Expect, Put
from txnframework.model.paths import abort_record_key
from txnframework.model.positions import Limit, Position
from txnframework.model.reads import Isolation, ReadableEntry, ReadRequest, Visibility
from txnframework.model.records import AbortRecord, encode
from txnframework.model.transactions import Action, End, OpenQuery, State
from txnframework.runtime.concurrency import for_each

PAGE = Limit(1_000)
LISTED = Limit(100)
TOGETHER_MAX = 16
"""The most records that are written, and the most transactions that are ended, at the same time."""

Place = tuple[int, Branch]
"""A ledger, and a branch with entries in it."""


@dataclass(slots=True)
class Outcomes:
    """What a part of a segment holds: the branches that do not count, and those that are not decided in it."""

    aborted: set[Place] = field(default_factory=set)
    undecided: set[Place] = field(default_factory=set)


class OutcomeRecorder:
    """Reads the outcomes in one segment, through the buffer of its present family, and stores abort records."""

    def __init__(self, store: IMetadataStore, opened: OpenSegment, coordinator: ITransactionCoordinator) -> None:
        self._store = store
        self._opened = opened
        self._coordinator = coordinator

    async def record_decided(self, after: Position, progress: Callable[[int], None]) -> Position:
        """
        Store the abort records of a segment that is in use, up to its max read position; return that position.

        ``progress`` is called with the number of entries of each page.
        """
        readable = await self._opened.buffer.max_read_position()
        aborted: set[Place] = set()
        upto = after
        async for entries, end in self._pages(after, readable):
            upto = end
            progress(len(entries))
            for entry in entries:
                if entry.branch is not None and entry.visibility is Visibility.ABORTED:
                    aborted.add((entry.position.ledger_id, entry.branch))
            await self._require_whole(aborted)
            await self._store_records(aborted)
            aborted.clear()
        return max(after, min(upto, readable))

    async def settle(self, after: Position, holders: Iterable[TxnID]) -> bool:
        """
        End every open transaction with entries in the sealed segment, or in ``holders``; store all abort records.

        Return whether no transaction was open: otherwise call again, to see what has become of them. An unknown
        transaction was forgotten after it was settled here, so its abort records are stored, or it was committed.
        """
        found = await self._read(after)
        await self._require_whole(found.aborted)
        ending = {*holders, *(one.txn_id for _, one in found.undecided)}
        states = {txn_id: await self._state(txn_id) for txn_id in ending}
        opened = sorted(txn_id for txn_id, state in states.items() if state is State.OPEN)
        await for_each(tuple(opened), self._abort, TOGETHER_MAX)
        if opened:
            return False
        aborted = {place for place in found.undecided if await self._is_aborted(place[1])}
        await self._store_records(found.aborted | aborted)
        return True

    async def _read(self, after: Position) -> Outcomes:
        found = Outcomes()
        end = (await self._opened.ledger.tail()).last_confirmed
        async for entries, _ in self._pages(after, end):
            for entry in entries:
                if entry.branch is None or entry.visibility is Visibility.COMMITTED:
                    continue
                place = entry.position.ledger_id, entry.branch
                (found.aborted if entry.visibility is Visibility.ABORTED else found.undecided).add(place)
        return found

    async def _pages(self, after: Position, upto: Position) -> AsyncIterator[tuple[list[ReadableEntry], Position]]:
        """Yield the entries after a position up to another, and the end of each page."""
        while after < upto:
            try:
                page = await self._opened.buffer.read(ReadRequest(after, PAGE, Isolation.READ_UNCOMMITTED))
            except EntryTrimmed:
                (left,) = await self._opened.ledger.ledgers(-1, 1)
                after = max(after, Position(left.ledger_id, -1))
                continue
            if page.upto <= after:
                return
            after = page.upto
            yield [entry for entry in page.entries if entry.position <= upto], after

    async def _require_whole(self, aborted: set[Place]) -> None:
        """
        Refuse a branch that counts with an entry that does not: an abort record is about all entries of a branch.

        Such an entry was appended after its transaction was committed, by a writer that the commit did not wait for.
        """
        for place in aborted:
            # A forgotten transaction counts as committed; the entries of the ledger tell whether it is.
            resolved = await self._opened.buffer.resolve(place[1])
            if resolved is Visibility.COMMITTED and await self._counts_in(*place):
                reason = f"transaction {place[1].txn_id} was committed, and an entry of it was appended later"
                raise MigrationRefused(self._opened.name, reason)

    async def _counts_in(self, ledger_id: int, branch: Branch) -> bool:
        """Return whether an entry of a branch in one ledger is committed."""
        end = (await self._opened.ledger.tail()).last_confirmed
        last = min(end, Position(ledger_id + 1, -1))
        async for entries, _ in self._pages(Position(ledger_id, -1), last):
            if any(one.branch == branch and one.visibility is Visibility.COMMITTED for one in entries):
                return True
        return False

    async def _store_records(self, places: Iterable[Place]) -> None:
        await for_each(tuple(places), self._store_record, TOGETHER_MAX)

    async def _store_record(self, place: Place) -> None:
        ledger_id, branch = place
        record = AbortRecord(after=str(Position(ledger_id, -1)))
        key = abort_record_key(self._opened.name, ledger_id, branch.txn_id, branch.number)
        indexes = abort_indexes(self._opened.name, ledger_id, record)
        await self._store.put(Put(key, encode(record), Expect.ANY, indexes))

    async def _state(self, txn_id: TxnID) -> State | None:
        try:
            return (await self._coordinator.describe(txn_id)).state
        except TransactionNotFound:
            return None

    async def _is_aborted(self, branch: Branch) -> bool:
        try:
            return not (await self._coordinator.describe(branch.txn_id)).counts(branch.number)
        except TransactionNotFound:
            return False

    async def _abort(self, txn_id: TxnID) -> None:
        try:
            await self._coordinator.end(End(txn_id, Action.ABORT, operator=True))
        except (InvalidTransactionState, TransactionNotFound):
            return  # it has ended in the meantime
        except EndTransactionTimeout:
            return  # it is decided; other participants are settled later


async def transactions_in(coordinator: ITransactionCoordinator, segments: Collection[str]) -> frozenset[TxnID]:
    """Return the open transactions that take part in one of these segments."""
    found: set[TxnID] = set()
    page = await coordinator.list_open(OpenQuery(limit=LISTED))
    while page:
        for one in page:
            try:
                described = await coordinator.describe(one.txn_id)
            except TransactionNotFound:
                continue
            if any(participant.segment in segments for participant in described.participants):
                found.add(one.txn_id)
        if len(page) < LISTED.items:
            break
        page = await coordinator.list_open(OpenQuery(after=page[-1].txn_id, limit=LISTED))
    return frozenset(found)
