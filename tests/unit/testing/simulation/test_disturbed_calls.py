"""What befalls one call befalls no other, wherever in memory it lies."""

from __future__ import annotations

import asyncio

from txnframework.testing.clock import VirtualEnvironment
from txnframework.testing.simulation.disturbed import DisturbedCalls
from txnframework.testing.simulation.loop import SimulatedLoop
from txnframework.testing.simulation.misfortunes import Misfortunes, Rates


def test_a_call_that_was_cancelled_on_the_way_leaves_its_late_reply_to_nobody() -> None:
    """Nothing is kept of it: what lies where it lay would be held up in some processes and not in others."""
    loop = SimulatedLoop(VirtualEnvironment(1), 1)
    rates = dict.fromkeys(Rates.__struct_fields__, 0.0) | {"reply_delayed": 1000.0}
    misfortunes = Misfortunes(Rates(**rates), "seed", loop.environment.now_ms)
    calls = DisturbedCalls("host", misfortunes, loop, lambda _: None)

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
    assert len(misfortunes.happened) == 2
    loop.close()
