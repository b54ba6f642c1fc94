"""Appending to managed ledgers: what waits for one is sent together, as one statement that is one transaction."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from txnframework.errors import (
    Closed,
    InvalidInput,
    LedgerClosed,
    LedgerNotFound,
    LedgerSealed,
    OutcomeUnknown,
    TxnFrameworkError,
)
from txnframework.model import Append, Appended
from txnframework_sql._entries import EntrySteps
from txnframework_sql._executor import Executor, copy_of
from txnframework_sql._options import LedgerOptions
from txnframework_sql.postgresql._append_groups import AppendGroup, Waiting, take_group
from txnframework_sql.postgresql._connections import Connections
from txnframework_sql.postgresql._functions import APPEND_ENTRIES
from txnframework_sql.postgresql._payloads import payloads
from txnframework_sql.steps.changes import Change, LedgerChange
from txnframework_sql.steps.ledgers import Managed

# Old copies of a producer are looked for so often while it fills its window once: each look costs as much as an append.
_LOOKS_A_WINDOW = 16


@dataclass(slots=True)
class _Line:
    """The calls that wait for one managed ledger, those that are sent, and the task that sends them."""

    managed: Managed
    waiting: deque[Waiting] = field(default_factory=deque)
    under_way: list[Waiting] = field(default_factory=list)
    sending: asyncio.Task[None] | None = None


class Appends:
    """
    The appends of one store to its ledgers.

    One group is under way to each managed ledger, and what comes meanwhile makes up the next: calls are appended in the
    order in which they were made, and whoever sends without waiting costs no more statements than whoever waits.
    """

    def __init__(
        self,
        connections: Connections,
        executor: Executor,
        steps: EntrySteps,
        options: LedgerOptions,
        tell: Callable[[tuple[Change, ...]], None],
    ) -> None:
        self._connections = connections
        self._executor = executor
        self._steps = steps
        self._options = options
        self._tell = tell
        self._room = asyncio.Semaphore(options.queue_max)
        self._lines: dict[int, _Line] = {}
        self._is_closed = False

    async def append(
        self, managed: Managed, entries: tuple[Append, ...], ledger_id: int | None, now_ms: int
    ) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent; see IManagedLedger."""
        self._require_open()
        async with self._room:
            self._require_open()
            call = Waiting(entries, ledger_id, now_ms, asyncio.get_running_loop().create_future())
            line = self._lines.setdefault(managed.id, _Line(managed))
            line.waiting.append(call)
            if line.sending is None:
                # A task of its own: a caller that is cancelled takes nobody with it.
                line.sending = asyncio.create_task(self._send(line), name=f"txnframework-sql appends {managed.name}")
            return await call.future

    async def close(self) -> None:
        """Wait for what is under way; each still gets its true answer; may be repeated."""
        self._is_closed = True
        sending = [line.sending for line in self._lines.values() if line.sending is not None]
        await asyncio.gather(*sending, return_exceptions=True)

    def _require_open(self) -> None:
        self._executor.require_open()
        if self._is_closed:
            raise Closed(f"the store {self._executor.shown_url} was closed")

    async def _send(self, line: _Line) -> None:
        """Send what waits until nothing does."""
        try:
            while line.waiting:
                async with self._connections.crowd:
                    await self._send_next(line)
        finally:
            # Nobody came in between: nothing is awaited from the look at the line to here.
            del self._lines[line.managed.id]
            for call in (*line.under_way, *line.waiting):
                call.future.cancel()

    async def _send_next(self, line: _Line) -> None:
        """Send the calls from the front of a line that can go together."""
        taken = take_group(line.waiting, self._options.group_max, self._options.group_bytes_max)
        line.under_way = [line.waiting.popleft() for _ in range(max(taken, 1))]
        if taken:
            await self._send_until_answered(line.managed, line.under_way)
        else:
            await self._send_alone(line.managed, line.under_way[0])
        line.under_way = []

    async def _send_until_answered(self, managed: Managed, calls: list[Waiting]) -> None:
        """Send calls as one, and again those that are left of them; whoever gave up before that is left out."""
        try:
            while calls := [call for call in calls if not call.future.done()]:
                await self._send_group(managed, calls)
        except TxnFrameworkError as error:
            if isinstance(error, InvalidInput) and len(calls) > 1:
                # Nothing was done, for a value that the database does not take: whose it is shows one by one.
                for call in calls:
                    await self._send_until_answered(managed, [call])
            else:
                # One statement, so what is known of it is known of each of them.
                _fail(calls, partial(copy_of, error, error.__cause__))
        except Exception as error:  # Whoever asked is told; the line goes on.
            told = error
            _fail(calls, lambda: told)

    async def _send_group(self, managed: Managed, calls: list[Waiting]) -> None:
        """Send calls as one; afterwards some are answered, at least one, and the others are to be sent again."""
        group = AppendGroup(calls)
        arguments = (
            managed.id,
            group.ledger_id,
            group.now_ms,
            self._options.ledger_entries_max,
            self._options.ledger_bytes_max,
            self._options.deduplication_window_sequences,
            max(1, self._options.deduplication_window_sequences // _LOOKS_A_WINDOW),
            *group.columns(),
            self._connections.channel,
            *payloads((LedgerChange(managed.id),)),
        )
        try:
            rows = await self._connections.run(lambda connection: connection.write(APPEND_ENTRIES.call, *arguments))
        except OutcomeUnknown:
            self._tell((LedgerChange(managed.id),))
            raise
        match rows[0]["answer"]:
            case "appended":
                self._tell((LedgerChange(managed.id),))
                group.appended(rows[0])
            case "copies":
                for call in group.found(rows):
                    await self._send_alone(managed, call)
            case "closed":
                named = [call for call in calls if call.ledger_id is not None]
                _fail(named, lambda: LedgerClosed(managed.name, group.ledger_id or 0))
            case "sealed":
                _fail(calls, lambda: LedgerSealed(managed.name))
            case _:
                _fail(calls, lambda: LedgerNotFound(managed.name))

    async def _send_alone(self, managed: Managed, call: Waiting) -> None:
        """Decide entry by entry, in a transaction: for calls that replace a copy, and the rare ones out of order."""
        try:
            call.answer(await self._steps.append(managed, call.entries, call.ledger_id, call.now_ms))
        except Exception as error:  # Whoever asked is told; the line goes on.
            told = error
            _fail([call], lambda: told)


def _fail(calls: Iterable[Waiting], error: Callable[[], BaseException]) -> None:
    """Tell those who still wait, each by an exception of its own."""
    for call in calls:
        if not call.future.done():
            call.future.set_exception(error())
