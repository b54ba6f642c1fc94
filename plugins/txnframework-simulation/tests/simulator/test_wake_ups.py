"""Wake-ups that come late or are missed: nothing is lost by them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest
from zope.interface import implementer

from txnframework.interfaces import IAppendedWatch, IValueWatch
from txnframework.model import LedgerEntry, Position
from txnframework.testing.clock import VirtualEnvironment
from txnframework_simulation.simulator.faults import FaultInjector, FaultKind, FaultRates
from txnframework_simulation.simulator.faulty_stores import FaultyTailWatch, FaultyValueWatch, FaultyWatch
from txnframework_simulation.simulator.loop import SimulatedLoop
from txnframework_simulation.simulator.store_calls import LATE_MS_MAX, FaultyCalls, StoreCalls

ENTRY = LedgerEntry(Position(1, 1), b"")
KINDS = ("wake_up_late", "wake_up_missed")


@implementer(IAppendedWatch)
class Told:
    """A watch that announces values on request; it counts requests and answers."""

    def __init__(self) -> None:
        self.appended: tuple[LedgerEntry, ...] | None = None
        self._changed = asyncio.Event()

    def tell(self) -> None:
        self._changed.set()

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()
        self.appended = (ENTRY,)

    async def close(self) -> None:
        return None


def _run(kind: str, work: Callable[[SimulatedLoop, Told, FaultyCalls], Awaitable[None]]) -> None:
    loop = SimulatedLoop(VirtualEnvironment(1), 1)
    rates = {one.value: 0.0 for one in FaultKind} | {kind: 1000.0}
    injector = FaultInjector(msgspec.convert(rates, FaultRates), "seed", loop.environment.now_ms)
    calls = FaultyCalls("host", injector, loop, lambda _: None)

    async def begin() -> None:
        await work(loop, Told(), calls)

    loop.run_until_complete(begin())
    assert {one.kind.value for one in injector.happened} == {kind}
    loop.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_wait_misses_nothing(kind: str) -> None:
    """Values announced while a cancelled wake-up was on its way go to the next waiter, with the entries."""

    async def work(loop: SimulatedLoop, real: Told, calls: FaultyCalls) -> None:
        watch = FaultyTailWatch(real, calls)
        wait = asyncio.ensure_future(watch.changed())
        await asyncio.sleep(0)
        real.tell()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not wait.done()
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
        assert wait.cancelled()
        await watch.changed()
        assert watch.appended == (ENTRY,)

    _run(kind, work)


def test_one_that_is_missed_comes_with_the_next() -> None:
    """Of two changes the second wakes, at once; and without one the store wakes when it notices."""

    async def work(loop: SimulatedLoop, real: Told, calls: FaultyCalls) -> None:
        watch = FaultyWatch(real, calls)
        began_ms = loop.environment.now_ms()
        wait = asyncio.ensure_future(watch.changed())
        for _ in range(2):
            real.tell()
            for _ in range(5):
                await asyncio.sleep(0)
        await wait
        assert loop.environment.now_ms() == began_ms
        real.tell()
        await watch.changed()
        assert began_ms < loop.environment.now_ms() <= began_ms + LATE_MS_MAX

    _run("wake_up_missed", work)


@implementer(IValueWatch)
class Moved:
    """A watch on a record that was written twice."""

    def __init__(self) -> None:
        self.value: bytes | None = b"armed"
        self._values = [b"first", b"second"]
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        if not self._values:
            await self._changed.wait()
        self.value = self._values.pop(0)

    async def close(self) -> None:
        return None


class Coalescing(StoreCalls):
    """Announces two changes at once; which value it delivers is drawn by its place."""

    def __init__(self, drawn: int) -> None:
        super().__init__()
        self.offered: list[tuple[bytes | None, ...]] = []
        self._drawn = drawn

    async def woken(self, changed: Callable[[], Awaitable[None]]) -> None:
        await changed()
        await changed()

    def value(self, values: Sequence[bytes | None]) -> bytes | None:
        self.offered.append(tuple(values))
        return values[self._drawn]


@pytest.mark.parametrize(("drawn", "told"), [(0, b"first"), (-1, b"second")])
def test_any_of_several_changes_is_told(drawn: int, told: bytes) -> None:
    """Of several changes that arrive as one, either value may be announced, and none before a change."""

    async def work() -> None:
        calls = Coalescing(drawn)
        watch = FaultyValueWatch(Moved(), calls)
        assert watch.value == b"armed"
        await watch.changed()
        assert (calls.offered, watch.value) == ([(b"first", b"second")], told)

    loop = SimulatedLoop(VirtualEnvironment(1), 1)
    loop.run_until_complete(work())
    loop.close()


@pytest.mark.parametrize(("kind", "told"), [("value_missing", None), ("value_old", b"first")])
def test_what_is_told_goes_wrong(kind: str, told: bytes | None) -> None:
    """If the announcement fails, either nothing is announced or the first of several values, which was really
    written.
    """

    async def work(_: SimulatedLoop, __: Told, calls: FaultyCalls) -> None:
        assert calls.value((b"first", b"second")) == told

    _run(kind, work)
