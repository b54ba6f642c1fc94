"""Common parts of all figures: two sides that are measured in turn, a client, and a description of the machine."""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from backend import Backend, Side

import txnframework
from txnframework.model import TxnID

SETTLED_TOGETHER = 64


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the median of a figure's rounds."""

    bound: float
    at_most: bool = True

    def met_by(self, ratio: float) -> bool:
        return ratio <= self.bound if self.at_most else ratio >= self.bound

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Found:
    """One figure: the ratio of each round, its target, and the absolute numbers behind it."""

    what: str
    rounds: tuple[float, ...]
    target: Target | None = None
    notes: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return statistics.median(self.rounds)

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.target.met_by(self.ratio)


@dataclass(frozen=True, slots=True)
class Run:
    """The input of a figure: its backend, the number of rounds, whether sizes are small, and the progress output."""

    backend: Backend
    rounds: int
    quick: bool
    progress: Callable[[str], None]

    def size(self, whole: int, quick: int) -> int:
        return quick if self.quick else whole

    def target(self, **bounds: Target) -> Target | None:
        """Return the target for this backend, if it has one."""
        return bounds.get(self.backend.name)


async def timed(work: Awaitable[object]) -> float:
    """Return the seconds that ``work`` takes."""
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


async def interleaved(samples: int, *sides: Side) -> tuple[list[float], ...]:
    """Take a sample of each side in turn, in alternating order, so that a slow machine slows both sides."""
    taken: tuple[list[float], ...] = tuple([] for _ in sides)
    for number in range(samples):
        for at in range(len(sides)) if number % 2 == 0 else reversed(range(len(sides))):
            taken[at].append(await sides[at]())
    return taken


def p50(seconds: list[float]) -> float:
    return statistics.median(seconds)


def microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 1)


@asynccontextmanager
async def opened(config: Mapping[str, object], **sections: Mapping[str, object]) -> AsyncIterator[txnframework.Client]:
    """Open a client without sweeps, so that only the measured work runs."""
    async with txnframework.open({"transactions": {"sweep": False}, **config, **sections}) as client:
        yield client


@contextmanager
def unsettled(client: txnframework.Client) -> Iterator[list[TxnID]]:
    """Defer the settling of commits to ``settle``, so that it does not run during the next measurement."""
    ended: list[TxnID] = []
    own, settle_soon = client.host.own_transactions, client.host.own_transactions.settle_soon
    own.settle_soon = ended.append  # type: ignore[assignment,method-assign]
    try:
        yield ended
    finally:
        own.settle_soon = settle_soon  # type: ignore[method-assign]


async def settle(client: txnframework.Client, ended: list[TxnID]) -> None:
    """Settle the transactions that ``unsettled`` collected, outside of the measurement."""
    coordinator = await client.host.coordinator()
    while ended:
        await asyncio.gather(*map(coordinator.settle, ended[:SETTLED_TOGETHER]))
        del ended[:SETTLED_TOGETHER]


def machine() -> dict[str, object]:
    """Return a description of the machine and its load."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "txnframework": txnframework.__version__,
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
