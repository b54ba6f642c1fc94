"""Stores in memory for the tests of programs that use txnframework: with a clock to advance, and faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from itertools import count
from typing import Any, TypeVar, cast, overload

import msgspec

import txnframework
from txnframework import blocking
from txnframework.client import Client, Message
from txnframework.errors import InvalidInput, OutcomeUnknown
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model.metadata import Put
from txnframework.model.paths import is_header
from txnframework.model.records import TransactionHeader
from txnframework.model.steps import Step
from txnframework.model.transactions import State
from txnframework.plugin import PluginRegistry, load_plugins
from txnframework.runtime.proxy import ForwardingProxy
from txnframework.serializers import Serializer
from txnframework.testing.clock import AdvanceableEnvironment
from txnframework.testing.connection import StoreConnection, intercept_calls

R = TypeVar("R")
T = TypeVar("T")

_numbers = count()
RETRIES: Mapping[str, object] = {"retries_max": 2, "retry_delay_ms": 1, "retry_delay_ms_max": 1}
"""The default section ``client`` of these stores: a fault is noticed after a few ms, and not after seconds."""


class _Connection(StoreConnection):
    """The connection to the stores, which can lose the reply to a commit."""

    loses_commit_reply = False

    async def step(self, name: str, call: Callable[[], Awaitable[R]], arguments: tuple[Any, ...] = ()) -> R:
        if self.loses_commit_reply and not self.is_cut and _is_commit(arguments):
            self.loses_commit_reply = False
            await call()
            self.is_cut = True
            raise OutcomeUnknown("the reply to a commit was lost by the test")
        return await super().step(name, call, arguments)


class MemoryStores:
    """
    Empty stores in memory; each ``open`` is another client of them, as another process would be.

    All clients share ``clock``. They run in one event loop at a time. The faults apply to all clients that ``open`` and
    ``open_blocking`` return, and not to ``read``. Needs the distributions ``txnframework-memory``,
    ``txnframework-metadata`` and ``txnframework-dispatchers``.
    """

    def __init__(self) -> None:
        self.url = f"memory://for-tests-{next(_numbers)}"
        self.clock = AdvanceableEnvironment()
        self._connection = _Connection()
        self._plugins: PluginRegistry | None = None

    def open(self, **sections: Mapping[str, object]) -> AbstractAsyncContextManager[Client, None]:
        """Open a client, as ``txnframework.open`` does; ``sections`` are sections of the configuration."""
        return txnframework.open(self._config(sections), registry=self._intercepted(), environment=self.clock)

    def open_blocking(self, **sections: Mapping[str, object]) -> AbstractContextManager[blocking.Client, None]:
        """Open a client without ``await``, as ``txnframework.blocking.open`` does."""
        return blocking.open(self._config(sections), registry=self._intercepted(), environment=self.clock)

    @overload
    async def read(self, topic: str, *, serializer: None = None) -> list[Message]: ...

    @overload
    async def read(self, topic: str, *, serializer: Serializer[T]) -> list[Message[T]]: ...

    async def read(self, topic: str, *, serializer: Serializer[Any] | None = None) -> list[Message[Any]]:
        """Return the committed messages of a topic, from the first to the last that can be read now."""
        opening = txnframework.open(self._config({}), registry=self._registry(), environment=self.clock)
        async with opening as client, await client.reader(topic, serializer=serializer) as reader:
            return [message async for message in reader]

    async def advance(self, by_ms: int) -> None:
        """Advance the clock by ``by_ms``, and let the program run everything that is due until then."""
        await self.clock.advance(by_ms)

    def lose_next_commit_reply(self) -> None:
        """
        Let the next commit take effect without a reply, and make the stores unavailable until ``restore``.

        The committing call raises OutcomeUnknown. Afterwards, ``Client.outcome`` returns COMMITTED.
        """
        self._connection.loses_commit_reply = True

    @contextmanager
    def unavailable(self) -> Iterator[None]:
        """Make the stores unavailable during the ``with`` block: calls raise Unavailable, and nothing is stored."""
        self._connection.is_cut = True
        try:
            yield
        finally:
            self.restore()

    def restore(self) -> None:
        """Make the stores available again, and forget faults that have not happened."""
        self._connection.loses_commit_reply = False
        self._connection.restore()

    def kill(self, client: Client) -> None:
        """
        End a client as a kill of its process does; all of its calls raise Closed from now on.

        Its session ends, so other clients abort its open transactions and take over its subscriptions.

        :raises InvalidInput: the client was not opened by these stores.
        """
        stores = (client.host.metadata, client.host.ledgers)
        if not all(hasattr(store, "crash") for store in stores):
            raise InvalidInput("a client of other stores cannot be killed here")
        for store in stores:
            cast(Any, store).crash()

    def end_session(self, client: Client) -> None:
        """
        End the session of a client that goes on, as the stores do after a long pause of its process.

        Other clients abort its open transactions and take over its subscriptions. The client finds out at its next
        calls, and continues with a new session.

        :raises InvalidInput: the client was not opened by these stores.
        """
        if not hasattr(client.host.metadata, "end_session"):
            raise InvalidInput("the session of a client of other stores cannot be ended here")
        cast(Any, client.host.metadata).end_session()

    def _config(self, sections: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
        client = {**RETRIES, **sections.get("client", {})}
        return {"metadata": {"url": self.url}, "ledger": {"url": self.url}, **sections, "client": client}

    def _registry(self) -> PluginRegistry:
        if self._plugins is None:
            self._plugins = load_plugins()
        return self._plugins

    def _intercepted(self) -> PluginRegistry:
        return cast(PluginRegistry, _InterceptedPlugins(self._registry(), self._connection))


class _InterceptedPlugins(ForwardingProxy):
    """The plugins, with stores behind a connection."""

    def __init__(self, behind: PluginRegistry, connection: StoreConnection) -> None:
        super().__init__(behind)
        self._connection = connection

    async def open(self, provider: Any, context: Any) -> Any:
        """Open an object; if it is a store, return it behind the connection."""
        opened = await self._behind.open(provider, context)
        is_store = IMetadataStore.providedBy(opened) or ILedgerStore.providedBy(opened)
        return intercept_calls(opened, self._connection) if is_store else opened


def _is_commit(arguments: tuple[Any, ...]) -> bool:
    """Return whether a write commits a transaction of the metadata-driven family."""
    puts: list[Put] = []
    for one in arguments:
        if isinstance(one, Put):
            puts.append(one)
            continue
        if isinstance(one, Step):
            puts += [each for each in one.puts if isinstance(each, Put)]
    return any(is_header(put.key) and _committed(put.value) for put in puts)


def _committed(value: bytes) -> bool:
    return msgspec.json.decode(value, type=TransactionHeader).state == State.COMMITTED.value
