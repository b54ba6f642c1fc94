"""What a plugin's author writes for the suites: how to open, restart, race, crash and cut off a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from txnframework.model import Key
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


class Expiring(ABC, Generic[R]):
    """
    Mixed into a Harness whose sessions end by the clock that ``pass_time`` moves; unlocks the tests of their time.

    A session ends on its own when its client has reached nobody for ``session_ms``.
    """

    session_ms: ClassVar[int]
    """How long a session outlives its client's last word, in milliseconds of that clock."""


class Misleading(ABC, Generic[R]):
    """
    Mixed into a Harness that can tell a client's watches of a change that there was not; unlocks the tests of hints.

    Whoever can reach the backend's notifications may send such a one, whatever it may read and write.
    """

    @abstractmethod
    async def mislead(self, opened: R, target: Key | str) -> None:
        """
        Wake the client's watches on a record, or on the ledger of a name, by a hint that is false.

        The hint holds all that a notification of this backend can hold, or ever held: a value, entries.
        """


class Belonging(ABC, Generic[R]):
    """Mixed into a ledger store's Harness that can open it for a given metadata store."""

    @abstractmethod
    def open_as(self, identity: str) -> AbstractAsyncContextManager[R]:
        """Open a client that says it belongs to the metadata store of this identity."""
