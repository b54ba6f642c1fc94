"""What befalls one call befalls no other, wherever in memory it lies."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.testing.clock import VirtualEnvironment
from txnframework_simulation.simulator.faults import FaultInjector, FaultKind, FaultRates
from txnframework_simulation.simulator.loop import SimulatedLoop
from txnframework_simulation.simulator.schedule import Process
from txnframework_simulation.simulator.store_calls import FaultyCalls


def test_a_call_that_was_cancelled_on_the_way_leaves_its_late_reply_to_nobody() -> None:
    """Nothing is kept of it: what lies where it lay would be held up in some processes and not in others."""
    loop = SimulatedLoop(VirtualEnvironment(1), 1)
    rates = {one.value: 0.0 for one in FaultKind} | {"reply_delayed": 1000.0}
    injector = FaultInjector(msgspec.convert(rates, FaultRates), "seed", loop.environment.now_ms)
    calls = FaultyCalls("host", injector, loop, lambda _: None)

    async def answer() -> None:
        return None

    async def work() -> None:
        call = asyncio.ensure_future(calls.read("get", "key", answer))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
        assert calls._reply_delay_ms == {}
        began_ms = loop.environment.now_ms()
        await calls.read("get", "key", answer)
        assert loop.environment.now_ms() > began_ms
        assert calls._reply_delay_ms == {}

    loop.run_until_complete(work())
    assert len(injector.happened) == 2
    loop.close()


def test_a_delay_takes_as_long_as_is_said_at_most() -> None:
    """With a short one, what begins in one moment overtakes each other and stays together."""
    injector = FaultInjector(FaultRates(delay_ms_max=20), "seed", VirtualEnvironment(1).now_ms)
    drawn = {injector.delay_ms() for _ in range(1_000)}
    assert min(drawn) == 1
    assert 10 < max(drawn) <= 20


def test_a_write_that_is_applied_late() -> None:
    """A late write raises a lost reply at once; a late read is lost, and a lease ends with its session."""
    loop = SimulatedLoop(VirtualEnvironment(1), 1)
    rates = {one.value: 0.0 for one in FaultKind} | {"applied_late": 1000.0}
    injector = FaultInjector(msgspec.convert(rates, FaultRates), "seed", loop.environment.now_ms)
    calls = FaultyCalls("host", injector, loop, lambda _: None)
    applied: list[str] = []

    async def answer() -> None:
        applied.append("applied")

    async def refused() -> None:
        raise Unavailable("refused by the test")

    async def work() -> None:
        for late in (answer, refused):
            with pytest.raises(OutcomeUnknown):
                await calls.write("put", "key", late)
        assert applied == []
        began_ms = loop.environment.now_ms()
        await calls.late_applied()
        assert applied == ["applied"]
        assert loop.environment.now_ms() > began_ms
        with pytest.raises(Unavailable):
            await calls.read("get", "key", answer)
        with pytest.raises(OutcomeUnknown):
            await calls.write("acquire_lease", "key", answer)
        assert applied == ["applied"] * 3

    loop.run_until_complete(work())
    loop.close()
    assert loop.reports == []


def test_a_write_is_applied_late_although_its_process_was_killed() -> None:
    """The store has the call: it does not matter to it what became of the caller."""
    loop = SimulatedLoop(VirtualEnvironment(1), 1)
    rates = {one.value: 0.0 for one in FaultKind} | {"applied_late": 1000.0}
    injector = FaultInjector(msgspec.convert(rates, FaultRates), "seed", loop.environment.now_ms)
    calls = FaultyCalls("host", injector, loop, lambda _: None)
    process, applied = Process("killed"), []

    async def answer() -> None:
        await asyncio.sleep(1)
        applied.append("applied")

    async def write() -> None:
        with suppress(OutcomeUnknown):
            await calls.write("put", "key", answer)
        process.kill()

    loop.spawn(process, write())
    loop.run_until(lambda: not process.alive)
    assert applied == []
    loop.run_until(lambda: applied == ["applied"])
    loop.close()
