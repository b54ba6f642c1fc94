"""Appends to one segment, for buffers of every family: to the admitted ledger, and each sequence once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec

from txnframework.environment import Environment
from txnframework.errors import LedgerClosed, TransactionConflict, Unavailable, lost_end
from txnframework.interfaces import IManagedLedger
from txnframework.model.ids import Branch
from txnframework.model.ledger import Append, Appended
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.reads import Visibility

Resolve = Callable[[Branch, Position], Awaitable[Visibility]]
AppendCall = Callable[[tuple[Append, ...], int | None], Awaitable[tuple[Appended, ...]]]

_REPLACEMENTS_MAX = 8
"""The most earlier copies of one entry that are replaced before the entry is refused."""


class Admission(Protocol):
    """How a family records durably that a branch is about to append."""

    async def admit(self, branch: Branch, principal: str) -> int:
        """Return the ledger that ``branch`` may append to; raises as ITransactionBuffer.append does."""

    def closed(self, branch: Branch) -> None:
        """Note that the ledger to which ``branch`` was admitted takes no more entries."""


class AppendingAdmission(Admission, Protocol):
    """An admission that may be one step with the first append of a branch."""

    async def append(self, branch: Branch, principal: str, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        """
        Append entries of ``branch``, and admit it if it is not yet admitted.

        :raises LedgerClosed: the ledger to which it was admitted before takes no more entries.
        """


@dataclass(frozen=True, slots=True)
class AbortRetention:
    """
    The time for which the absence of an abort record is conclusive.

    Records outlive their ledger by ``retention_ms``. A process that needs longer than that to judge an entry that it
    saw must ask the ledger again whether the entry still exists.
    """

    environment: Environment
    retention_ms: int

    def monotonic_ms(self) -> int:
        """
        Return the time; call this before an entry is read.

        With a clock that was set back meanwhile, the process would rely on the absence of a record for too long, and
        take aborted entries for committed ones.
        """
        return self.environment.monotonic_ms()

    def is_over(self, since_ms: int) -> bool:
        """Return whether the abort records of entries that existed at ``since_ms`` may be deleted by now."""
        return self.environment.monotonic_ms() - since_ms > self.retention_ms


def writer_of(entries: tuple[Append, ...]) -> tuple[Branch | None, str]:
    """Return the one branch and the one principal of all entries; ValueError if there are two."""
    first = entries[0] if entries else None
    for entry in entries[1:]:
        if first is not None and entry.branch != first.branch:
            raise ValueError("the entries of one call are all of one branch, or all of none")
        if first is not None and entry.principal != first.principal:
            raise ValueError("the entries of one call are all of one principal")
    return (None, "") if first is None else (first.branch, first.principal)


class SegmentAppender:
    """
    All appends of this process to one segment.

    Sends of one branch run one after the other, so that their entries are in the order of the calls. A branch is
    admitted to one ledger. If that ledger was closed in the meantime, it refuses the append, and the branch is admitted
    to the next ledger.
    """

    def __init__(
        self,
        ledger: IManagedLedger,
        admission: Admission,
        resolve: Resolve,
        retention: AbortRetention,
        attempts_max: int,
        append: AppendCall | None = None,
        appending: AppendingAdmission | None = None,
    ) -> None:
        """
        Append to ``ledger``; through ``append``, if given, which combines the concurrent appends of several callers.

        :param appending: performs the appends of branches, instead of ``admission`` and ``append``.
        """
        self._ledger = ledger
        self._appending = appending
        self._append = append or ledger.append
        self._admission = admission
        self._resolve = resolve
        self._retention = retention
        self._attempts_max = attempts_max
        self._furthest = EARLIEST
        self._locks: WeakValueDictionary[Branch, asyncio.Lock] = WeakValueDictionary()

    async def append(self, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        """Append all of ``entries``, or find that they are already stored; see ITransactionBuffer.append."""
        branch, principal = writer_of(entries)
        done: dict[int, Appended] = {}
        if branch is None:
            await self._append_rest(entries, None, done)
            return _in_order(done)
        async with self._locks.setdefault(branch, asyncio.Lock()):
            for _ in range(self._attempts_max):
                # An admission that appends itself knows the ledger.
                ledger_id = None if self._appending is not None else await self._admission.admit(branch, principal)
                try:
                    await self._append_rest(entries, ledger_id, done)
                except LedgerClosed:
                    self._admission.closed(branch)
                else:
                    return _in_order(done)
        raise Unavailable(f"the open ledger of {self._ledger.name} changes too often")

    def _append_to(self, entries: tuple[Append, ...], ledger_id: int | None) -> Awaitable[tuple[Appended, ...]]:
        """Append entries to the ledger to which their branch was admitted."""
        first = entries[0]
        if first.branch is None or self._appending is None:
            return self._append(entries, ledger_id)
        return self._appending.append(first.branch, first.principal, entries)

    async def _append_rest(self, entries: tuple[Append, ...], ledger_id: int | None, done: dict[int, Appended]) -> None:
        """Append the entries that are not ``done``; those that are done stay so if this raises."""
        rest = _left(entries, done)
        # A replacement is appended after the other entries of its call. If the first entry was sent before, others
        # were, too. Then each entry is completed before the next one is sent, to keep their order.
        step = 1 if len(rest) > 1 and await self._was_sent(rest[0][1]) else max(1, len(rest))
        for start in range(0, len(rest), step):
            some = rest[start : start + step]
            asked_ms = self._retention.monotonic_ms()
            furthest = self._furthest
            answers = await self._append_to(tuple([entry for _, entry in some]), ledger_id)
            self._require_later(answers, furthest)
            done.update({at: answer for (at, _), answer in zip(some, answers, strict=True) if not answer.duplicate})
            for (at, entry), answer in zip(some, answers, strict=True):
                if answer.duplicate:
                    done[at] = await self._judge(entry, answer, ledger_id, asked_ms)

    def _require_later(self, answers: tuple[Appended, ...], furthest: Position) -> None:
        """
        Refuse entries that were appended at or before ``furthest``, where this process had appended before.

        The ledger store lost its end meanwhile, as in a failover to a standby that lagged behind. Subscriptions may
        have acknowledged these positions, so the entries would never be delivered.

        :raises StoreMismatch: the ledger store lost its end; the entries are stored, and must not be confirmed.
        """
        for answer in answers:
            if not answer.duplicate:
                if answer.position <= furthest:
                    raise lost_end(f"this process has appended {furthest}", self._ledger.name, answer.position)
                self._furthest = max(self._furthest, answer.position)

    async def _was_sent(self, entry: Append) -> bool:
        """Return whether an entry has an earlier copy."""
        if entry.sequence is None:
            return False
        return await self._ledger.find_sequence(entry.sequence.producer, entry.sequence.first) is not None

    async def _judge(self, entry: Append, answer: Appended, ledger_id: int | None, asked_ms: int) -> Appended:
        """
        Confirm an entry by its earlier copy, or append it in place of a copy that does not count.

        A copy in the same branch counts if this entry does; a copy outside transactions counts. Any other copy counts
        if its own branch does, which is not known while that branch is open. The copy's abort record may have been
        deleted since the ledger was asked for the copy, at ``asked_ms``. Then the ledger is asked again: it forgets an
        aborted copy before the record is deleted.
        """
        for _ in range(_REPLACEMENTS_MAX):
            if not answer.duplicate or answer.branch is None or answer.branch == entry.branch:
                return answer
            outcome = await self._resolve(answer.branch, answer.position)
            if outcome is Visibility.COMMITTED and not self._retention.is_over(asked_ms):
                return answer
            if outcome is Visibility.OPEN:
                raise TransactionConflict(
                    None if entry.branch is None else entry.branch.txn_id,
                    f"the same sequence of the producer was sent in {answer.branch.txn_id}, which is open",
                    answer.branch.txn_id,
                )
            again = (
                entry if outcome is Visibility.COMMITTED else msgspec.structs.replace(entry, replaces=answer.position)
            )
            asked_ms = self._retention.monotonic_ms()
            (answer,) = await self._append_to((again,), ledger_id)
        if not answer.duplicate:
            return answer
        raise TransactionConflict(
            None if entry.branch is None else entry.branch.txn_id,
            "its sequences were sent before in batches of other sizes that were aborted; send them one by one",
        )


def _left(entries: tuple[Append, ...], done: dict[int, Appended]) -> list[tuple[int, Append]]:
    """Return the entries that are not ``done``, with their numbers."""
    return [(at, entry) for at, entry in enumerate(entries) if at not in done]


def _in_order(done: dict[int, Appended]) -> tuple[Appended, ...]:
    return tuple([done[at] for at in sorted(done)])
