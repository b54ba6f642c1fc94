"""One simulated world: a space that survives, and the processes that open it, on one loop in virtual time."""

from __future__ import annotations

import asyncio
import importlib
from functools import cache
from typing import Any

import crash_log_family

from txnframework.config import Config, RetentionSection, TransactionsSection
from txnframework.config._sections import DomainsSection
from txnframework.model import KeyRange, Reach, Record
from txnframework.plugin import PluginRegistry, load_plugins
from txnframework.testing import VirtualEnvironment
from txnframework_memory.space import MemorySpace
from txnframework_simulation.simulator import Machine, SimulatedLoop, SimulatedStores
from txnframework_simulation.simulator import World as SimulatedWorld

__all__ = ["COLLECTED_AFTER_MS", "SETTLED_AFTER_MS", "Machine", "World"]

RETENTION_MS = 30_000
COORDINATORS = 4
"""One for each of the machines that meet, and one more: the steps that take over a coordinator are alike for all."""
TRANSACTIONS = {
    "coordinators": COORDINATORS,
    "timeout_ms": 20_000,
    "retention_ms": RETENTION_MS,
    "max_clock_skew_ms": 100,
    "sweep_interval_ms": 10_000,
}
EVERYTHING_MAX = 10_000
NOTHING: dict[str, Any] = {}
SETTLED_AFTER_MS = 45_000
"""Time after which every deadline has passed, every sweep has run, and every ended transaction has taken effect."""
COLLECTED_AFTER_MS = RETENTION_MS + 30_000


class World(SimulatedWorld):
    """``space`` holds what survives."""

    space: MemorySpace

    def __init__(self, seed: int, family: str = "metadata", reach: Reach = Reach.PARTITION) -> None:
        self.family = family
        loop = SimulatedLoop(VirtualEnvironment(seed), seed)
        # Under seed 0 every call takes one round, so that a walk has few steps; else calls overtake each other.
        pause = loop.pause if seed else _one_round
        self.space = space = MemorySpace(loop.environment)
        super().__init__(loop, space, registry(family), pause, reach=reach)

    def start(self, name: str, transactions: dict[str, Any] = NOTHING, retention: dict[str, Any] = NOTHING) -> Machine:
        """Start a process and open its client, with settings of these tables."""
        machine = self.machine(name)
        base = Config(
            transactions=TransactionsSection(**(TRANSACTIONS | transactions)),
            retention=RetentionSection(**retention),
            domains=crash_log_family.DOMAINS if self.family == "log" else DomainsSection(),
            pending_acks={} if self.family == "metadata" else crash_log_family.PENDING_ACKS,
        )
        machine.open(self.config(name, base))
        return machine

    def records(self, *prefixes: str) -> list[Record]:
        """Return the current records of the space whose keys have this prefix."""
        found: list[Record] = []
        for prefix in prefixes:
            end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
            found += self.space.records.scan(KeyRange(prefix, end), EVERYTHING_MAX).records
        return found


@cache
def registry(family: str) -> PluginRegistry:
    """Return the plugins under test, of one family or ``both``, with the stores of the simulation."""
    of_family = {"log": ("txnframework_legacy",), "metadata": ("txnframework_metadata",)}
    families = of_family.get(family, ("txnframework_metadata", "txnframework_legacy"))
    names = (*families, "txnframework_dispatchers")
    return load_plugins([*(importlib.import_module(f"{name}.plugin") for name in names), SimulatedStores()])


async def _one_round() -> None:
    await asyncio.sleep(0)
