"""Calls of a process to its stores, and the faults and delays that are injected into them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from txnframework.errors import OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.model import IndexRange, Key, KeyRange, PutSequential, Step
from txnframework_simulation.simulator.faults import FaultInjector, FaultKind
from txnframework_simulation.simulator.loop import SimulatedLoop

T = TypeVar("T")


class CallFault(Enum):
    """Fault of a call."""

    REFUSED = "refused"
    """The call is not applied, and Unavailable is raised."""
    REPLY_LOST = "reply lost"
    """
    The call is applied.

    A write then raises OutcomeUnknown, a read Unavailable.
    """
    APPLIED_LATE = "applied late"
    """
    The call raises as for REPLY_LOST, and a write is applied some time after that.

    Its caller may have read by then, or may have been killed.
    """


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call of a store: ``name`` is ``put``, ``append`` and so on, ``about`` the key or ledger."""

    name: str
    about: str
    writes: bool

    def __str__(self) -> str:
        return f"{self.name} {self.about}"


Leave = Callable[[], Callable[[], Awaitable[object]]] | None


class StoreCalls:
    """
    All calls of one process to its stores; ``fault`` draws the fault of each call.

    A subclass may delay calls, replies and wake-ups of watches.
    """

    def __init__(self) -> None:
        self.fault: Callable[[StoreCall], CallFault | None] = lambda _: None

    async def on_the_way(self, call: StoreCall) -> None:
        """Return when a call has arrived at its store."""

    async def on_the_way_back(self, call: StoreCall) -> None:
        """Return when the reply to a call has arrived."""

    async def woken(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Return when a wake-up has arrived; ``changed`` waits for one, and may be called never or several times."""
        await changed()

    def value(self, values: Sequence[bytes | None]) -> bytes | None:
        """Return the value that a watch shows, from the values of one wake-up in order."""
        return values[-1]

    def apply_late(self, answer: Callable[[], Awaitable[object]]) -> None:
        """Apply a write some time after its caller has received OutcomeUnknown."""
        raise AssertionError(f"only delayed calls may be applied late, not {answer}")

    async def late_applied(self) -> None:
        """Return when no write is left that will be applied late."""

    async def read(self, name: str, about: object, answer: Callable[[], Awaitable[T]]) -> T:
        """Make a call that changes nothing."""
        return await self._made(StoreCall(name, _subject_of(about), False), answer)

    async def write(self, name: str, about: object, answer: Callable[[], Awaitable[T]], leave: Leave = None) -> T:
        """
        Make a call that changes something.

        :param leave: called when the call will be applied late; returns what applies it. Default: ``answer`` does.
        """
        return await self._made(StoreCall(name, _subject_of(about), True), answer, leave)

    async def _made(self, call: StoreCall, answer: Callable[[], Awaitable[T]], leave: Leave = None) -> T:
        fault = self.fault(call)
        await self.on_the_way(call)
        if fault is CallFault.REFUSED:
            raise Unavailable(f"{call} was refused by the simulation")
        if fault is CallFault.APPLIED_LATE and call.writes:
            self.apply_late(answer if leave is None else leave())
            raise OutcomeUnknown(f"the reply to {call} was lost by the simulation, which applies it later")
        try:
            answered = await answer()
        finally:
            await self.on_the_way_back(call)
        if fault in (CallFault.REPLY_LOST, CallFault.APPLIED_LATE):
            lost = f"the reply to {call} was lost by the simulation"
            raise OutcomeUnknown(lost) if call.writes else Unavailable(lost)
        return answered


def _subject_of(about: object) -> str:
    """
    Return the subject of a call: a key's path, an index or a name.

    For a batch, it is the subject of the first change.
    """
    match about:
        case Step():
            changes = (*about.puts, *about.deletes, *about.checks)
            return _subject_of(changes[0]) if changes else "nothing"
        case PutSequential():
            return about.prefix.path
        case Key():
            return about.path
        case KeyRange():
            return about.start
        case IndexRange():
            return about.index
        case str():
            return about
    return _subject_of(getattr(about, "key"))  # noqa: B009 - a Put, a Delete or a Check


LEASES = ("acquire_lease", "break_lease", "release")
LATE_MS_MAX = 5_000
"""A store that missed a notification checks again after at most this time."""


class FaultyCalls(StoreCalls):
    """
    Calls with delays: each takes a few rounds of the loop, some take much longer, and calls overtake each other.

    ``disrupt_machine`` is called for faults of the machine itself.
    """

    def __init__(
        self, machine: str, injector: FaultInjector, loop: SimulatedLoop, disrupt_machine: Callable[[FaultKind], None]
    ) -> None:
        super().__init__()
        self.fault = self._draw
        self._machine = machine
        self._injector = injector
        self._loop = loop
        self._disrupt_machine = disrupt_machine
        self._delay_ms = 0
        self._reply_delay_ms: dict[int, int] = {}
        self._late: dict[asyncio.Task[None], None] = {}

    async def on_the_way(self, call: StoreCall) -> None:
        """Return when a call has arrived at its store."""
        delay_ms, self._delay_ms = self._delay_ms, 0
        if delay_ms > 0:
            await self._pass(delay_ms)
        await self._loop.pause()
        if delay_ms < 0:
            # Stored only after the last await, so that a cancelled call leaves no entry. A later call may have the same
            # id, and the run would depend on memory addresses.
            self._reply_delay_ms[id(call)] = -delay_ms

    async def on_the_way_back(self, call: StoreCall) -> None:
        """Return when the reply to a call has arrived."""
        delay_ms = self._reply_delay_ms.pop(id(call), 0)
        if delay_ms:
            await self._pass(delay_ms)
        await asyncio.sleep(0)

    def apply_late(self, answer: Callable[[], Awaitable[object]]) -> None:
        """Apply a write after a delay, also if its process was killed since: the store has it."""
        applying = self._loop.spawn(self._loop.outside, self._apply_late(answer))
        self._late[applying] = None
        applying.add_done_callback(self._late.pop)

    async def late_applied(self) -> None:
        """Return when no write is left that will be applied late."""
        if self._late:
            await asyncio.wait(tuple(self._late))

    async def _apply_late(self, answer: Callable[[], Awaitable[object]]) -> None:
        await self._pass(self._injector.delay_ms())
        with suppress(TxnFrameworkError):  # refused, or lost because the process has closed the store
            await answer()

    async def woken(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Return when a wake-up has arrived, possibly one without a cause."""
        kind = self._injector.at_wake_up(self._machine)
        if kind is FaultKind.WAKE_UP_REPEATED:
            await asyncio.sleep(0)
            return
        await changed()
        if kind is FaultKind.WAKE_UP_LATE:
            await self._pass(self._injector.milliseconds(LATE_MS_MAX))
        elif kind is FaultKind.WAKE_UP_MISSED:
            await self._first_of(changed(), self._pass(self._injector.milliseconds(LATE_MS_MAX)))

    def value(self, values: Sequence[bytes | None]) -> bytes | None:
        """Return the value that a watch shows: the last one, an older one, or None."""
        match self._injector.at_value(self._machine):
            case FaultKind.VALUE_MISSING:
                return None
            case FaultKind.VALUE_OLD:
                return values[0]
        return values[-1]

    def _draw(self, call: StoreCall) -> CallFault | None:
        kind = self._injector.at_call(self._machine, call)
        match kind:
            case None:
                return None
            case FaultKind.REFUSED:
                return CallFault.REFUSED
            case FaultKind.REPLY_LOST:
                return CallFault.REPLY_LOST
            case FaultKind.APPLIED_LATE:
                # A lease belongs to a session, which a store ends together with its connection.
                return CallFault.REPLY_LOST if call.name in LEASES else CallFault.APPLIED_LATE
            case FaultKind.DELAYED:
                self._delay_ms = self._injector.delay_ms()
            case FaultKind.REPLY_DELAYED:
                self._delay_ms = -self._injector.delay_ms()
            case _:
                self._disrupt_machine(kind)
        return None

    async def _first_of(self, *waits: Awaitable[None]) -> None:
        """Return when one of these waits is over, and cancel the others."""
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
