"""A harness whose clients live in processes of their own, for backends that several processes share."""

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
"""How often what is asked for upon an answer is waited for: what goes on for ever must not hold up a test."""
_STEPS_OF_A_SESSION = 24
"""In how many steps time passes after a crash: enough for the heartbeats of those who live."""


class Processes(Harness[R], Crashing[R]):
    """
    Runs each ``open`` of another harness, ``client``, in a child process: a suite then holds across processes.

    What the test gets stands for the object in the child: it provides what that one provides, and so do the watches,
    leases and ledgers that it hands out. Errors come with their attributes. The child's clock is moved by the test's:
    ``pass_time`` and every call bring it along. A crash is a ``kill -9``.

    ``client`` is a class of an importable module, whose harness finds its data by the directory alone. Where it is
    ``Disconnecting`` or ``Belonging``, name those as further bases; their methods are here.

        class SqlProcesses(Processes[IMetadataStore], Disconnecting[IMetadataStore]):
            client = SqlMetadataHarness
            session_ms = 12_000


        class TestSqlAcrossProcesses(MetadataStoreSuite):
            harness = SqlProcesses
    """

    client: ClassVar[type[Harness[Any]]]
    session_ms: ClassVar[int] = 0
    """How long the backend may believe in the session of a process that was killed."""
    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that every child would take long to import; the children are forked from one process that has them."""

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        # It opens nothing, and removes the data at the end.
        self._data = self.client(directory, self.environment)
        self._processes: dict[object, ClientProcess] = {}

    def open(self) -> AbstractAsyncContextManager[R]:
        """Open a client in a new process, which ends with the block."""
        return self._open(None)

    def open_as(self, identity: str) -> AbstractAsyncContextManager[R]:
        """Open a client that belongs to the metadata store of this identity; see Belonging."""
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
        """
        Let every process do what it does late, and what the test's side does upon that: until it asks for nothing more.
        """
        for _ in range(_ROUNDS_MAX):
            await run_ready()
            asked = self._asked()
            await self._everywhere("settle")
            # Where settling lets time pass, the others follow with their next call.
            behind_ms = max((process.now_ms for process in self._living()), default=0) - self.now_ms()
            if behind_ms > 0:
                await self.environment.advance(behind_ms)
            await run_ready()
            if self._asked() == asked:
                return

    async def pass_time(self, by_ms: int) -> None:
        """Let time pass here and in every process."""
        await super().pass_time(by_ms)
        await self._everywhere("pass_time", 0)

    async def crash(self, opened: R) -> None:
        """Kill its process, and wait until its session has expired for everybody else."""
        self._processes[opened].kill()
        for _ in range(_STEPS_OF_A_SESSION):
            await self.pass_time(self.session_ms // _STEPS_OF_A_SESSION)
            await self.settle()

    async def cut(self, opened: R) -> None:
        """Cut it off; see Disconnecting."""
        await self._processes[opened].begin(HARNESS, "cut", (Known(OPENED),))

    async def restore(self, opened: R) -> None:
        """Let it connect again; see Disconnecting."""
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
