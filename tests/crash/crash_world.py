"""One simulated world: a space that survives, and the processes that open it, on one loop in virtual time."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from itertools import count
from typing import Any, TypeVar
from urllib.parse import urlsplit

from txnframework import Client
from txnframework.broker import open_host
from txnframework.config import Config, LedgerSection, MetadataSection, RetentionSection, TransactionsSection
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model import KeyRange, Record
from txnframework.plugin import PluginRegistry, Provider, StoreContext, hookimpl, load_plugins
from txnframework.testing import VirtualEnvironment
from txnframework.testing.simulation import (
    Calls,
    FaultyAtomicStore,
    FaultyLedgerStore,
    FaultyMetadataStore,
    Process,
    SimulatedLoop,
)
from txnframework_memory import MemoryMetadataStore
from txnframework_memory.space import MemorySpace

T = TypeVar("T")

RETENTION_MS = 30_000
TRANSACTIONS = {
    "timeout_ms": 20_000,
    "retention_ms": RETENTION_MS,
    "max_clock_skew_ms": 100,
    "sweep_interval_ms": 10_000,
}
EVERYTHING_MAX = 10_000
NOTHING: dict[str, Any] = {}
SETTLED_AFTER_MS = 45_000
"""By then every deadline has passed, every sweep has come round, and everything that ended has taken effect."""
COLLECTED_AFTER_MS = RETENTION_MS + 30_000


class Machine:
    """A process with a client of its own; ``kill`` takes its memory, ``close`` ends it as a program would."""

    def __init__(self, world: World, name: str) -> None:
        self.process = Process(name)
        self.calls = Calls()
        self.client: Client
        self._world = world
        self._opened: list[Any] = []
        self._over = asyncio.Event()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task in this process."""
        return self._world.loop.spawn(self.process, work)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in this process to its end."""
        task = self.spawn(work)
        self._world.loop.run_until(task.done)
        return task.result()

    def kill(self) -> None:
        """Lose the memory of this process; its sessions live on until ``end_sessions``."""
        self.process.kill()

    def end_sessions(self) -> None:
        """The stores notice that the process is gone."""
        for opened in self._opened:
            opened.crash()

    def lose_sessions(self) -> None:
        """The stores take the process for gone, though it only stands still: its leases go, its connections stay."""
        for opened in self._opened:
            if isinstance(opened, MemoryMetadataStore):
                self._world.space.end_session(opened.session)

    def close(self) -> None:
        """Close the client as a program does when it leaves ``txnframework.open``."""
        self._over.set()
        self._world.loop.run_until(self._living.done)
        self._living.result()

    def open(self, transactions: dict[str, Any], retention: dict[str, Any]) -> None:
        """Open the client."""
        opened = asyncio.Event()

        async def live() -> None:
            config = self._world.config(self.process.name, transactions, retention)
            host = await open_host(config, registry(), self._world.environment)
            self.client = Client(host)
            opened.set()
            await self._over.wait()
            await host.close()

        self._living = self.spawn(live())
        self._world.loop.run_until(lambda: opened.is_set() or self._living.done())
        if self._living.done():
            self._living.result()

    async def open_metadata(self) -> IMetadataStore:
        store = await self._world.space.open_metadata(self._world.pause)
        self._opened.append(store)
        return (FaultyAtomicStore if self._world.atomic else FaultyMetadataStore)(store, self.calls)

    async def open_ledgers(self, identity: str) -> ILedgerStore:
        ledgers = await self._world.space.open_ledgers(identity, self._world.pause)
        self._opened.append(ledgers)
        return FaultyLedgerStore(ledgers, self.calls)


class World:
    """``space`` holds what survives; with ``atomic`` False no process's metadata store has atomic batches."""

    def __init__(self, seed: int, atomic: bool) -> None:
        self.atomic = atomic
        self.environment = VirtualEnvironment(seed)
        self.loop = SimulatedLoop(self.environment, seed)
        self.space = MemorySpace(self.environment)
        self.machines: dict[str, Machine] = {}
        # Under seed 0 every call takes one round, so that a walk has few steps; else calls overtake each other.
        self.pause: Callable[[], Awaitable[None]] = self.loop.pause if seed else _one_round
        self._name = f"world-{next(_numbers)}"

    def start(self, name: str, transactions: dict[str, Any] = NOTHING, retention: dict[str, Any] = NOTHING) -> Machine:
        """Start a process and open its client, with settings of these tables."""
        machine = self.machines[name] = Machine(self, name)
        _worlds[self._name] = self
        machine.open(transactions, retention)
        return machine

    def records(self, *prefixes: str) -> list[Record]:
        """Return the records whose keys begin so, as they stand in the space."""
        found: list[Record] = []
        for prefix in prefixes:
            end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
            found += self.space.records.scan(KeyRange(prefix, end), EVERYTHING_MAX).records
        return found

    def end(self) -> None:
        """Let everything go."""
        _worlds.pop(self._name, None)
        self.loop.close()

    def config(self, machine: str, transactions: dict[str, Any], retention: dict[str, Any]) -> Config:
        """Return the configuration of one process."""
        url = f"simulated://{self._name}/{machine}"
        return Config(
            metadata=MetadataSection(url=url),
            ledger=LedgerSection(url=url),
            transactions=TransactionsSection(**(TRANSACTIONS | transactions)),
            retention=RetentionSection(**retention),
        )


class SimulatedStores:
    """The plugin that opens ``simulated://<world>/<machine>``."""

    @hookimpl
    def txnframework_metadata_stores(self) -> list[Provider[StoreContext, IMetadataStore]]:
        return [Provider("simulated", self._metadata, FaultyAtomicStore)]

    @hookimpl
    def txnframework_ledger_stores(self) -> list[Provider[StoreContext, ILedgerStore]]:
        return [Provider("simulated", self._ledgers, FaultyLedgerStore)]

    async def _metadata(self, context: StoreContext) -> IMetadataStore:
        return await _machine(context.url).open_metadata()

    async def _ledgers(self, context: StoreContext) -> ILedgerStore:
        return await _machine(context.url).open_ledgers(context.identity)


@cache
def registry() -> PluginRegistry:
    """Return the plugins under test, with the stores of the simulation."""
    names = ("txnframework_metadata", "txnframework_dispatchers")
    return load_plugins([*(importlib.import_module(f"{name}.plugin") for name in names), SimulatedStores()])


async def _one_round() -> None:
    await asyncio.sleep(0)


def _machine(url: str) -> Machine:
    parts = urlsplit(url)
    return _worlds[parts.netloc].machines[parts.path.strip("/")]


_numbers = count()
_worlds: dict[str, World] = {}
