"""The transaction buffer ``sidecar``."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.errors import TransactionNotFound
from txnframework.interfaces import ICommitOrderBuffer
from txnframework.model import (
    Append,
    Appended,
    Branch,
    EntryPage,
    EntryRange,
    Participant,
    Position,
    ReadableEntry,
    ReadRequest,
    State,
    SweepResult,
    Tail,
    Transaction,
    Visibility,
)
from txnframework.model.names import topic_of
from txnframework.plugin import AbortRetention, SegmentContext, options_as
from txnframework_legacy.admission import FamilyRegistration
from txnframework_legacy.buffer.base import LogBuffer
from txnframework_sidecar.appends import LargeTransactions, SidecarAppender
from txnframework_sidecar.compacted import CompactedLedgers
from txnframework_sidecar.ledgers import TopicLedgers, ledger_names
from txnframework_sidecar.markers import read_topic_entry
from txnframework_sidecar.messages import MessageReader
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.own_ledgers import OwnLedgers
from txnframework_sidecar.retention import Compactor, Retention
from txnframework_sidecar.settlement import Settlement


@implementer(ICommitOrderBuffer)
class SidecarBuffer(LogBuffer):
    """One topic as this process has read it."""

    def __init__(self, context: SegmentContext) -> None:
        super().__init__(context)
        options = options_as(context.options, SidecarOptions)
        environment = context.environment
        retention = AbortRetention(environment, context.transactions.abort_retention_ms)
        names = ledger_names(context.segment, context.life)
        self._ledgers = TopicLedgers(context.ledger, context.ledgers, names, retention, options)
        self._settlement = Settlement(self._ledgers, Participant(context.segment), environment, options)
        named = context.topic or str(topic_of(context.segment))
        registration = FamilyRegistration(context.store, named, options.attempts_max)
        topic = (context.segment, context.life)
        self._own = OwnLedgers(context.ledgers, context.ledger, *topic, options.own_ledgers_open_max)
        large = LargeTransactions(self._ledgers.sidecar_state, self._own, environment, options)
        judge = self._visibility_of_copy
        self._appender = SidecarAppender(
            context.segment, self._ledgers, context.coordinator, registration, large, judge, retention, options
        )
        self._compacted = CompactedLedgers(context.ledgers, names.compacted)
        self._messages = MessageReader(self._ledgers, self._own, self._compacted)
        compacting = Compactor(self._ledgers, self._compacted, self._messages, environment, options)
        self._retention = Retention(
            self._ledgers, self._own, self._settlement, context.coordinator, self._compacted, compacting, options
        )

    async def _catch_up(self) -> Tail:
        return await self._ledgers.read_topic()

    def _readable(self) -> Position:
        return self._ledgers.topic_state.upto

    async def append(self, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        """Append entries of one branch to the sidecar, or entries outside transactions to the topic."""
        await self.recover()
        return await self._appender.append(entries)

    async def read(self, request: ReadRequest) -> EntryPage:
        """Return the readable entries after a position: those outside transactions, and the messages of each marker."""
        await self.recover()
        after = request.after.entry
        if after >= self._ledgers.topic_state.upto:
            await self._ledgers.read_topic()
        upto = self._ledgers.topic_state.upto
        if after >= upto:
            return EntryPage((), request.after)
        shown: list[ReadableEntry] = []
        skipped: list[Position] = []
        size = 0
        repeated = self._ledgers.topic_state.repeated  # as before the fetch; a concurrent trim may shrink it
        for entry in await self._ledgers.topic.read(EntryRange(after, upto), request.limit):
            marker = read_topic_entry(entry, self.segment)
            size += len(entry.data) if marker is None else marker.part.bytes
            if shown and size > request.limit.bytes:
                return EntryPage(tuple(shown), after, tuple(skipped))
            if marker is None:
                shown.append(ReadableEntry(entry.position, entry.data, None, Visibility.COMMITTED))
            elif marker.part.spans and entry.position not in repeated:
                shown.append(await self._messages.entry(marker, entry.position))
            else:
                skipped.append(entry.position)
            after = entry.position
        return EntryPage(tuple(shown), after if shown or skipped else upto, tuple(skipped))

    async def resolve(self, branch: Branch) -> Visibility:
        """Return the visibility of a branch from the sidecar or, if it has no outcome there, from its coordinator."""
        await self.recover()
        await self._ledgers.read_sidecar()
        known = self._ledgers.sidecar_state.of_branch(branch)
        if known is not None and known is not Visibility.OPEN:
            return known
        return await self._describe_visibility(branch)

    async def settle(self, ended: Transaction) -> None:
        """
        Append the markers of a commit unless they are stored already, and note the end in the sidecar.

        :raises Unavailable: the topic is sealed and takes no marker, or its open ledgers changed too often.
        """
        await self.recover()
        await self._settlement.settle(ended)

    async def trim(self, ledger_id: int) -> SweepResult:
        """Trim whole ledgers of the topic, then the ledgers of the sidecar that no marker refers to any more."""
        await self.recover()
        return await self._retention.trim(ledger_id)

    async def close(self) -> None:
        """Stop; calls that wait raise ``Closed``."""
        self._closed.set()
        await self._ledgers.close()
        await self._own.close()
        await self._compacted.close()

    async def _visibility_of_copy(self, branch: Branch, position: Position) -> Visibility:
        """
        Return the visibility of an earlier copy of an entry in the sidecar.

        For a committed transaction, only its markers show which entries count: an entry appended after the decision may
        be listed or not. The markers are therefore written here if they are missing.
        """
        await self._ledgers.read_sidecar()
        known = self._ledgers.sidecar_state.of_copy(branch, position)
        if known is not Visibility.OPEN:
            return known or Visibility.COMMITTED
        try:
            transaction = await self._coordinator.describe(branch.txn_id)
        except TransactionNotFound:
            # Forgotten. Either all participants were settled, so it is noted, or it never enlisted and cannot be
            # committed.
            await self._ledgers.read_sidecar()
            known = self._ledgers.sidecar_state.of_copy(branch, position) or Visibility.COMMITTED
            return Visibility.ABORTED if known is Visibility.OPEN else known
        if transaction.state is State.OPEN:
            return Visibility.OPEN
        await self._settlement.settle(transaction)
        return self._ledgers.sidecar_state.of_copy(branch, position) or Visibility.COMMITTED
