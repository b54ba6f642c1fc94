"""Simulated machines: processes with a host and a client of their own, over stores that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from functools import cache
from itertools import count
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from txnframework.broker import open_host
from txnframework.client import Client
from txnframework.config import Config, LedgerSection, MetadataSection
from txnframework.environment import Environment
from txnframework.errors import PluginError
from txnframework.interfaces import ILease, ILedgerStore, IMetadataStore
from txnframework.model import Reach
from txnframework.plugin import PluginRegistry, Provider, StoreContext, hookimpl, load_plugins
from txnframework.testing.clock import VirtualEnvironment
from txnframework_memory import MemoryLedgerStore, MemoryMetadataStore
from txnframework_simulation.simulator.faulty_stores import (
    FaultyLedgerStore,
    FaultyMetadataStore,
)
from txnframework_simulation.simulator.loop import SimulatedLoop
from txnframework_simulation.simulator.schedule import Process
from txnframework_simulation.simulator.store_calls import StoreCalls

T = TypeVar("T")

Pause = Callable[[], Awaitable[None]]


class Space(Protocol):
    """
    Stores in the memory of the simulation, which survive every machine.

    Each machine opens them once.
    """

    async def open_metadata(self, pause: Pause) -> IMetadataStore:
        """Open the metadata store with a session of its own; ``pause`` is awaited where a real one would wait."""

    async def open_ledgers(self, identity: str | None, pause: Pause) -> ILedgerStore:
        """Open the ledger store that belongs to a metadata store."""


class Machine:
    """
    A process with its own client, and with one client of each other deployment in ``others``.

    ``kill`` loses its memory, and ``close`` ends it as a program would.
    """

    def __init__(self, world: World, name: str, environment: Environment, calls: StoreCalls) -> None:
        self.process = Process(name)
        self.environment = environment
        self.calls = calls
        self.client: Client
        self.others: tuple[Client, ...] = ()
        self._world = world
        self._metadata: list[IMetadataStore] = []
        self._ledgers: list[ILedgerStore] = []
        self._leases: list[ILease] = []
        self._over = asyncio.Event()

    @property
    def name(self) -> str:
        """The name of the machine."""
        return self.process.name

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task in this process."""
        return self._world.loop.spawn(self.process, work)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in this process to its end."""
        task = self.spawn(work)
        self._world.loop.run_until(task.done)
        return task.result()

    async def live(self, config: Config, opened: Callable[[], object]) -> None:
        """Open the clients, call ``opened``, and close the clients when asked to; runs in this process."""
        async with AsyncExitStack() as stack:
            clients = []
            for deployment in range(self._world.deployments):
                named = self._world.config(self.name, config, deployment)
                host = await open_host(named, self._world.registry, self.environment)
                stack.push_async_callback(host.close)
                clients.append(Client(host))
            self.client, *others = clients
            self.others = tuple(others)
            opened()
            await self._over.wait()

    def kill(self) -> None:
        """
        Lose the memory of this process.

        Its sessions last until ``end_sessions``.
        """
        self.process.kill()

    def end_sessions(self) -> None:
        """Let the stores notice that the process is gone, and end its sessions."""
        ended = self._world.loop.spawn(self._world.loop.outside, self.gone())
        if not self._world.loop.is_running():
            self._world.loop.run_until(ended.done)

    def lose_leases(self) -> None:
        """Let the leases of the process expire although it still runs; its connections stay."""
        ended = self._world.loop.spawn(self._world.loop.outside, self.lose_leases_now())
        self._world.loop.run_until(ended.done)

    def close(self) -> None:
        """Close the client as a program does when it leaves ``txnframework.open``."""
        self.ask_to_close()
        self._world.loop.run_until(self._living.done)
        self._living.result()

    def ask_to_close(self) -> asyncio.Task[None]:
        """Ask the process to close; return the task that ends with it."""
        self._over.set()
        return self._living

    def start(self, config: Config, opened: Callable[[], object] = lambda: None) -> asyncio.Task[None]:
        """Begin to open the client; return the task that ends with it."""
        self._living = self.spawn(self.live(config, opened))
        return self._living

    def open(self, config: Config) -> None:
        """Open the client."""
        opened = asyncio.Event()
        living = self.start(config, opened.set)
        self._world.loop.run_until(lambda: opened.is_set() or living.done())
        if living.done():
            living.result()

    async def open_metadata(self, deployment: int) -> IMetadataStore:
        """Open the metadata store of a deployment for this machine's host."""
        store = await self._world.spaces[deployment].open_metadata(self._world.pause)
        self._metadata.append(store)
        return IMetadataStore(FaultyMetadataStore(store, self.calls, self._leases.append, self._world.reach))

    async def open_ledgers(self, deployment: int, identity: str | None) -> ILedgerStore:
        """Open the ledger store of a deployment for this machine's host."""
        ledgers = await self._world.spaces[deployment].open_ledgers(identity, self._world.pause)
        self._ledgers.append(ledgers)
        return ILedgerStore(FaultyLedgerStore(ledgers, self.calls))

    async def gone(self) -> None:
        """Let the stores notice that the process is gone."""
        for store in self._metadata:
            cast(Any, store).lose()
        # A database works on a statement whose client is gone.
        await self.calls.late_applied()
        for store in self._metadata:
            await store.close()
        for ledgers in self._ledgers:
            await ledgers.close()

    async def lose_leases_now(self) -> None:
        """Release the leases of the process although it still runs."""
        leases, self._leases[:] = tuple(self._leases), []
        for lease in leases:
            await lease.release()


class World:
    """
    One simulated world: stores, and the machines that open them, on one loop in virtual time.

    The steps of a store are as wide as ``reach``. The stores of ``space`` await ``pause`` where real stores would wait.
    ``others``: the stores of other deployments, which each machine opens too.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        space: Space,
        registry: PluginRegistry,
        pause: Pause,
        *,
        reach: Reach = Reach.DATABASE,
        others: Iterable[Space] = (),
    ) -> None:
        self.environment: VirtualEnvironment = loop.environment
        self.loop = loop
        self.spaces = (space, *others)
        self.registry = registry
        self.pause = pause
        self.reach = reach
        self.machines: dict[str, Machine] = {}
        self._name = f"world-{next(_numbers)}"
        _worlds[self._name] = self

    def machine(self, name: str, environment: Environment | None = None, calls: StoreCalls | None = None) -> Machine:
        """Create a machine, which is opened later; ``environment``: its own clock."""
        machine = Machine(self, name, environment or self.environment, calls or StoreCalls())
        self.machines[name] = machine
        return machine

    @property
    def deployments(self) -> int:
        """How many deployments there are."""
        return len(self.spaces)

    def config(self, machine: str, base: Config, deployment: int = 0) -> Config:
        """Return a configuration with the stores of a deployment, as one machine sees them."""
        url = f"{SCHEME}://{self._name}/{machine}/{deployment}"
        return msgspec.structs.replace(base, metadata=MetadataSection(url=url), ledger=LedgerSection(url=url))

    def end(self) -> None:
        """Let everything go."""
        _worlds.pop(self._name, None)
        self.loop.close()


SCHEME = "simulated"


class SimulatedStores:
    """The plugin that opens ``simulated://<world>/<machine>/<number of a deployment>``."""

    @hookimpl
    def txnframework_metadata_stores(self) -> list[Provider[StoreContext, IMetadataStore]]:
        """Provide ``simulated``."""
        return [Provider(SCHEME, self._open_metadata, MemoryMetadataStore)]

    @hookimpl
    def txnframework_ledger_stores(self) -> list[Provider[StoreContext, ILedgerStore]]:
        """Provide ``simulated``."""
        return [Provider(SCHEME, self._open_ledgers, MemoryLedgerStore)]

    async def _open_metadata(self, context: StoreContext) -> IMetadataStore:
        machine, deployment = _place(context.url)
        return await machine.open_metadata(deployment)

    async def _open_ledgers(self, context: StoreContext) -> ILedgerStore:
        machine, deployment = _place(context.url)
        return await machine.open_ledgers(deployment, context.identity)


def _place(url: str) -> tuple[Machine, int]:
    parts = urlsplit(url)
    machine, deployment = parts.path.strip("/").split("/")
    return _worlds[parts.netloc].machines[machine], int(deployment)


@cache
def registry() -> PluginRegistry:
    """Return the installed plugins, with the stores of the simulation; those that cannot be loaded are left out."""
    ignored: list[PluginError] = []
    return load_plugins([SimulatedStores()], on_error=ignored.append)


_numbers = count()
_worlds: dict[str, World] = {}
