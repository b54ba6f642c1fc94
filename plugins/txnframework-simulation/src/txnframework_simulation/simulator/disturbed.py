"""A machine's calls, on a way on which things go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from txnframework_simulation.simulator.faults import Call, Calls, Fault
from txnframework_simulation.simulator.loop import SimulatedLoop
from txnframework_simulation.simulator.misfortunes import Kind, Misfortunes

LATE_MS_MAX = 5_000
"""A store that has missed a notification looks again after this."""


class DisturbedCalls(Calls):
    """
    Calls take a few rounds, so that they overtake each other, and now and then much longer or for ever.

    ``befall`` is told of what happens to the machine itself rather than to a call.
    """

    def __init__(
        self, machine: str, misfortunes: Misfortunes, loop: SimulatedLoop, befall: Callable[[Kind], None]
    ) -> None:
        super().__init__()
        self.fault = self._draw
        self._machine = machine
        self._misfortunes = misfortunes
        self._loop = loop
        self._befall = befall
        self._delay_ms = 0
        self._reply_delay_ms: dict[int, int] = {}

    async def on_the_way(self, call: Call) -> None:
        """Return when a call has arrived at its store."""
        delay_ms, self._delay_ms = self._delay_ms, 0
        if delay_ms > 0:
            await self._pass(delay_ms)
        await self._loop.pause()
        if delay_ms < 0:
            # Not before the last await: of a call that was cancelled on the way nothing may stay, because another one
            # may come to lie where it lay, and the run would depend on that.
            self._reply_delay_ms[id(call)] = -delay_ms

    async def on_the_way_back(self, call: Call) -> None:
        """Return when the reply to a call has arrived."""
        delay_ms = self._reply_delay_ms.pop(id(call), 0)
        if delay_ms:
            await self._pass(delay_ms)
        await asyncio.sleep(0)

    async def woken(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Return when a wake-up has arrived, or one that there was no reason for."""
        kind = self._misfortunes.at_wake_up(self._machine)
        if kind is Kind.WAKE_UP_REPEATED:
            await asyncio.sleep(0)
            return
        await changed()
        if kind is Kind.WAKE_UP_LATE:
            await self._pass(self._misfortunes.milliseconds(LATE_MS_MAX))
        elif kind is Kind.WAKE_UP_MISSED:
            await self._first_of(changed(), self._pass(self._misfortunes.milliseconds(LATE_MS_MAX)))

    def value(self, values: Sequence[bytes | None]) -> bytes | None:
        """Return which of the values that a wake-up brought along is told: none, or an older one that was written."""
        match self._misfortunes.at_value(self._machine):
            case Kind.VALUE_MISSING:
                return None
            case Kind.VALUE_OLD:
                return values[0]
        return values[-1]

    def _draw(self, call: Call) -> Fault | None:
        kind = self._misfortunes.at_call(self._machine, call)
        match kind:
            case None:
                return None
            case Kind.REFUSED:
                return Fault.REFUSED
            case Kind.REPLY_LOST:
                return Fault.REPLY_LOST
            case Kind.DELAYED:
                self._delay_ms = self._misfortunes.delay_ms()
            case Kind.REPLY_DELAYED:
                self._delay_ms = -self._misfortunes.delay_ms()
            case _:
                self._befall(kind)
        return None

    async def _first_of(self, *waits: Awaitable[None]) -> None:
        """Return when one of these is over, and stop the others."""
        waiting = [asyncio.ensure_future(one) for one in waits]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for one in waiting:
                if one in done:
                    one.result()
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _pass(self, delay_ms: int) -> None:
        environment = self._loop.environment
        await environment.sleep_until(environment.now_ms() + delay_ms)
