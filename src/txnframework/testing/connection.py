"""The connection of a process to its stores, which counts calls; a test can hold, refuse, lose or cut them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from zope.interface import Interface, directlyProvides, providedBy

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.interfaces import IManagedLedger

R = TypeVar("R")

WRITES = frozenset({"put", "delete", "apply", "append", "roll", "seal", "trim"})
"""Methods of stores and ledgers that change data: losing a reply leaves the outcome unknown."""

QUIET = frozenset({"watch", "close"})
"""Methods that read and write nothing; they are neither counted as steps nor disturbed."""


@dataclass(eq=False)
class HeldStep:
    """A step that is held before it is sent: ``reached`` is set when it arrives, and ``go`` releases it."""

    at: int
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class StoreConnection:
    """
    The connection of one process to its stores.

    ``steps`` counts calls and ``writes`` those that change data. ``writes_sent`` counts the writes that were let
    through. ``asked`` also counts quiet calls.

    An order counts from the time at which it is given: ``hold(1)`` holds the next step.
    """

    steps: int = 0
    writes: int = 0
    writes_sent: int = 0
    asked: int = 0
    _held: list[HeldStep] = field(default_factory=list)
    _lost: set[int] = field(default_factory=set)
    _refused: set[int] = field(default_factory=set)
    _ends_at: int | None = None
    is_cut: bool = False

    def hold(self, step: int) -> HeldStep:
        """Hold the ``step``-th next step before it is sent."""
        held = HeldStep(self.steps + step)
        self._held.append(held)
        return held

    def lose(self, write: int) -> None:
        """Apply the ``write``-th next write and lose its reply."""
        self._lost.add(self.writes + write)

    def refuse(self, step: int) -> None:
        """Fail the ``step``-th next step without applying it."""
        self._refused.add(self.steps + step)

    def cut_at(self, write: int) -> None:
        """Apply the ``write``-th next write, lose its reply, and block everything after it until ``restore``."""
        self.lose(write)
        self._ends_at = self.writes + write

    def restore(self) -> None:
        """Remove all blocks and outstanding orders, and release all held steps."""
        self.is_cut, self._ends_at = False, None
        self._lost.clear()
        self._refused.clear()
        for held in self._held:
            held.go.set()
        self._held.clear()

    def go_on(self) -> None:
        """Release the held step and keep all other orders."""
        for held in self._held:
            if held.reached.is_set():
                held.go.set()

    async def step(self, name: str, call: Callable[[], Awaitable[R]], arguments: tuple[Any, ...] = ()) -> R:
        """
        Make one call under the orders of the test; ``arguments`` are those of the call.

        :raises Unavailable: the connection is cut, or the test refuses this step; nothing was sent.
        :raises OutcomeUnknown: the write was applied, and the test loses its reply.
        """
        del arguments  # for subclasses
        self.asked += 1
        self.steps += 1
        this, write = self.steps, name in WRITES
        self.writes += write
        this_write = self.writes if write else 0
        for held in [held for held in self._held if held.at == this]:
            held.reached.set()
            await held.go.wait()
        if self.is_cut or this in self._refused:
            raise Unavailable(f"{name} was refused by the test")
        self.writes_sent += write
        answer = await call()
        if this_write and this_write == self._ends_at:
            self.is_cut = True
        if this_write in self._lost:
            raise OutcomeUnknown(f"the reply to {name} was lost by the test")
        return answer


class _Intercepted:
    """An object behind a connection: its coroutine methods are steps, and all other attributes are passed through."""

    def __init__(self, inner: object, connection: StoreConnection) -> None:
        self._inner = inner
        self._line = connection
        directlyProvides(self, *(one for one in providedBy(inner).flattened() if one is not Interface))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call_quietly(*arguments: Any) -> Any:
            self._line.asked += 1
            return await found(*arguments)

        if name in QUIET:
            return call_quietly

        async def call(*arguments: Any) -> Any:
            answer = await self._line.step(name, lambda: found(*arguments), arguments)
            return intercept_calls(answer, self._line) if IManagedLedger.providedBy(answer) else answer

        return call


def intercept_calls(inner: R, connection: StoreConnection) -> R:
    """Return ``inner`` behind ``connection``; it provides the same interfaces."""
    return cast(R, _Intercepted(inner, connection))
