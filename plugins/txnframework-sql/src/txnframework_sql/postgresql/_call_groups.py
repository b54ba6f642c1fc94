"""Calls of one kind that share statements: as few statements as possible, each with one commit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from txnframework.errors import Closed, Corrupt, InvalidInput, TxnFrameworkError
from txnframework.runtime.call_groups import copy_error
from txnframework.runtime.tasks import start_task
from txnframework_sql.postgresql._errors import Locked

_APART_MAX = 2
_QUIET_TURNS = 3

C = TypeVar("C")
T = TypeVar("T")

Perform = Callable[[Sequence[C]], Awaitable[Sequence[T | Exception]]]


class _StillLocked(Exception):
    """The lock of a call is still held."""


@dataclass(frozen=True, slots=True)
class LockWaits(Generic[C, T]):
    """
    How a call is performed whose group was locked, apart from the others, which must not wait with it.

    ``attempt`` performs one call, and raises Locked after a shorter wait than that of the group. ``wait`` waits as long
    as the store allows.
    """

    attempt: Perform[C, T]
    wait: Perform[C, T]


@dataclass(slots=True, eq=False)
class _QueuedCall(Generic[C, T]):
    call: C
    future: asyncio.Future[T]


class CallGroups(Generic[C, T]):
    """
    Performs calls of one turn of the event loop together, and those that arrive while enough groups run.

    Callers that were answered together continue together. So nearly every statement serves all of them or, if there are
    many, at least ``share_min`` of them.

    :param perform: returns for each call its result or its own error, and raises an error that applies to all calls.
    :param lock: how calls go on after ``perform`` has raised Locked; None: they fail.
    :param take: returns how many calls from the front may go together, at least one; calls are started in their order.
    :param is_balanced: start no further group while a running one has more than twice as many calls as wait, and start
        none while calls still arrive in each few turns of the event loop. Otherwise a few callers, who are answered
        sooner, go on with many small groups beside a large one, which they delay.
    :param may_be_alone: if the last call met no other, a call runs immediately, in its caller's own task. That saves
        the turns of the event loop to another task and back. A cancelled caller then cancels the statement. As soon as
        two calls meet, calls are grouped again.
    """

    def __init__(
        self,
        perform: Perform[C, T],
        *,
        lock: LockWaits[C, T] | None = None,
        queue_max: int,
        group_max: int,
        under_way_max: int,
        share_min: int | None = None,
        take: Callable[[Iterable[C]], int] | None = None,
        is_balanced: bool = False,
        may_be_alone: bool = False,
    ) -> None:
        self._perform = perform
        self._lock = lock
        self._slots = asyncio.Semaphore(queue_max)
        self._group_max = group_max
        self._under_way_max = under_way_max
        self._share_min = group_max if share_min is None else share_min
        self._take = take
        self._is_balanced = is_balanced
        self._calls_under_way = 0
        self._may_be_alone = may_be_alone
        # The last call found no other call running, and none has arrived since.
        self._was_alone = False
        self._under_way = 0
        # Calls that were separated from a group, and the number of those that are performed at the same time. Each has
        # a connection of its own, and some connections must be left for other calls.
        self._apart = 0
        self._attempts_apart, self._slots_apart = (asyncio.Semaphore(_APART_MAX) for _ in range(2))
        # A task was created that has not yet read the waiting calls.
        self._is_starting = False
        self._waiting: deque[_QueuedCall[C, T]] = deque()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether no call is running."""
        return self._is_idle.is_set()

    async def submit(self, call: C) -> T:
        """Perform a call, perhaps together with others."""
        was_alone, self._was_alone = self._was_alone, not self._under_way
        if self._may_be_alone and was_alone and self._was_alone:
            return await self._perform_alone(call)
        async with self._slots:
            self._require_open()
            queued: _QueuedCall[C, T] = _QueuedCall(call, asyncio.get_running_loop().create_future())
            self._waiting.append(queued)
            self._start()
            return await queued.future

    async def close(self) -> None:
        """Wait for all earlier calls; idempotent."""
        self._is_closed = True
        await self._is_idle.wait()

    def _require_open(self) -> None:
        if self._is_closed:
            raise Closed("the store was closed")

    def _start(self) -> None:
        if not self._is_starting and self._under_way < self._under_way_max and self._is_worth_a_group():
            self._is_starting = True
            self._begin()
            # A separate task, so that a cancelled caller does not cancel the calls of others.
            task = start_task(self._perform_waiting(), name="txnframework-sql statements")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _is_worth_a_group(self) -> bool:
        return not self._is_balanced or 2 * len(self._waiting) >= self._calls_under_way

    def _begin(self) -> None:
        self._under_way += 1
        self._is_idle.clear()

    def _end(self) -> None:
        self._under_way -= 1
        if self._waiting:
            self._start()
        self._become_idle()

    def _become_idle(self) -> None:
        if not self._under_way and not self._apart:
            self._is_idle.set()

    async def _perform_alone(self, call: C) -> T:
        self._require_open()
        self._begin()
        try:
            (answer,) = await self._perform((call,))
        except Locked:
            if self._lock is None:
                raise
            queued: _QueuedCall[C, T] = _QueuedCall(call, asyncio.get_running_loop().create_future())
            self._answer_apart(queued, self._lock)
            return await queued.future
        finally:
            self._end()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _perform_waiting(self) -> None:
        try:
            if self._is_balanced:
                await self._arrivals()
            self._is_starting = False
            while self._waiting and self._is_worth_a_group():
                taken = [self._waiting.popleft() for _ in range(self._share())]
                self._calls_under_way += len(taken)
                try:
                    if self._waiting:
                        self._start()
                    if group := [queued for queued in taken if not queued.future.done()]:
                        await self._answer(group)
                finally:
                    self._calls_under_way -= len(taken)
                if self._is_balanced:
                    await self._arrivals()
        finally:
            self._end()

    async def _arrivals(self) -> None:
        """Return when no call has arrived for some turns; callers that were answered together come back in a few."""
        quiet = 0
        while quiet < _QUIET_TURNS and len(self._waiting) < self._group_max:
            before = len(self._waiting)
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == before else 0

    def _share(self) -> int:
        """
        Return the number of calls for one statement.

        Many calls are divided among the statements that may run.
        """
        statements = self._under_way_max - self._under_way + 1
        share = -(-len(self._waiting) // statements)
        share = min(self._group_max, share if share >= self._share_min else len(self._waiting))
        return share if self._take is None else min(share, self._take(queued.call for queued in self._waiting))

    def _answer_apart(self, queued: _QueuedCall[C, T], lock: LockWaits[C, T]) -> None:
        """Perform a call in a task of its own, which occupies none of the statements that may run."""
        self._apart += 1
        self._is_idle.clear()
        task = start_task(self._perform_apart(queued, lock), name="txnframework-sql statement")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _perform_apart(self, queued: _QueuedCall[C, T], lock: LockWaits[C, T]) -> None:
        try:
            async with self._attempts_apart:
                is_locked = await self._is_locked(queued, lock)
            if is_locked:
                async with self._slots_apart:
                    await self._answer((queued,), lock.wait)
        finally:
            self._apart -= 1
            self._become_idle()

    async def _is_locked(self, queued: _QueuedCall[C, T], lock: LockWaits[C, T]) -> bool:
        """Try to answer a call without a long wait; return whether its lock is still held."""
        try:
            await self._answer((queued,), lock.attempt)
        except _StillLocked:
            return True
        return False

    async def _answer(self, group: Sequence[_QueuedCall[C, T]], perform: Perform[C, T] | None = None) -> None:
        answers: Sequence[T | Exception]
        try:
            answers = await (perform or self._perform)([queued.call for queued in group])
        except (InvalidInput, Corrupt) as error:
            # An invalid value of one call must not fail the others.
            if len(group) > 1:
                for queued in group:
                    await self._answer((queued,))
                return
            answers = [error]
        except Locked as error:
            if self._lock is not None and perform is self._lock.attempt:
                raise _StillLocked from error
            if self._lock is not None and perform is None:
                # One of them waits for a lock, perhaps of a stopped process: the others must not wait with it, and the
                # calls behind them must not wait for their statement.
                for queued in group:
                    self._answer_apart(queued, self._lock)
                return
            answers = [copy_error(error, error.__cause__) for _ in group]
        except TxnFrameworkError as error:
            answers = [copy_error(error, error.__cause__) for _ in group]
        except Exception as error:  # The callers receive it; the calls behind them continue.
            answers = [error for _ in group]
        except BaseException:
            # The event loop is ending: no caller may wait forever.
            for queued in group:
                queued.future.cancel()
            raise
        for queued, answer in zip(group, answers, strict=True):
            if queued.future.done():
                continue
            if isinstance(answer, Exception):
                queued.future.set_exception(answer)
            else:
                queued.future.set_result(answer)
