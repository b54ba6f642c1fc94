"""A harness whose clients run in child processes, for backends that several processes share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from txnframework.testing._remote.frames import HARNESS, OPENED, Known, Opening
from txnframework.testing._remote.process import ClientProcess
from txnframework.testing.clock import VirtualEnvironment, run_ready
from txnframework.testing.harness import Crashing, Harness

R = TypeVar("R")

_ROUNDS_MAX = 20
"""The limit of ``settle`` rounds, so that work that never ends cannot block a test."""
_STEPS_OF_A_SESSION = 24
"""The number of steps in which time advances after a crash: enough for the heartbeats of the living clients."""


class Processes(Harness[R], Crashing[R]):
    """
    Runs each ``open`` of another harness, ``client``, in a child process, so that a suite tests across processes.

    The test gets a proxy for the object in the child. The proxy provides the same interfaces, and so do the proxies of
    its watches, leases and ledgers. Errors keep their attributes. The child's clock follows the test's clock: each call
    and ``pass_time`` advance it. A crash is a ``kill -9``.

    ``client`` is a harness class of an importable module, and finds its data by the directory alone. If it inherits
    from ``Disconnecting`` or ``Paired``, add those as bases here too; this class implements their methods.

        class SqlProcesses(Processes[IMetadataStore], Disconnecting[IMetadataStore]):
            client = SqlMetadataHarness
            session_ms = 12_000


        class TestSqlAcrossProcesses(MetadataStoreSuite):
            harness = SqlProcesses
    """

    client: ClassVar[type[Harness[Any]]]
    session_ms: ClassVar[int] = 0
    """Milliseconds that the backend may keep the session of a killed process."""
    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that are slow to import; children are forked from one process that has imported them."""

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        # This harness opens no client; it only removes the data at the end.
        self._data = self.client(directory, self.environment)
        self._processes: dict[object, ClientProcess] = {}

    def open(self) -> AbstractAsyncContextManager[R]:
        """Open a client in a new process, which ends with the block."""
        return self._open(None)

    def open_as(self, identity: str) -> AbstractAsyncContextManager[R]:
        """Open a client that belongs to the metadata store of this identity; see ``Paired``."""
        return self._open(identity)

    @asynccontextmanager
    async def _open(self, identity: str | None) -> AsyncIterator[Any]:
        environment = self.environment
        opening = Opening(self.client, self.directory, environment.random_bits(64), environment.now_ms(), identity)
        process = await ClientProcess.start(opening, ("pytest", self.client.__module__, *self.preload), environment)
        try:
            opened = await process.opened()
            self._processes[opened] = process
            try:
                yield opened
            finally:
                del self._processes[opened]
                await process.leave()
        finally:
            await process.end()

    async def settle(self) -> None:
        """Let all processes finish their delayed work and the calls that follow from it, until no new call is made."""
        for _ in range(_ROUNDS_MAX):
            await run_ready()
            asked = self._asked()
            await self._everywhere("settle")
            # If settling advances a child's clock, the other processes follow with their next call.
            behind_ms = max((process.now_ms for process in self._living()), default=0) - self.now_ms()
            if behind_ms > 0:
                await self.environment.advance(behind_ms)
            await run_ready()
            if self._asked() == asked:
                return

    async def pass_time(self, by_ms: int) -> None:
        """Advance the clock here and in all processes."""
        await super().pass_time(by_ms)
        await self._everywhere("pass_time", 0)

    async def crash(self, opened: R) -> None:
        """Kill the client's process, and wait until the backend has expired its session."""
        self._processes[opened].kill()
        for _ in range(_STEPS_OF_A_SESSION):
            await self.pass_time(self.session_ms // _STEPS_OF_A_SESSION)
            await self.settle()

    async def cut(self, opened: R) -> None:
        """Disconnect the client; see ``Disconnecting``."""
        await self._processes[opened].begin(HARNESS, "cut", (Known(OPENED),))

    async def restore(self, opened: R) -> None:
        """Let the client reconnect; see ``Disconnecting``."""
        await self._processes[opened].begin(HARNESS, "restore", (Known(OPENED),))

    async def destroy(self) -> None:
        """Remove the data."""
        await self._data.destroy()

    def _living(self) -> list[ClientProcess]:
        return [process for process in self._processes.values() if not process.was_killed]

    def _asked(self) -> int:
        return sum(process.asked for process in self._living())

    async def _everywhere(self, method: str, *arguments: Any) -> None:
        await asyncio.gather(*(process.begin(HARNESS, method, arguments) for process in self._living()))
