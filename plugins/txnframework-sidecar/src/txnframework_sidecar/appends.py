"""Appending: messages of transactions to the sidecar, others to the topic; each sequence is stored once across both."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from txnframework.environment import Environment
from txnframework.errors import LedgerNotFound, LedgerSealed, TransactionConflict
from txnframework.interfaces import IManagedLedger, ITransactionCoordinator
from txnframework.model import Append, Appended, Branch, Position, TxnID, Visibility
from txnframework.model.positions import ASIDE
from txnframework.plugin import AbortRetention, SegmentAppender
from txnframework_legacy.admission import EnlistedBranches, FamilyRegistration
from txnframework_sidecar.ledgers import TopicLedgers
from txnframework_sidecar.markers import encode_reference
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.own_ledgers import OwnLedgers
from txnframework_sidecar.parts import fits
from txnframework_sidecar.state import SidecarState


@dataclass
class _Sent:
    """The amount that this process has sent in a transaction; ``bytes``: the size of the entries."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0

    def is_too_much(self, bounds: SidecarOptions) -> bool:
        """Return whether no single marker could list all of it; a single entry always fits into one."""
        return self.entries > 1 and (
            self.entries > bounds.marker_spans_max or not fits(self.messages, self.bytes, bounds)
        )


class LargeTransactions:
    """
    Decides when a transaction starts to write to an own ledger.

    Processes need not agree on this. A message counts wherever it is stored, because an entry of the sidecar either
    holds it or refers to it. Both kinds of entries are compared for duplicates alike. Each process decides by the
    messages that it has sent, and by those of other processes that it has read. Earlier messages stay in the sidecar.
    """

    def __init__(self, state: SidecarState, own: OwnLedgers, environment: Environment, options: SidecarOptions) -> None:
        self._state = state
        self._own = own
        self._environment = environment
        self._options = options
        self._sent: OrderedDict[TxnID, _Sent] = OrderedDict()

    async def referred(self, txn_id: TxnID, entries: tuple[Append, ...]) -> tuple[Append, ...]:
        """
        Return the sidecar's entries for these: the entries themselves, or references once they are stored in an own
        ledger.

        After a crash before the references are appended, nothing was sent. Entries without a reference are deleted with
        their ledger.
        """
        if not self._is_large(txn_id, entries):
            return entries
        try:
            positions = await self._own.append(txn_id, entries)
        except LedgerNotFound:
            return entries  # the transaction or topic has ended; the append to the sidecar reports it
        now_ms = self._environment.now_ms()
        return tuple(encode_reference(entry, at, now_ms) for entry, at in zip(entries, positions, strict=True))

    def _is_large(self, txn_id: TxnID, entries: tuple[Append, ...]) -> bool:
        """Count entries that are about to be sent, and return whether their transaction is large."""
        sent = self._sent.setdefault(txn_id, _Sent())
        self._sent.move_to_end(txn_id)
        if len(self._sent) > self._options.branches_max:
            self._sent.popitem(last=False)  # if it continues, its count restarts; the state still has an own ledger
        sent.entries += len(entries)
        sent.messages += sum(entry.messages for entry in entries)
        sent.bytes += sum(len(entry.data) for entry in entries)
        return sent.is_too_much(self._options) or self._state.has_own_ledger(txn_id)


Judge = Callable[[Branch, Position], Awaitable[Visibility]]


class SidecarAppender:
    """
    All appends of this process to one topic.

    A ledger rejects sequences that it holds itself. The other ledger is searched before the append. Two copies that are
    sent concurrently, one in a transaction and one outside, may therefore both be stored. A retry finds the first copy,
    because it is sent after the first append returned or was cancelled.
    """

    def __init__(
        self,
        segment: str,
        ledgers: TopicLedgers,
        coordinator: ITransactionCoordinator,
        registration: FamilyRegistration,
        large: LargeTransactions,
        judge: Judge,
        retention: AbortRetention,
        options: SidecarOptions,
    ) -> None:
        self._segment = segment
        self._ledgers = ledgers
        self._coordinator = coordinator
        self._registration = registration
        self._large = large
        self._judge = judge
        self._retention = retention
        self._options = options
        self._plain = SegmentAppender(ledgers.topic, _NoBranches(), judge, retention, options.attempts_max)
        self._inside: SegmentAppender | None = None

    async def append(self, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        """Append all of ``entries``, or find that they are stored already; see ``ITransactionBuffer.append``."""
        if any(entry.branch is not None for entry in entries):
            return await self._append(entries, self._in_transaction, self._find_in_topic)
        return await self._append(entries, self._plain.append, self._find_in_sidecar)

    async def _append(
        self,
        entries: tuple[Append, ...],
        append: Callable[[tuple[Append, ...]], Awaitable[tuple[Appended, ...]]],
        find: Callable[[Append], Awaitable[Appended | None]],
    ) -> tuple[Appended, ...]:
        """Confirm the entries that the other ledger holds already, and append the others."""
        found = await asyncio.gather(*(find(entry) for entry in entries))
        left = tuple(entry for entry, copy in zip(entries, found, strict=True) if copy is None)
        appended = iter(await append(left)) if left else iter(())
        return tuple(next(appended) if copy is None else copy for copy in found)

    async def _in_transaction(self, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        if self._inside is None:
            sidecar = await self._ledgers.make_sidecar()
            branches_max = self._options.branches_max
            enlisted = EnlistedBranches(self._segment, sidecar, self._coordinator, self._registration, branches_max)
            admission = _Admission(self._segment, self._ledgers.topic, enlisted, branches_max)
            self._inside = SegmentAppender(sidecar, admission, self._judge, self._retention, self._options.attempts_max)
        branch = entries[0].branch
        if branch is not None:
            entries = await self._large.referred(branch.txn_id, entries)
        appended = await self._inside.append(entries)
        return tuple(msgspec.structs.replace(one, position=reported_position(one.position)) for one in appended)

    async def _find_in_topic(self, entry: Append) -> Appended | None:
        """Return the copy of an entry that was sent outside transactions; None if there is none."""
        for sequence in _ends_of(entry):
            found = await self._ledgers.topic.find_sequence(*sequence)
            if found is not None:
                return msgspec.structs.replace(found, duplicate=True)
        return None

    async def _find_in_sidecar(self, entry: Append) -> Appended | None:
        """Return the committed copy of an entry that was sent in a transaction; None if there is none."""
        sequences = _ends_of(entry)
        sidecar = await self._ledgers.find_sidecar() if sequences else None
        if sidecar is None:
            return None
        for sequence in sequences:
            found = await self._copy(sidecar, *sequence)
            if found is not None:
                return msgspec.structs.replace(found, duplicate=True, position=reported_position(found.position))
        return None

    async def _copy(self, sidecar: IManagedLedger, producer: str, sequence: int) -> Appended | None:
        """
        Return the copy that counts; search again if the state of an aborted copy may have been forgotten meanwhile.
        """
        while True:
            asked_ms = self._retention.monotonic_ms()
            found = await sidecar.find_sequence(producer, sequence)
            if found is None or found.branch is None:
                return found
            outcome = await self._judge(found.branch, found.position)
            if outcome is Visibility.OPEN:
                raise TransactionConflict(
                    None,
                    f"the same sequence of the producer was sent in {found.branch.txn_id}, which is open",
                    found.branch.txn_id,
                )
            if not self._retention.is_over(asked_ms):
                return found if outcome is Visibility.COMMITTED else None


def reported_position(position: Position) -> Position:
    """Return the position in the sidecar as reported to callers; a read of the topic finds no message there."""
    return Position(position.ledger_id + ASIDE, position.entry_id)


def _ends_of(entry: Append) -> tuple[tuple[str, int], ...]:
    """Return the first and the last sequence of an entry; a copy of a part of it begins or ends with one of them."""
    sequence = entry.sequence
    if sequence is None:
        return ()
    return tuple((sequence.producer, number) for number in dict.fromkeys((sequence.first, sequence.last)))


class _NoBranches:
    """Admission to the topic's own ledger: it accepts no branch."""

    async def admit(self, branch: Branch, principal: str) -> int:
        raise AssertionError(f"{branch} of {principal} is to write to the sidecar")

    def closed(self, branch: Branch) -> None:
        """Do nothing: no branch was admitted."""


class _Admission:
    """Admits branches to the sidecar unless the topic is sealed, because a sealed topic takes no commit."""

    def __init__(self, segment: str, topic: IManagedLedger, enlisted: EnlistedBranches, branches_max: int) -> None:
        self._segment = segment
        self._topic = topic
        self._enlisted = enlisted
        self._branches_max = branches_max
        self._known: OrderedDict[Branch, None] = OrderedDict()

    async def admit(self, branch: Branch, principal: str) -> int:
        """
        Return the id of the sidecar's ledger that a branch may append to.

        :raises LedgerSealed: the topic is sealed.
        """
        if branch not in self._known:
            if (await self._topic.tail()).sealed:
                raise LedgerSealed(self._segment)
            self._known[branch] = None
            if len(self._known) > self._branches_max:
                self._known.popitem(last=False)
        return await self._enlisted.admit(branch, principal)

    def closed(self, branch: Branch) -> None:
        """Forget the admission of a branch whose ledger was closed."""
        self._enlisted.closed(branch)
