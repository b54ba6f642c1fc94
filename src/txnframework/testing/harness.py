"""What a plugin's author writes for the suites: how to open, restart, race, crash and cut off a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from txnframework.testing.clock import VirtualEnvironment, run_ready

R = TypeVar("R")


class Harness(ABC, Generic[R]):
    """
    One test's data; every ``open`` is another client of the same data.

    A harness is made for each test, with an empty directory of its own, and destroyed after it. ``environment`` is
    what the opened ones are to be given; its time stands still unless a test lets it pass. Harnesses that work
    together are made with one environment.
    """

    patience_s: ClassVar[float] = 10.0
    """How long, in seconds of real time, a test waits for what must happen before it fails."""

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        self.directory = directory
        self.environment = environment or VirtualEnvironment()

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[R]:
        """Open a client. Opened again after closing: a restart; opened while another is open: a race."""

    async def settle(self) -> None:
        """Wait for what the backend does late, such as a wake-up on its way; the only place that may admit it."""
        await run_ready()

    async def pass_time(self, by_ms: int) -> None:
        """Let this many milliseconds pass on the clock that the opened ones see."""
        await self.environment.advance(by_ms)

    def now_ms(self) -> int:
        """Return the time on that clock."""
        return self.environment.now_ms()

    async def destroy(self) -> None:
        """Remove everything; called once, after the test, when no client is open."""


class Crashing(ABC, Generic[R]):
    """Mixed into a Harness that can crash a client; unlocks the crash tests."""

    @abstractmethod
    async def crash(self, opened: R) -> None:
        """
        Lose all memory of this client, as kill -9 would, and return when the backend knows that its session is gone.

        Leaving the ``open`` block afterwards must be harmless.
        """


class Disconnecting(ABC, Generic[R]):
    """Mixed into a Harness that can cut a client off; unlocks the tests of lost replies and lost wake-ups."""

    @abstractmethod
    async def cut(self, opened: R) -> None:
        """Drop the connection so that the next write is applied and its reply is lost; nothing else gets through."""

    @abstractmethod
    async def restore(self, opened: R) -> None:
        """Let it connect again, and return when it has."""


class Belonging(ABC, Generic[R]):
    """Mixed into a ledger store's Harness that can open it for a given metadata store."""

    @abstractmethod
    def open_as(self, identity: str) -> AbstractAsyncContextManager[R]:
        """Open a client that says it belongs to the metadata store of this identity."""
