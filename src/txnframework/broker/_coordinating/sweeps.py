"""Aborting what is overdue or was left behind, and forgetting what is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from txnframework.broker._coordinating.coordinators import ServedCoordinator
from txnframework.config import TransactionsSection
from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model.transactions import Swept
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.tasks import RESTART_DELAY_MS, BackgroundTask, first_completed

BUSY_DELAY_MS = 20
"""The wait before a sweep goes on that left work behind, so that it does not spin on what cannot be done now."""


class Sweeps:
    """
    Runs ``expire`` and ``collect`` of the coordinators that this host is elected for, and looks for transactions whose
    process is gone: when a deadline is due, when a process ends, and at an interval.

    Any number of processes may sweep the same transactions; each decision is a compare-and-set. A deadline that
    another process set is kept by that process's own timer, and by the next sweep, at once, when the process is gone.
    """

    def __init__(
        self,
        coordinators: Callable[[], Iterable[ServedCoordinator]],
        environment: Environment,
        transactions: TransactionsSection,
        orphans: Callable[[ITransactionCoordinator], Awaitable[None]],
    ) -> None:
        self._coordinators = coordinators
        self._environment = environment
        self._transactions = transactions
        self._backoff = Backoff(environment, RESTART_DELAY_MS, RESTART_DELAY_MS)
        self._orphans = orphans
        self._next_ms: int | None = None
        self._sooner = asyncio.Event()
        self._work = BackgroundTask(self._run)
        # A coordinator is swept once at a time: what somebody asks for comes after what is under way.
        self._sweeping = asyncio.Lock()

    def start(self) -> None:
        """Begin; once is enough."""
        self._work.start()

    def wake(self) -> None:
        """There may be something to do now."""
        self._next_ms = self._environment.now_ms()
        self._sooner.set()

    async def stop(self) -> None:
        """Stop; a sweep under way is given up, which is safe at any point."""
        await self._work.stop()

    async def sweep(self) -> None:
        """Sweep once, elected or not."""
        for served in tuple(self._coordinators()):
            await self._sweep(served.coordinator)

    async def _sweep(self, coordinator: ITransactionCoordinator) -> int | None:
        """
        Sweep once; return when the next sweep has work, None if the coordinator does not know.

        A step that fails does not keep the others from being tried: what is in one's way may not be in theirs. An
        error of the framework passes, or comes again; any other exception is a defect, and the loop's exception
        handler is told.
        """

        async def orphans(_: int) -> Swept:
            await self._orphans(coordinator)
            return Swept(0, 0)

        next_ms: int | None = None
        async with self._sweeping:
            for step in (orphans, coordinator.expire, coordinator.collect):
                next_ms = _earlier(next_ms, await self._try(step))
        return next_ms

    async def _try(self, step: Callable[[int], Awaitable[Swept]]) -> int | None:
        """Take a step; return when it has work again."""
        now_ms = self._environment.now_ms()
        try:
            return _next_of(await step(now_ms), now_ms)
        except TxnFrameworkError:
            # The store is away or something is in the way: a deadline must not wait for the interval because of it.
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
                    next_ms = _earlier(next_ms, await self._sweep(served.coordinator))
            now_ms = self._environment.now_ms()
            latest_ms = now_ms + self._transactions.sweep_interval_ms
            # What woke this while the sweep ran may be due before what the sweep found. Something that is due and
            # cannot be done yet must not make this spin.
            self._next_ms = max(
                now_ms + BUSY_DELAY_MS, min(latest_ms, next_ms or latest_ms, self._next_ms or latest_ms)
            )
            await self._sleep()

    async def _sleep(self) -> None:
        """Return at ``_next_ms``, which may come nearer while this waits."""
        while self._next_ms is not None and self._environment.now_ms() < self._next_ms:
            self._sooner.clear()
            await first_completed(self._environment.sleep_until(self._next_ms), self._sooner.wait())


def _next_of(swept: Swept, now_ms: int) -> int | None:
    """When a sweep of this kind has work again."""
    if swept.left and swept.done:
        return now_ms + BUSY_DELAY_MS
    return swept.next_ms


def _earlier(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
