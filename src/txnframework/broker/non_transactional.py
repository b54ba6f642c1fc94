"""The buffer and the pending-ack store of a domain that has no plugins installed: they work without transactions."""

from __future__ import annotations

import asyncio

from zope.interface import implementer

from txnframework.errors import Closed, TransactionDomainMismatch, Unavailable, WithoutTransactions
from txnframework.interfaces import IManagedLedger, IMetadataStore, IPendingAckStore, ITransactionBuffer
from txnframework.model.acks import AckRequest, PendingAcks
from txnframework.model.entries import EntryView
from txnframework.model.ids import Branch
from txnframework.model.index_keys import prefix_range
from txnframework.model.indexes import ACKS_BY_SEGMENT_SUBSCRIPTION
from txnframework.model.joint import JointAck
from txnframework.model.ledger import Append, Appended, LedgerEntry
from txnframework.model.metadata import Record
from txnframework.model.names import topic_of
from txnframework.model.paths import topic_key
from txnframework.model.positions import EARLIEST, EntryRange, Limit, Position
from txnframework.model.reads import EntryPage, ReadableEntry, ReadRequest, Visibility
from txnframework.model.records import TopicRecord, decode
from txnframework.model.transactions import SweepResult, Transaction
from txnframework.runtime.tasks import first_completed

TRIM_PAGE = Limit(1_000)
TRIM_PAGES_MAX = 16
"""The number of pages that one call checks before it trims ledgers."""


@implementer(ITransactionBuffer)
class NonTransactionalBuffer:
    """
    Appends go directly to the ledger, and every confirmed entry may be read.

    Another process that has the plugins may write to the segment in transactions. The outcomes of these entries cannot
    be decided here, so they are never returned, skipped or trimmed. Reading stops before them, with an error whose
    ``reason`` names the missing plugins.
    """

    def __init__(self, ledger: IManagedLedger, reason: str) -> None:
        self.segment: str = ledger.name
        self._ledger = ledger
        self._reason = reason
        self._plain_upto = EARLIEST
        """A check before trimming found every entry up to here to be outside transactions."""
        self._closing = asyncio.Event()

    async def recover(self) -> Position:
        """Return the max read position; there is nothing to recover."""
        return await self.max_read_position()

    async def append(self, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        """
        Append entries outside transactions.

        :raises TransactionDomainMismatch: an entry belongs to a transaction; nothing was appended.
        :raises WithoutTransactions: an earlier copy of an entry belongs to a transaction; other entries of the call may
            be stored.
        """
        self._require_open()
        for entry in entries:
            if entry.branch is not None:
                txn_id = entry.branch.txn_id
                raise TransactionDomainMismatch(txn_id, txn_id.family, self.segment, self._reason)
        appended = await self._ledger.append(entries, None)
        for one in appended:
            if one.branch is not None:
                raise self._undecidable(one.position, one.branch)
        return appended

    async def read(self, request: ReadRequest) -> EntryPage:
        """
        Return the readable entries after a position, up to the first entry of a transaction.

        :raises WithoutTransactions: the next entry belongs to a transaction, under any isolation.
        """
        upto = await self.max_read_position()
        after = request.after.entry
        if after >= upto:
            return EntryPage((), request.after)
        entries = await self._ledger.read(EntryRange(after, upto), request.limit)
        if not entries:
            return EntryPage((), upto)
        plain = self._outside_transactions(entries)
        shown = tuple(ReadableEntry(entry.position, entry.data, None, Visibility.COMMITTED) for entry in plain)
        return EntryPage(shown, plain[-1].position)

    async def max_read_position(self) -> Position:
        """Return the last confirmed position."""
        self._require_open()
        return (await self._ledger.tail()).last_confirmed

    async def advanced(self, beyond: Position) -> Position:
        """Wait until an entry is stored after a position, or the segment is sealed."""
        self._require_open()
        # The watch begins before the first read of the tail, so that no growth is missed.
        watch = await self._ledger.watch()
        try:
            while True:
                tail = await self._ledger.tail()
                if tail.last_confirmed > beyond or tail.sealed:
                    return tail.last_confirmed
                await first_completed(watch.changed(), self._closing.wait())
                self._require_open()
        finally:
            await watch.close()

    async def finished(self, at: Position) -> bool:
        """Return whether the segment is sealed and has no entry after ``at``."""
        self._require_open()
        tail = await self._ledger.tail()
        return tail.sealed and tail.last_confirmed <= at

    async def resolve(self, branch: Branch) -> Visibility:
        """
        Raise, because the outcome of a branch cannot be decided here.

        :raises WithoutTransactions: always.
        """
        raise WithoutTransactions(self.segment, f"transaction {branch.txn_id}", self._reason)

    async def settle(self, ended: Transaction) -> None:
        """
        Raise, so that a process with the plugins settles the transaction.

        :raises Unavailable: always; the caller keeps its records of the transaction.
        """
        raise Unavailable(f"transaction {ended.txn_id} cannot be settled at {self.segment} here: {self._reason}")

    async def trim(self, ledger_id: int) -> SweepResult:
        """
        Trim whole ledgers, after checking that all their entries are outside transactions.

        The ledger needs the aborted branches, which are not known here. So all entries to be trimmed
        are checked before, a bounded number in each call. ``left`` is 1 until the check is complete.

        :raises WithoutTransactions: an entry to be trimmed belongs to a transaction; nothing was trimmed.
        """
        self._require_open()
        tail = await self._ledger.tail()
        below = min(ledger_id, tail.open_ledger_id)
        (first,) = await self._ledger.ledgers(-1, 1)
        self._plain_upto = max(self._plain_upto, Position(first.ledger_id, -1))  # trimmed entries need no check
        last = Position(below, -1)
        for _ in range(TRIM_PAGES_MAX):
            if self._plain_upto >= last:
                break
            entries = await self._ledger.read(EntryRange(self._plain_upto, last), TRIM_PAGE)
            self._plain_upto = self._outside_transactions(entries)[-1].position if entries else last
        else:
            return SweepResult(0, 1)
        after = await self._ledger.trim(below, frozenset())
        return SweepResult(int(after > first.ledger_id), int(after < below))

    async def close(self) -> None:
        """Close; waiting callers get Closed."""
        self._closing.set()

    def _outside_transactions(self, entries: tuple[LedgerEntry, ...]) -> tuple[LedgerEntry, ...]:
        """Return the entries before the first one of a transaction; raise WithoutTransactions if there are none."""
        for number, entry in enumerate(entries):
            branch = EntryView(entry.data, entry.position, self.segment).branch
            if branch is not None:
                if number:
                    return entries[:number]
                raise self._undecidable(entry.position, branch)
        return entries

    def _undecidable(self, position: Position, branch: Branch) -> WithoutTransactions:
        what = f"entry {position} of transaction {branch.txn_id} of the {branch.txn_id.family} family"
        return WithoutTransactions(self.segment, what, self._reason)

    def _require_open(self) -> None:
        if self._closing.is_set():
            raise Closed(f"the buffer of {self.segment} was closed")


@implementer(IPendingAckStore)
class NonTransactionalPendingAcks:
    """
    A store in which no acknowledgment is ever pending.

    Another process that has the plugins may acknowledge in transactions. The messages that it holds must not be
    delivered, and the outcomes cannot be decided here. Recovery then fails with an error whose ``reason`` names the
    missing plugins. A family with records of its own is named in the topic's record before it writes the first one.
    """

    def __init__(self, segment: str, subscription: str, store: IMetadataStore, reason: str) -> None:
        self.segment: str = segment
        self.subscription: str = subscription
        self._store = store
        self._reason = reason

    async def recover(self) -> PendingAcks:
        """
        Return that no acknowledgment is pending.

        :raises WithoutTransactions: acknowledgments are, or may be, pending.
        """
        await self._require_no_family()
        held = prefix_range(ACKS_BY_SEGMENT_SUBSCRIPTION, self.segment, self.subscription)
        if (await self._store.scan_index(held, 1)).records:
            what = f"what transactions acknowledged in subscription {self.subscription}"
            raise WithoutTransactions(self.segment, what, self._reason)
        return PendingAcks()

    async def add(self, request: AckRequest) -> None:
        """
        Raise, because there are no transactions here.

        :raises TransactionDomainMismatch: always; nothing is recorded.
        """
        txn_id = request.branch.txn_id
        raise TransactionDomainMismatch(txn_id, txn_id.family, self.segment, self._reason)

    async def settle(self, ended: Transaction) -> None:
        """
        Raise, so that a process with the plugins settles the transaction.

        :raises Unavailable: always; the caller keeps its records of the transaction.
        """
        raise Unavailable(
            f"transaction {ended.txn_id} cannot be settled at subscription {self.subscription} of {self.segment} here: "
            f"{self._reason}"
        )

    async def plan_joint(self, requests: tuple[AckRequest, ...]) -> JointAck | None:  # noqa: ARG002
        """Return None: there are no transactions here."""
        return None

    async def finish_joint(self, planned: JointAck, written: Record | None) -> None:
        """Do nothing: nothing is planned."""

    async def close(self) -> None:
        """Do nothing; there are no resources."""

    async def _require_no_family(self) -> None:
        topic = topic_of(self.segment)
        record = await self._store.get(topic_key(topic))
        families = [] if record is None else decode(TopicRecord, record).families
        if families:
            what = f"what transactions of the {' and '.join(families)} family may have acknowledged in {topic}"
            raise WithoutTransactions(self.segment, what, self._reason)
