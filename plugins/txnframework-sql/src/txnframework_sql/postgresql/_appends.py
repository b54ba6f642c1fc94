"""Appends to managed ledgers: waiting calls are sent together, as one statement that is one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from txnframework.errors import (
    Closed,
    InvalidInput,
    LedgerClosed,
    LedgerNotFound,
    LedgerSealed,
    OutcomeUnknown,
    TxnFrameworkError,
)
from txnframework.runtime.call_groups import copy_error
from txnframework.runtime.tasks import start_task
from txnframework_sql._database import EntrySteps
from txnframework_sql._options import LedgerOptions
from txnframework_sql.postgresql._append_columns import (
    AppendCall,
    AppendGroup,
    LedgerGroup,
    PendingCall,
    SharedAppend,
    group_size,
)
from txnframework_sql.postgresql._executor import PostgresqlExecutor
from txnframework_sql.postgresql._schema import APPEND_ENTRIES, APPEND_TO_LEDGERS
from txnframework_sql.steps.ledgers import LedgerRef
from txnframework_sql.steps.statements import LedgerChange

# How often a producer's old copies are looked for while it fills its window once: each search costs as much as an
# append.
_LOOKS_A_WINDOW = 16
# One statement for many ledgers is executed while the next is prepared. More of them would wait for each other's
# commits.
_SHARED_MAX = 2
# If fewer ledgers wait, they share one statement.
_SHARE_MIN = 16


class Appends:
    """
    The appends of one store to its ledgers.

    Each managed ledger has one group in progress, and calls made meanwhile form its next group. Calls are therefore
    appended in the order in which they were made. A caller that sends without waiting costs no more statements than a
    caller that waits.

    The groups of many ledgers share a statement, which is one round trip and one commit. It waits for no ledger's lock.
    It leaves out the ledgers that are locked, or to which more than an addition of rows is to be done. Each of those is
    sent apart, as is a group that no other ledger's group accompanies.

    Write operations are in the same statement as their entries. It waits for no header. It leaves out the ledgers of
    those operations whose headers are locked or not as expected. The other calls for these ledgers are then sent apart.
    """

    def __init__(self, executor: PostgresqlExecutor, steps: EntrySteps, options: LedgerOptions) -> None:
        self._executor = executor
        self._pool = executor.pool
        self._steps = steps
        self._options = options
        self._slots = asyncio.Semaphore(options.queue_max)
        # The waiting calls by managed ledger id: of ledgers without a group in progress, and behind such a group.
        self._ready: dict[int, tuple[LedgerRef, list[PendingCall]]] = {}
        self._behind: dict[int, tuple[LedgerRef, list[PendingCall]]] = {}
        # A task was created that has not yet taken its groups.
        self._is_starting = False
        self._shared = 0
        # Some connections are left to shared statements while others wait for the locks of ledgers.
        self._slots_apart = asyncio.Semaphore(max(1, options.connections_max - 1 - _SHARED_MAX))
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def append(self, managed: LedgerRef, call: AppendCall) -> Any:
        """Append durably, in order, adjacent; see IManagedLedger, or IMetadataStore for a call with a step."""
        self._require_open()
        async with self._slots:
            self._require_open()
            one = PendingCall(call, asyncio.get_running_loop().create_future())
            waiting = self._behind.get(managed.id) or self._ready.setdefault(managed.id, (managed, []))
            waiting[1].append(one)
            self._start()
            return await one.future

    async def close(self) -> None:
        """
        Wait for the running appends, which return their results normally.

        Idempotent.
        """
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def _require_open(self) -> None:
        self._executor.require_open()
        if self._is_closed:
            raise Closed(f"the store {self._executor.shown_url} was closed")

    def _start(self) -> None:
        if self._ready and not self._is_starting and self._shared < _SHARED_MAX:
            self._is_starting = True
            # A separate task, so that a cancelled caller does not cancel the calls of others.
            self._run(self._perform_ready())

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = start_task(work, name="txnframework-sql appends")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _perform_ready(self) -> None:
        self._is_starting = False
        is_alone = not self._behind
        groups, apart = self._take()
        if is_alone and len(groups) == 1 and not apart and not self._ready:
            # It waits for the lock of its ledger at once.
            await self._perform_apart(groups[0])
            return
        for group in apart:
            self._run(self._perform_apart(group))
        if groups:
            self._shared += 1
        self._start()
        if groups:
            await self._perform_shared(groups)

    async def _perform_shared(self, groups: Sequence[LedgerGroup]) -> None:
        left: Sequence[LedgerGroup] = ()
        try:
            async with self._pool.append_slots:
                left = await self._send_shared(groups)
        finally:
            left_ids = {group.managed.id for group in left}
            for group in left:
                self._run(self._perform_apart(group))
            self._shared -= 1
            self._finish(group for group in groups if group.managed.id not in left_ids)

    async def _perform_apart(self, group: LedgerGroup) -> None:
        try:
            async with self._slots_apart, self._pool.append_slots:
                if any(one.call.step is not None for one in group.pending):
                    await self._send_intended(group)
                else:
                    await self._send_until_answered(group.managed, group.pending)
        finally:
            self._finish((group,))

    async def _perform_alone(self, managed: LedgerRef, one: PendingCall) -> None:
        try:
            async with self._slots_apart, self._pool.append_slots:
                await self._send_alone(managed, one)
        finally:
            _resolve(one)

    def _take(self) -> tuple[list[LedgerGroup], list[LedgerGroup]]:
        """Return the groups of one statement, and those that must be sent apart; their ledgers are in progress then."""
        options = self._options
        share = -(-len(self._ready) // (_SHARED_MAX - self._shared))
        share = share if share >= _SHARE_MIN else len(self._ready)
        groups: list[LedgerGroup] = []
        apart: list[LedgerGroup] = []
        calls_left, bytes_left = options.group_max, options.group_bytes_max
        while self._ready and len(groups) < share and calls_left > 0 and bytes_left > 0:
            managed_id = next(iter(self._ready))
            managed, waiting = self._ready.pop(managed_id)
            waiting = [one for one in waiting if not one.future.done()]
            if not waiting:
                continue
            size = group_size((one.call for one in waiting), calls_left, bytes_left)
            group = LedgerGroup(managed, waiting[: size or 1])
            self._behind[managed_id] = (managed, waiting[size or 1 :])
            if not size:
                apart.append(group)
                continue
            groups.append(group)
            calls_left -= size
            bytes_left -= sum(len(entry.data) for one in group.pending for entry in one.call.entries)
        return groups, apart

    def _finish(self, groups: Iterable[LedgerGroup]) -> None:
        """Answer the callers, and let the next groups of these ledgers begin."""
        for managed, pending in groups:
            for one in pending:
                _resolve(one)
            waiting = self._behind.pop(managed.id)
            if waiting[1]:
                self._ready[managed.id] = waiting
        self._start()

    async def _send_shared(self, groups: Sequence[LedgerGroup], waits: bool = False) -> Sequence[LedgerGroup]:
        """
        Send groups as one statement; return those that must be sent apart. All others are answered.

        :param waits: wait for the lock of the only group's ledger.
        """
        shared = SharedAppend(groups)
        ledgers, others = shared.columns()
        changes = tuple(LedgerChange(group.managed.id) for group in groups)
        arguments = (
            *ledgers[:2],
            shared.now_ms,
            *self._limits(),
            *ledgers[2:],
            *others,
            waits,
        )
        try:
            rows = await self._pool.run(lambda connection: connection.write(APPEND_TO_LEDGERS.call, *arguments))
        except InvalidInput:
            # Nothing was stored, because the database rejected a value. Sending the groups apart shows which one.
            return groups
        except Exception as error:  # The callers receive it.
            if isinstance(error, OutcomeUnknown):
                self._executor.changed(changes)
            _answer_all((one for group in groups for one in group.pending), error)
            return ()
        left, done = shared.record(rows[0])
        self._executor.changed(tuple(done))
        return left

    async def _send_intended(self, group: LedgerGroup) -> None:
        """Send calls of which some have write operations until all are answered, or wait for a header by themselves."""
        managed, pending = group
        # A single call may have entries that no statement for several calls takes.
        by_statement = bool(group_size((pending[0].call,), 1, self._options.group_bytes_max))
        while by_statement and (left := [one for one in pending if one.answer is None]):
            if not await self._send_shared((LedgerGroup(managed, left),), waits=True):
                return
            for one in left:
                if one.must_wait:
                    # The others do not wait with it. Its branch has no other call meanwhile.
                    pending.remove(one)
                    self._run(self._perform_alone(managed, one))
            by_statement = any(one.must_wait or one.answer is not None for one in left)
        for one in pending:
            if one.answer is None:
                await self._send_alone(managed, one)

    def _limits(self) -> tuple[int, ...]:
        window = self._options.deduplication_window_sequences
        entries_max, bytes_max = self._options.ledger_entries_max, self._options.ledger_bytes_max
        return entries_max, bytes_max, window, forget_every(self._options)

    async def _send_until_answered(self, managed: LedgerRef, pending: Sequence[PendingCall]) -> None:
        """Send calls as one statement, and resend the unanswered ones until all are answered."""
        if len(pending) == 1 and not group_size([pending[0].call], 1, self._options.group_bytes_max):
            await self._send_alone(managed, pending[0])
            return
        try:
            while pending := [one for one in pending if one.answer is None]:
                await self._send_group(managed, pending)
        except Exception as error:  # The callers receive it.
            if isinstance(error, InvalidInput) and len(pending) > 1:
                # Nothing was stored, because the database rejected a value. Sending the calls one by one shows which
                # call holds it.
                for one in pending:
                    await self._send_until_answered(managed, [one])
            else:
                _answer_all(pending, error)

    async def _send_group(self, managed: LedgerRef, pending: Sequence[PendingCall]) -> None:
        """Send calls as one statement; at least one call is answered then, and the others are to be sent again."""
        group = AppendGroup(pending)
        arguments = (
            managed.id,
            group.ledger_id,
            group.now_ms,
            *self._limits(),
            *group.columns(),
        )
        try:
            rows = await self._pool.run(lambda connection: connection.write(APPEND_ENTRIES.call, *arguments))
        except OutcomeUnknown:
            self._executor.changed((LedgerChange(managed.id),))
            raise
        match rows[0]["answer"]:
            case "appended":
                self._executor.changed((LedgerChange(managed.id),))
                group.record_appended(rows[0])
            case "copies":
                for one in group.record_copies(rows):
                    await self._send_alone(managed, one)
            case "closed":
                for one in pending:
                    if one.call.ledger_id is not None:
                        one.answer = LedgerClosed(managed.name, group.ledger_id or 0)
            case "sealed":
                for one in pending:
                    one.answer = LedgerSealed(managed.name)
            case _:
                for one in pending:
                    one.answer = LedgerNotFound(managed.name)

    async def _send_alone(self, managed: LedgerRef, one: PendingCall) -> None:
        """Append entry by entry, in a transaction, for calls that replace a copy or have sequences out of order."""
        call = one.call
        try:
            if call.step is None:
                one.answer = await self._steps.append(managed, call.entries, call.ledger_id, call.now_ms)
            else:
                one.answer = await self._steps.append_intended(managed, call.step, call.now_ms)
        except Exception as error:  # The caller receives it.
            one.answer = error


def forget_every(options: LedgerOptions) -> int:
    """Return after how many of its sequences a producer's old copies are looked for."""
    return max(1, options.deduplication_window_sequences // _LOOKS_A_WINDOW)


def _resolve(one: PendingCall) -> None:
    """Answer a caller."""
    if one.future.done():
        return
    if one.answer is None:
        # The event loop is ending: no caller may wait forever.
        one.future.cancel()
    elif isinstance(one.answer, Exception):
        one.future.set_exception(one.answer)
    else:
        one.future.set_result(one.answer)


def _answer_all(pending: Iterable[PendingCall], error: Exception) -> None:
    """Answer calls that were one statement, whose outcome applies to each of them."""
    for one in pending:
        one.answer = copy_error(error, error.__cause__) if isinstance(error, TxnFrameworkError) else error
