"""
Steps without an intent: waiting calls share a statement, which is one transaction.

The statement writes all of its steps or nothing. If a part is refused, which is rare, it names every refused record,
range or ledger. A refused record answers its call, because no other call of the statement touches the record. Of the
calls of a ledger that refused, those that cannot be stored are answered. All others are sent again. So each call is all
or nothing by itself, and no call fails because of another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

from txnframework.errors import Conflict, LedgerNotFound, LedgerSealed, OutcomeUnknown, Unavailable
from txnframework.model import Append, Applied, Delete, Put, Step
from txnframework.runtime.call_groups import copy_error
from txnframework_sql._options import LedgerOptions
from txnframework_sql.postgresql._call_groups import CallGroups, LockWaits
from txnframework_sql.postgresql._connection import Row
from txnframework_sql.postgresql._executor import PostgresqlExecutor
from txnframework_sql.postgresql._schema import APPLY_STEPS
from txnframework_sql.postgresql._single_writes import SinglePuts, delete_statement
from txnframework_sql.postgresql._step_columns import (
    Answer,
    GroupableStep,
    StepGroup,
    change_of,
    require_storable,
    steps_together,
)
from txnframework_sql.steps import ledgers
from txnframework_sql.steps.appends import is_full
from txnframework_sql.steps.ledger_references import ledger_of
from txnframework_sql.steps.ledgers import LedgerRef
from txnframework_sql.steps.statements import Change, Steps

# How long a statement waits for a lock. Afterwards each of its calls gets a statement of its own, which at first waits
# for a shorter time. So the others do not wait for an application that holds the lock of a record, and neither do the
# statements behind it.
_LOCK_WAIT_MS = 250
_ATTEMPT_LOCK_WAIT_MS = 20
# How many statements in a row may answer no call, because ledgers were full.
_IDLE_MAX = 10
# One statement is executed while the next is prepared. More of them would wait for each other's commits.
_UNDER_WAY = 2
# If fewer calls wait, they share one statement. Of more, the server executes one half while this process prepares the
# other half. In one statement, server and process would always wait for each other.
_SHARE_MIN = 16


class StepOfRows(Protocol):
    """A transaction of an application, of which a step becomes the last part."""

    async def step(self, step: Step, columns: Sequence[object]) -> Sequence[Any]:
        """Call ``apply_steps`` with these arguments behind its own; return its answer."""

    def changed(self, changes: tuple[Change, ...]) -> None:
        """Report these changes after the COMMIT."""

    async def rollback(self) -> None:
        """Roll back; may be repeated."""


class StepCalls:
    """
    The steps of one store.

    :param is_of_ledgers: the steps have appends. Their callers are balanced: see ``CallGroups``.
    """

    def __init__(self, executor: PostgresqlExecutor, options: LedgerOptions, *, is_of_ledgers: bool) -> None:
        self._executor = executor
        self._pool = executor.pool
        self._options = options
        self._limits = (options.ledger_entries_max, options.ledger_bytes_max)
        # No longer than the options allow: it must not be the longer wait of the two.
        self._lock_wait_ms = min(_LOCK_WAIT_MS, options.lock_timeout_ms)
        self._single_puts = SinglePuts(self._lock_wait_ms)
        self._calls: CallGroups[GroupableStep, Applied] = CallGroups(
            self._perform_first,
            lock=LockWaits(partial(self._perform, _ATTEMPT_LOCK_WAIT_MS), partial(self._perform, 0)),
            queue_max=options.queue_max,
            group_max=options.group_max,
            under_way_max=_UNDER_WAY,
            share_min=_SHARE_MIN,
            take=lambda calls: steps_together(calls, options.group_bytes_max),
            is_balanced=is_of_ledgers,
            may_be_alone=True,
        )

    async def apply(self, step: Step, now_ms: int = 0) -> Applied:
        """Make a valid step without an intent; see IMetadataStore."""
        self._require_valid(step)
        return await self._calls.submit(GroupableStep.of(step, now_ms))

    async def apply_with(self, rows: StepOfRows, step: Step, now_ms: int) -> Applied:
        """As ``apply``, in a transaction of an application, which the caller commits."""
        self._require_valid(step)
        group = StepGroup([step])
        # Without a limit of its own: every other holder of one of these locks commits, or is ended by the server.
        row = await rows.step(step, group.columns(0, now_ms, self._limits))
        answers, changes = group.answers(row)
        rows.changed(tuple(changes))
        if refusing := group.refusing(row):
            await rows.rollback()  # it holds the locks of the ledgers
            await self._examine(refusing, (step,), answers)
        (answer,) = answers
        if answer is None:
            raise Conflict(f"{self._executor.shown_url}: a ledger of a step was full, and a new one is open; try again")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _require_valid(self, step: Step) -> None:
        self._executor.require_open()
        require_storable(step, self._executor.shown_url)

    async def close(self) -> None:
        """Wait for the running calls, which return their results normally; idempotent."""
        await self._calls.close()

    async def _perform_first(self, calls: Sequence[GroupableStep]) -> Sequence[Answer]:
        if len(calls) == 1 and (applied := await self._apply_single(calls[0].step)) is not None:
            return [applied]
        return await self._perform(self._lock_wait_ms, calls)

    async def _apply_single(self, step: Step) -> Applied | None:
        """Make the step if it is a single simple write whose expectation is met; None: nothing was changed."""
        if not step.is_of_records or step.checks or len(step.puts) + len(step.deletes) != 1:
            return None
        if step.deletes:
            return await self._delete_single(step.deletes[0])
        put = step.puts[0]
        single = self._single_puts.statement(put) if isinstance(put, Put) else None
        if single is None:
            return None
        text, arguments = single.text, single.arguments
        rows = await self._pool.run(lambda connection: connection.write(text, *arguments))
        if not rows:
            return None
        record, change = self._single_puts.written(single, rows[0][0])
        self._executor.changed((change,))
        return Applied((record,))

    async def _delete_single(self, part: Delete) -> Applied | None:
        single = delete_statement(part, self._lock_wait_ms)
        if single is None:
            return None
        text, arguments = single
        rows = await self._pool.run(lambda connection: connection.write(text, *arguments))
        if not rows:
            return None
        self._executor.changed((change_of(part, rows[0][0]),))
        return Applied()

    async def _perform(self, lock_wait_ms: int, calls: Sequence[GroupableStep]) -> list[Answer]:
        """Send statements until all calls are answered; only the last one writes."""
        answers: list[Answer | None] = [None] * len(calls)
        idle = 0
        while idle < _IDLE_MAX and (left := [number for number, answer in enumerate(answers) if answer is None]):
            group = StepGroup([calls[number].step for number in left])
            try:
                row = await self._send(lock_wait_ms, max(calls[number].now_ms for number in left), group)
            except OutcomeUnknown as error:
                self._executor.changed(tuple(group.possible_changes()))
                for number in left:
                    answers[number] = copy_error(error, error.__cause__)
                break
            found, changes = group.answers(row)
            self._executor.changed(tuple(changes))
            for number, answer in zip(left, found, strict=True):
                answers[number] = answer
            idle = idle + 1 if all(answer is None for answer in found) else 0
            if refusing := group.refusing(row):
                await self._examine(refusing, [call.step for call in calls], answers)
        unanswered = f"{self._executor.shown_url}: the ledgers of a step are filled by other writers; try again"
        return [Unavailable(unanswered) if answer is None else answer for answer in answers]

    async def _send(self, lock_wait_ms: int, now_ms: int, group: StepGroup) -> Row:
        arguments = (None, None, *group.columns(lock_wait_ms, now_ms, self._limits))
        async with self._pool.append_slots if group.has_appends else nullcontext():
            rows = await self._pool.run(lambda connection: connection.write(APPLY_STEPS.call, *arguments))
        return rows[0]

    async def _examine(self, refusing: set[int], steps: Sequence[Step], answers: list[Answer | None]) -> None:
        """Answer the calls that a ledger refuses for good, and roll the full ledgers."""
        uses: dict[LedgerRef, list[tuple[int, Sequence[Append]]]] = {}
        for number, (step, answer) in enumerate(zip(steps, answers, strict=True)):
            for one in step.appends if answer is None else ():
                managed = ledger_of(one.ledger)
                if managed.id in refusing:
                    uses.setdefault(managed, []).append((number, one.entries))
        ordered = sorted(uses.items(), key=lambda item: item[0].id)
        for number, error in (await self._executor.write(lambda: self._find_refusals(ordered))).items():
            answers[number] = error

    def _find_refusals(
        self, uses: Iterable[tuple[LedgerRef, Sequence[tuple[int, Sequence[Append]]]]]
    ) -> Steps[dict[int, Exception]]:
        """
        Return why ledgers refuse entries, by the number of their call; roll each that is full.

        ``uses``: ledgers in the order of their ids, each with numbers of calls and their entries. Calls that roll a
        ledger and are then refused, or are lost in a crash, leave an empty ledger behind.
        """
        refusals: dict[int, Exception] = {}
        full: list[LedgerRef] = []
        for managed, calls in uses:
            try:
                end = yield from ledgers.locked_end_of(managed)
            except LedgerNotFound:
                refusals |= {number: LedgerNotFound(managed.name) for number, _ in calls}
                continue
            if end.is_sealed:
                refusals |= {number: LedgerSealed(managed.name) for number, _ in calls}
                continue
            count = end.entries + sum(len(entries) for _, entries in calls)
            size = end.bytes + sum(len(entry.data) for _, entries in calls for entry in entries)
            if end.entries and is_full(count, size, self._options):
                full.append(managed)
        for managed in full:
            yield from ledgers.roll(managed)
        return refusals
