"""Timers and sweeps: they abort overdue and orphaned transactions and delete settled ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from txnframework.broker.coordinators.coordinators import ServedCoordinator
from txnframework.config import TransactionsSection
from txnframework.environment import Environment
from txnframework.errors import Closed, TxnFrameworkError
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model.transactions import SweepResult, Transaction
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.tasks import RESTART_DELAY_MS, BackgroundTask, first_completed

_LOG = logging.getLogger(__name__)
DELAY_MS = 1_000
DELAY_MS_MAX = 30_000
"""The longest wait before the first attempt, and after many failures."""
BUSY_DELAY_MS = 20
"""The wait before a sweep with work left continues, so that it does not spin on work that is blocked."""
WAKE_INTERVAL_MS = 500
"""The shortest time between sweeps for which there is no visible reason."""


async def open_with_retries(
    names: Iterable[str], open_one: Callable[[str], Awaitable[object]], environment: Environment
) -> None:
    """
    Open all coordinators, and retry those that cannot be opened.

    The first attempt is delayed, because a short-lived program has no time for it.
    """
    backoff = Backoff(environment, DELAY_MS, DELAY_MS_MAX)
    left, failures = list(names), 0
    while left:
        failures += 1
        await backoff.pause(failures)
        for name in tuple(left):
            try:
                await open_one(name)
            except Closed:
                return
            except TxnFrameworkError as error:
                if failures == 1:
                    _LOG.warning("coordinator %s cannot be opened for sweeps; retrying: %s", name, error)
            else:
                left.remove(name)


class Sweeps:
    """
    Runs ``expire`` and ``collect`` of the coordinators for which this host is elected, and aborts orphaned
    transactions.

    A sweep runs when a deadline is due, when a process ends, and at an interval. Any number of processes may sweep the
    same transactions: each decision is a compare-and-set. The timer of the process that set a deadline enforces it. If
    that process is gone, the next sweep enforces it immediately. ``overdue`` is called with each transaction that a
    sweep aborted at its deadline.
    """

    def __init__(
        self,
        coordinators: Callable[[], Iterable[ServedCoordinator]],
        environment: Environment,
        transactions: TransactionsSection,
        orphans: Callable[[ITransactionCoordinator], Awaitable[None]],
        overdue: Callable[[Transaction], None],
    ) -> None:
        self._coordinators = coordinators
        self._environment = environment
        self._transactions = transactions
        self._backoff = Backoff(environment, RESTART_DELAY_MS, RESTART_DELAY_MS)
        self._orphans = orphans
        self._overdue = overdue
        # The next sweep, and the begin of the last one, by the monotonic clock. None: there is, or was, none.
        self._next_ms: int | None = None
        self._began_ms: int | None = None
        self._sooner = asyncio.Event()
        self._work = BackgroundTask(self._run)
        # A coordinator is swept by one caller at a time: a requested sweep follows the running one.
        self._sweeping = asyncio.Lock()

    def start(self) -> None:
        """Start the sweeps; a second call does nothing."""
        self._work.start()

    def wake(self, unsure: bool = False) -> None:
        """
        Sweep immediately, because there may be work.

        :param unsure: there is probably none, so sweep not before ``WAKE_INTERVAL_MS`` after the last sweep began.
        """
        soonest_ms = self._environment.monotonic_ms()
        if unsure and self._began_ms is not None:
            soonest_ms = max(soonest_ms, self._began_ms + WAKE_INTERVAL_MS)
        self._next_ms = soonest_ms if self._next_ms is None else min(self._next_ms, soonest_ms)
        self._sooner.set()

    async def stop(self) -> None:
        """Stop; a running sweep is cancelled, which is safe at any point."""
        await self._work.stop()

    async def sweep(self) -> None:
        """Sweep once, whether this host is elected or not."""
        for served in tuple(self._coordinators()):
            await self._sweep(served.coordinator)

    async def _sweep(self, coordinator: ITransactionCoordinator) -> int | None:
        """
        Sweep once; return the time at which the next sweep has work, None if the coordinator does not know it.

        A failed step does not stop the other steps, because its cause may not affect them. An error of the framework is
        temporary, or it occurs again. Any other exception is a defect, and goes to the loop's exception handler.
        """

        async def orphans(_: int) -> SweepResult:
            await self._orphans(coordinator)
            return SweepResult(0, 0)

        next_ms: int | None = None
        async with self._sweeping:
            for step in (orphans, coordinator.expire, coordinator.collect):
                next_ms = _earlier(next_ms, await self._try(step))
        return next_ms

    async def _try(self, step: Callable[[int], Awaitable[SweepResult]]) -> int | None:
        """Run a step; return the time at which it has work again."""
        now_ms = self._environment.now_ms()
        try:
            swept = await step(now_ms)
            for one in swept.overdue:
                self._overdue(one)
            return _next_of(swept, now_ms)
        except TxnFrameworkError:
            # The store is unavailable or the step is blocked: a deadline must not wait for the interval because of it.
            return self._environment.now_ms() + self._backoff.delay_ms(1)
        except Exception as error:
            report = {"message": "a sweep failed; the next one tries again", "exception": error}
            asyncio.get_running_loop().call_exception_handler(report)
            return None

    async def _run(self) -> None:
        while True:
            self._next_ms = None
            next_ms: int | None = None
            for served in tuple(self._coordinators()):
                if served.election.won:
                    self._began_ms = self._environment.monotonic_ms()
                    next_ms = _earlier(next_ms, await self._sweep(served.coordinator))
            now_ms, wait_ms = self._environment.monotonic_ms(), self._transactions.sweep_interval_ms
            if next_ms is not None:
                wait_ms = min(wait_ms, next_ms - self._environment.now_ms())
            # A wake-up during the sweep may be due earlier than the work that the sweep found. Work that is due and
            # blocked must not cause a spin.
            if self._next_ms is not None:
                wait_ms = min(wait_ms, self._next_ms - now_ms)
            self._next_ms = now_ms + max(BUSY_DELAY_MS, wait_ms)
            await self._sleep()

    async def _sleep(self) -> None:
        """Wait until ``_next_ms``, which may become earlier during the wait."""
        while self._next_ms is not None and (left_ms := self._next_ms - self._environment.monotonic_ms()) > 0:
            self._sooner.clear()
            await first_completed(self._environment.sleep(left_ms), self._sooner.wait())


def _next_of(swept: SweepResult, now_ms: int) -> int | None:
    """Return the time at which a sweep of this kind has work again."""
    if swept.left and swept.done:
        return now_ms + BUSY_DELAY_MS
    return swept.next_ms


def _earlier(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
