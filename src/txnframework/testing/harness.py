"""Base classes for the harnesses of the suites: how a backend is opened, restarted, crashed and disconnected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from txnframework.interfaces import IDispatcher, ILedgerStore, IMetadataStore
from txnframework.model import Key
from txnframework.plugin import DispatcherContext, Provider
from txnframework.testing.clock import VirtualEnvironment, run_ready

R = TypeVar("R")


class Harness(ABC, Generic[R]):
    """
    The data of one test; each call of ``open`` opens another client of the same data.

    Each test gets a new harness with an empty directory of its own; the harness is destroyed after the test. Pass
    ``environment`` to everything that the harness opens; its clock moves only when the test advances it. Harnesses that
    are used together share one environment.
    """

    patience_s: ClassVar[float] = 60.0
    """Seconds of real time that a test waits for an expected event before it fails."""

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        self.directory = directory
        self.environment = environment or VirtualEnvironment()

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[R]:
        """
        Open a client. A second client after the first is closed is a restart; one beside an open client is a race.
        """

    async def settle(self) -> None:
        """Wait for the backend's delayed work, such as wake-ups in flight; only this method may wait for it."""
        await run_ready()

    async def pass_time(self, by_ms: int) -> None:
        """Advance the clock of the opened clients by ``by_ms`` milliseconds."""
        await self.environment.advance(by_ms)

    def now_ms(self) -> int:
        """Return the time of that clock, in milliseconds since 1970."""
        return self.environment.now_ms()

    async def destroy(self) -> None:
        """Remove all data; called once, after the test, when all clients are closed."""


class Crashing(ABC, Generic[R]):
    """Mixin for a ``Harness`` that can crash a client; enables the crash tests."""

    @abstractmethod
    async def crash(self, opened: R) -> None:
        """
        Discard all state of this client, as ``kill -9`` does; return when the backend has ended its session.

        The test leaves the ``open`` block afterwards, which must do no harm.
        """


class Disconnecting(ABC, Generic[R]):
    """Mixin for a ``Harness`` that can disconnect a client; enables the tests of lost replies and lost wake-ups."""

    @abstractmethod
    async def cut(self, opened: R) -> None:
        """Disconnect the client: its next write is applied and the reply is lost; everything else is blocked."""

    @abstractmethod
    async def restore(self, opened: R) -> None:
        """Let the client reconnect, and return when it is connected."""


class Expiring(ABC, Generic[R]):
    """
    Mixin for a ``Harness`` whose sessions expire by the clock of ``pass_time``; enables the tests of expiry.

    A session expires when its client has not reached the backend for ``session_ms``.
    """

    session_ms: ClassVar[int]
    """Milliseconds, on that clock, from a client's last contact to the end of its session."""


class Misleading(ABC, Generic[R]):
    """
    Mixin for a ``Harness`` that can send a client's watches a false notification; enables the tests of hints.

    Any client that can reach the backend's notifications may send one, whatever its permissions on data.
    """

    @abstractmethod
    async def mislead(self, opened: R, target: Key | str) -> None:
        """
        Wake the client's watches on a record, or on the ledger of a name, by a false notification.

        The notification carries all that one of this backend can carry, or could carry in any release: a value,
        entries.
        """


class OwnRows(ABC):
    """A connection of the application to its table of rows, as the tests of ``ICoCommitStore`` use it."""

    refusal: ClassVar[type[Exception]]
    """The error that the driver raises for a COMMIT after ``refuse_commit``."""

    connection: object
    """The argument of ``join``."""

    @abstractmethod
    async def insert(self, key: str) -> None:
        """Insert a row; begin a transaction if none is open."""

    @abstractmethod
    async def commit(self) -> None:
        """Commit without the store, as an application does by mistake."""

    @abstractmethod
    async def is_open(self) -> bool:
        """Return whether a transaction is open on the connection."""

    @abstractmethod
    async def refuse_commit(self) -> None:
        """Make the database refuse the COMMIT of the open transaction, for example by a deferred constraint."""

    @abstractmethod
    async def lose_commit(self, applied: bool) -> None:
        """Lose the connection at the next COMMIT, before or after the database has applied it."""


class CoCommitting(ABC, Generic[R]):
    """Mixin for a ``Harness`` whose database has a table of the application; enables the tests of ICoCommitStore."""

    kinds: ClassVar[tuple[str, ...]] = ("",)
    """The kinds of connections; each test runs with every kind."""

    @abstractmethod
    def connect(self, opened: R, kind: str) -> AbstractAsyncContextManager[OwnRows]:
        """Open a connection of the application to the database of the store."""

    @abstractmethod
    def connect_elsewhere(self, kind: str) -> AbstractAsyncContextManager[OwnRows]:
        """Open a connection of the application to another database."""

    @abstractmethod
    async def committed_rows(self) -> frozenset[str]:
        """Return the keys of the committed rows in the database of the store."""


class Paired(ABC, Generic[R]):
    """Mixin for the ``Harness`` of a ledger store that can be opened for a given metadata store."""

    @abstractmethod
    def open_as(self, identity: str) -> AbstractAsyncContextManager[R]:
        """Open a client that declares ``identity`` as the identity of its metadata store."""


class Colocated(ABC):
    """Mixin for the ``Harness`` of a ledger store beside records; enables the tests of one-step appends."""

    @abstractmethod
    def open_with_records(self) -> AbstractAsyncContextManager[tuple[ILedgerStore, IMetadataStore]]:
        """Open a client of the ledgers, and a client of the records of the same database."""


SEGMENT = "segment://public/default/suite/0000-ffff-0"
SUBSCRIPTION = "suite"


class DispatcherHarness(Harness[IDispatcher]):
    """Opens dispatchers of one subscription on one segment; subclass it and set ``provider``."""

    provider: ClassVar[Provider[DispatcherContext, IDispatcher]]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[IDispatcher]:
        """Open a dispatcher."""
        yield await self.provider.open(DispatcherContext(SEGMENT, SUBSCRIPTION, self.environment))
