"""The way from a process to its stores: steps are counted there, and a test can hold, refuse, lose or end them."""

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

WRITES = frozenset({"put", "put_sequential", "delete", "apply", "append", "roll", "seal", "trim"})
"""The methods of stores and ledgers whose reply matters: losing it leaves the outcome unknown."""

QUIET = frozenset({"watch", "close"})
"""Steps that read and write nothing, and are neither counted nor disturbed."""


@dataclass(eq=False)
class Held:
    """A step that is held up before it is sent, from ``reached`` on until ``go``."""

    at: int
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Line:
    """
    One process's way to its stores; ``steps`` counts the calls that were made, ``writes`` those that change something,
    ``writes_sent`` those of them that were let through; ``asked`` counts quiet calls as well.

    Steps and writes are numbered from 1 on at the time of the order: ``hold(1)`` is about the next step.
    """

    steps: int = 0
    writes: int = 0
    writes_sent: int = 0
    asked: int = 0
    _held: list[Held] = field(default_factory=list)
    _lost: set[int] = field(default_factory=set)
    _refused: set[int] = field(default_factory=set)
    _ends_at: int | None = None
    is_cut: bool = False

    def hold(self, step: int) -> Held:
        """Hold up a step before it is sent."""
        held = Held(self.steps + step)
        self._held.append(held)
        return held

    def lose(self, write: int) -> None:
        """Apply a write and lose its reply."""
        self._lost.add(self.writes + write)

    def refuse(self, step: int) -> None:
        """Let a step fail without being applied."""
        self._refused.add(self.steps + step)

    def cut_at(self, write: int) -> None:
        """Apply a write, lose its reply, and let nothing through after it until ``restore``."""
        self.lose(write)
        self._ends_at = self.writes + write

    def restore(self) -> None:
        """Let everything through again, and forget the orders that nothing came up to."""
        self.is_cut, self._ends_at = False, None
        self._lost.clear()
        self._refused.clear()
        for held in self._held:
            held.go.set()
        self._held.clear()

    def go_on(self) -> None:
        """Send the step that is held up, and keep the other orders."""
        for held in self._held:
            if held.reached.is_set():
                held.go.set()

    async def step(self, name: str, call: Callable[[], Awaitable[R]]) -> R:
        """Take one step, as the orders of the test have it."""
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


class _Wired:
    """What stands behind a line: every coroutine method of it is a step, everything else is passed through."""

    def __init__(self, inner: object, line: Line, without: tuple[Any, ...]) -> None:
        self._inner = inner
        self._line = line
        self._hidden = frozenset(name for one in without for name in one.names())
        promises = [one for one in providedBy(inner).flattened() if one is not Interface]
        directlyProvides(self, *(one for one in promises if not any(one.isOrExtends(hidden) for hidden in without)))

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            raise AttributeError(name)
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call_quietly(*arguments: Any) -> Any:
            self._line.asked += 1
            return await found(*arguments)

        if name in QUIET:
            return call_quietly

        async def call(*arguments: Any) -> Any:
            answer = await self._line.step(name, lambda: found(*arguments))
            return wired(answer, self._line) if IManagedLedger.providedBy(answer) else answer

        return call


def wired(inner: R, line: Line, without: tuple[Any, ...] = ()) -> R:
    """Return ``inner`` behind a line; it provides what it did, but for the promises in ``without``."""
    return cast(R, _Wired(inner, line, without))
