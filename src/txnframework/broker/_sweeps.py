"""The timer that aborts what is overdue and forgets what is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

from txnframework.broker._waiting import first_of
from txnframework.config import TransactionsSection
from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model.transactions import Swept

S = TypeVar("S")
BUSY_DELAY_MS = 20
"""The wait before a sweep goes on that left work behind, so that it does not spin on what cannot be done now."""


class Sweeps:
    """
    Runs ``expire`` and ``collect`` of this host's coordinators, and looks for transactions whose process is gone: when
    a deadline is due, when a session ends, and at an interval.

    Any number of processes may sweep the same transactions; each decision is a compare-and-set. A deadline that
    another process set is found at the interval, if that process is gone, and in time if it is not.
    """

    def __init__(
        self,
        coordinators: Callable[[], Iterable[ITransactionCoordinator]],
        environment: Environment,
        transactions: TransactionsSection,
        orphans: Callable[[ITransactionCoordinator], Awaitable[None]],
    ) -> None:
        self._coordinators = coordinators
        self._environment = environment
        self._transactions = transactions
        self._orphans = orphans
        self._earliest_ms: int | None = None
        self._sooner = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; once is enough."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    def wake_by(self, deadline_ms: int) -> None:
        """A transaction is due at ``deadline_ms``: sweep then, if not before."""
        due_ms = deadline_ms + self._transactions.max_clock_skew_ms
        if self._earliest_ms is None or due_ms < self._earliest_ms:
            self._earliest_ms = due_ms
            self._sooner.set()

    def wake(self) -> None:
        """There is something to do now."""
        self._earliest_ms = self._environment.now_ms()
        self._sooner.set()

    async def stop(self) -> None:
        """Stop; a sweep under way is given up, which is safe at any point."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def sweep(self) -> int | None:
        """
        Sweep once; return when the next sweep has work, None if no coordinator knows.

        A step that fails does not keep the others from being tried: what is in one's way may not be in theirs. An
        error of the framework passes, or comes again; any other exception is a defect, and the loop's exception
        handler is told.
        """
        next_ms: int | None = None
        for coordinator in tuple(self._coordinators()):
            await self._try(partial(self._orphans, coordinator))
            now_ms = self._environment.now_ms()
            for step in (coordinator.expire, coordinator.collect):
                swept = await self._try(partial(step, now_ms))
                if swept is not None:
                    next_ms = _earlier(next_ms, _next_of(swept, now_ms))
        return next_ms

    async def _try(self, step: Callable[[], Awaitable[S]]) -> S | None:
        try:
            return await step()
        except TxnFrameworkError:
            return None  # the store is away or something is in the way; the interval brings the next attempt
        except Exception as error:
            report = {"message": "a sweep failed; the next one tries again", "exception": error}
            asyncio.get_running_loop().call_exception_handler(report)
            return None

    async def _run(self) -> None:
        while True:
            self._earliest_ms = None
            next_ms = await self.sweep()
            now_ms = self._environment.now_ms()
            latest_ms = now_ms + self._transactions.sweep_interval_ms
            # What was begun while the sweep ran may be due before what the sweep found. Something that is due and
            # cannot be done yet must not make this spin.
            self._earliest_ms = max(
                now_ms + BUSY_DELAY_MS, min(latest_ms, next_ms or latest_ms, self._earliest_ms or latest_ms)
            )
            await self._sleep()

    async def _sleep(self) -> None:
        """Return at ``_earliest_ms``, which may come nearer while this waits."""
        while self._earliest_ms is not None and self._environment.now_ms() < self._earliest_ms:
            self._sooner.clear()
            await first_of(self._environment.sleep_until(self._earliest_ms), self._sooner.wait())


def _next_of(swept: Swept, now_ms: int) -> int | None:
    """When a sweep of this kind has work again."""
    if swept.left and swept.done:
        return now_ms + BUSY_DELAY_MS
    return swept.next_ms


def _earlier(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
