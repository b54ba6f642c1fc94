"""Background work of a host: openings, settling, acknowledgments, sweeps."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

import pytest

from txnframework.broker.coordinators.coordinators import ServedCoordinator
from txnframework.broker.coordinators.own_transactions import SettlingQueue
from txnframework.broker.coordinators.sweeps import BUSY_DELAY_MS, WAKE_INTERVAL_MS, Sweeps
from txnframework.broker.dispatch.cursor_acks import CursorAckWriter
from txnframework.config import TransactionsSection
from txnframework.errors import Closed, Unavailable
from txnframework.model import Ack, Position, SweepResult
from txnframework.runtime.concurrency import SharedOpenings
from txnframework.testing.clock import START_MS, VirtualEnvironment, run_ready


async def test_a_thing_is_opened_once() -> None:
    """Concurrent callers share an opening; a failure is not cached; one cancelled caller does not affect others."""
    things: SharedOpenings[str, int] = SharedOpenings()
    gate = asyncio.Event()
    opened = 0

    async def open_it() -> int:
        nonlocal opened
        opened += 1
        await gate.wait()
        if opened == 1:
            raise Unavailable("not yet")
        return opened

    first = [asyncio.ensure_future(things.get("a", open_it)) for _ in range(3)]
    await run_ready()
    first[0].cancel()
    gate.set()
    results = await asyncio.gather(*first, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, Unavailable, Unavailable]
    assert await asyncio.gather(*(things.get("a", open_it) for _ in range(2))) == [2, 2]
    assert things.values() == (2,)
    assert await things.drain() == (2,)
    assert things.values() == ()


async def test_what_is_being_opened_is_given_up() -> None:
    """Waiting callers get a closed error, cancelled callers are cancelled, and open objects are returned."""
    things: SharedOpenings[str, int] = SharedOpenings()

    async def open_it() -> int:
        return 1

    async def never() -> int:
        await asyncio.Event().wait()
        raise AssertionError

    await things.get("a", open_it)
    waiting = [asyncio.ensure_future(things.get("b", never)) for _ in range(2)]
    await run_ready()
    draining = asyncio.ensure_future(things.drain())
    waiting[1].cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [Closed, asyncio.CancelledError]
    assert await draining == (1,)
    assert await things.get("b", open_it) == 1


async def test_background_work_is_bounded() -> None:
    """Excess work is dropped, expected failures are ignored, and started work is waited for."""
    background = SettlingQueue(VirtualEnvironment(), delay_ms=0, at_once_max=1, waiting_max=1)
    gate, done = asyncio.Event(), []

    async def work() -> None:
        await gate.wait()
        done.append(1)
        raise Unavailable("left for a sweep")

    assert [background.start(work) for _ in range(3)] == [True, True, False]
    gate.set()
    await background.finish(10_000)
    assert done == [1, 1]


async def test_background_work_is_held_back() -> None:
    """All pending work starts together; waiting work is counted, and finishing does not wait for time to pass."""
    environment, done = VirtualEnvironment(), []
    background = SettlingQueue(environment, delay_ms=2, at_once_max=2, waiting_max=1)

    async def work() -> None:
        done.append(environment.now_ms() - START_MS)

    assert background.start(work)
    await environment.advance(1)
    assert background.start(work)
    assert done == []
    await environment.advance(1)
    assert done == [2, 2]
    assert [background.start(work) for _ in range(4)] == [True, True, True, False]
    await background.finish(10_000)
    assert done == [2] * 5


class SlowCursor:
    """Remembers each write; the first ones wait for ``gate`` and may fail."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, int]] = []
        self.gate = asyncio.Event()
        self.fails = 0

    async def apply(self, incarnation: int, acks: tuple[Ack, ...], processed: object) -> bool:
        self.writes.append((incarnation, len(acks)))
        await self.gate.wait()
        if self.fails:
            self.fails -= 1
            raise Unavailable("the store is away")
        return True


async def test_acknowledgments_share_writes() -> None:
    """Acks that arrive during a write go into the next write; a failure is raised to the callers of that write."""
    cursor = SlowCursor()
    cursor.fails = 1
    plain = CursorAckWriter(cast(Any, cursor), VirtualEnvironment(), 0)

    def write(entry: int, incarnation: int = 1) -> asyncio.Future[None]:
        return asyncio.ensure_future(plain.write(incarnation, (Ack(Position(1, entry)),)))

    first = write(0)
    await run_ready()
    others = [write(1), write(2), write(3, incarnation=2)]
    await run_ready()
    cursor.gate.set()
    with pytest.raises(Unavailable):
        await first
    await asyncio.gather(*others)
    assert cursor.writes == [(1, 1), (1, 2), (2, 1)]
    await plain.finish()


class Coordinator:
    """Counts sweeps and says when the next one has work."""

    def __init__(self, clock: VirtualEnvironment) -> None:
        self.clock = clock
        self.swept_at: list[int] = []
        self.next_ms: int | None = None
        self.fails = False
        self.collected = 0
        self.defect: Exception | None = None

    async def expire(self, now_ms: int) -> SweepResult:
        self.swept_at.append(now_ms - START_MS)
        if self.fails:
            raise Unavailable("the store is away")
        return SweepResult(0, 0, self.next_ms)

    async def collect(self, now_ms: int) -> SweepResult:
        self.collected += 1
        if self.defect is not None:
            raise self.defect
        return SweepResult(0, 0)


class Elected:
    """Says who sweeps."""

    def __init__(self, won: bool = True) -> None:
        self.won = won


def served(coordinator: Coordinator, election: Elected | None = None) -> ServedCoordinator:
    return ServedCoordinator(cast(Any, coordinator), cast(Any, None), cast(Any, election or Elected()))


async def test_sweeps_come_when_something_is_due() -> None:
    """Sweeps run at the next deadline, soon after a wake-up, and at least once per interval, never without a pause."""
    clock = VirtualEnvironment()
    coordinator = Coordinator(clock)

    async def no_orphans(_: object) -> None: ...

    bounds = TransactionsSection(sweep_interval_ms=1_000, max_clock_skew_ms=10)
    sweeps = Sweeps(lambda: [served(coordinator)], clock, bounds, no_orphans, list)
    coordinator.next_ms = START_MS + 350
    sweeps.start()
    await clock.advance(300)
    assert coordinator.swept_at == [0]
    coordinator.next_ms = None
    await clock.advance(60)
    assert coordinator.swept_at == [0, 350]
    coordinator.fails = True
    await clock.advance(1_000)
    assert coordinator.swept_at == [0, 350, 1_350]
    coordinator.fails = False
    coordinator.next_ms = START_MS  # due, and it cannot be done
    for _ in range(3):  # many unsure reasons soon after a sweep are one reason for the next
        sweeps.wake(unsure=True)
        await clock.advance(10)
    await clock.advance(WAKE_INTERVAL_MS - 40 + 2 * BUSY_DELAY_MS)
    woken_ms = 1_350 + WAKE_INTERVAL_MS
    assert coordinator.swept_at[3:] == [woken_ms, woken_ms + BUSY_DELAY_MS, woken_ms + 2 * BUSY_DELAY_MS]
    coordinator.next_ms = None
    await clock.advance(BUSY_DELAY_MS)
    sweeps.wake()
    await clock.advance(1)
    assert len(coordinator.swept_at) == 8
    await sweeps.stop()
    await clock.advance(5_000)
    assert len(coordinator.swept_at) == 8


async def test_a_clock_that_is_set_back_delays_no_sweep() -> None:
    """The interval is measured in elapsed time, not by the clock."""
    clock = VirtualEnvironment()
    coordinator = Coordinator(clock)

    async def no_orphans(_: object) -> None: ...

    sweeps = Sweeps(
        lambda: [served(coordinator)], clock, TransactionsSection(sweep_interval_ms=1_000), no_orphans, list
    )
    sweeps.start()
    await clock.advance(1)
    clock.set_clock(-3_600_000)
    await clock.advance(999)
    assert len(coordinator.swept_at) == 2
    sweeps.wake(unsure=True)
    await clock.advance(WAKE_INTERVAL_MS)
    assert len(coordinator.swept_at) == 3
    await sweeps.stop()


async def test_only_the_elected_sweeps() -> None:
    """A host that is not elected does no work; once elected, it does all of it."""
    clock = VirtualEnvironment()
    coordinator, election = Coordinator(clock), Elected(won=False)

    async def no_orphans(_: object) -> None: ...

    bounds = TransactionsSection(sweep_interval_ms=1_000)
    sweeps = Sweeps(lambda: [served(coordinator, election)], clock, bounds, no_orphans, list)
    sweeps.start()
    sweeps.wake()
    await clock.advance(2_500)
    assert coordinator.swept_at == []
    election.won = True
    sweeps.wake()
    await clock.advance(0)
    assert coordinator.swept_at == [2_500]
    await sweeps.stop()


async def test_a_coordinator_is_swept_once_at_a_time() -> None:
    """A requested sweep runs after the one that is in progress in the background."""
    clock = VirtualEnvironment()
    coordinator = Coordinator(clock)
    gate = asyncio.Event()
    sweeping = 0

    async def wait(_: object) -> None:
        nonlocal sweeping
        sweeping += 1
        await gate.wait()

    sweeps = Sweeps(lambda: [served(coordinator)], clock, TransactionsSection(), wait, list)
    sweeps.start()
    await run_ready()
    asked = asyncio.ensure_future(sweeps.sweep())
    await run_ready()
    assert sweeping == 1
    gate.set()
    await asked
    assert coordinator.collected == 2
    await sweeps.stop()


async def test_nothing_stops_the_sweeps() -> None:
    """A failed step is retried and does not block other steps; a defect is reported."""
    clock = VirtualEnvironment()
    broken, sound = Coordinator(clock), Coordinator(clock)
    broken.fails, broken.defect = True, ZeroDivisionError("a defect")
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reported.append(report["exception"]))

    async def no_orphans(coordinator: object) -> None:
        if coordinator is broken:
            raise Unavailable("the store is away")

    bounds = TransactionsSection(sweep_interval_ms=1_000)
    sweeps = Sweeps(lambda: [served(broken), served(sound)], clock, bounds, no_orphans, list)
    sweeps.start()
    await clock.advance(2_500)
    for coordinator in (broken, sound):
        waits = [after - before for before, after in itertools.pairwise(coordinator.swept_at)]
        assert 2 <= len(waits) <= 4
        assert 500 <= min(waits) <= max(waits) <= 1_000
        assert coordinator.collected == len(coordinator.swept_at)
    assert reported == [broken.defect] * broken.collected
    await sweeps.stop()
