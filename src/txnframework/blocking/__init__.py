"""
The blocking facade: the names of ``txnframework`` without ``await``.

::

    with txnframework.blocking.open("txnframework.toml") as client:
        producer = client.producer("topic://public/default/orders")
        with client.transaction() as txn:
            producer.send(b"one", txn=txn)

One loop thread per process does the work. It is created on first use, and again after a fork. A client that was opened
before a fork belongs to the parent. All objects may be used from several threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from txnframework import client as asynchronous
from txnframework.blocking._client import Client
from txnframework.blocking._messages import Consumer, Producer, Reader, Snapshot
from txnframework.blocking._transactions import JoinedTransaction, Transaction, TransactionPart
from txnframework.client import ConfigSource, LoopThread, Message, MessageID
from txnframework.environment import Environment
from txnframework.plugin import PluginRegistry

if TYPE_CHECKING:
    from txnframework.instruments import Instruments

__all__ = [
    "Client",
    "Consumer",
    "JoinedTransaction",
    "Message",
    "MessageID",
    "Producer",
    "Reader",
    "Snapshot",
    "Transaction",
    "TransactionPart",
    "open",
]


NOT_OPENED = "a client is opened by 'with txnframework.blocking.open(...) as client'"


def open(
    config: ConfigSource = None,
    *,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
    loop: LoopThread | None = None,
    metrics: Instruments | None = None,
) -> AbstractContextManager[Client, None]:
    """
    Open a client: ``with txnframework.blocking.open(...) as client``; see ``txnframework.open``.

    :param loop: the loop thread to use; default: the shared one of this process.
    """
    opening = asynchronous.open(config, registry=registry, environment=environment, metrics=metrics)
    return Opening(_opened(opening, loop))


class Opening(AbstractContextManager[Client, None]):
    """A client that ``with`` opens; any other use raises an error that says so."""

    def __init__(self, opened: AbstractContextManager[Client]) -> None:
        self._opened = opened

    def __enter__(self) -> Client:
        return self._opened.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    if not TYPE_CHECKING:  # hidden from type checkers, which then report the wrong use

        def __aenter__(self) -> NoReturn:
            raise TypeError(f"{NOT_OPENED}; 'async with' takes txnframework.open(...)")

        def __aexit__(self, *_: object) -> None:
            """Exist, so that ``async with`` calls ``__aenter__``."""

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{NOT_OPENED}, and the client, not this, has {name!r}")


@contextmanager
def _opened(
    opening: AbstractAsyncContextManager[asynchronous.Client, None], loop: LoopThread | None
) -> Iterator[Client]:
    thread = loop or LoopThread.shared()
    client = thread.run(_enter(opening))
    try:
        yield Client(thread, client)
    except BaseException as error:
        thread.run(_leave(opening, error))
        raise
    thread.run(_leave(opening, None))


async def _enter(opening: AbstractAsyncContextManager[asynchronous.Client, None]) -> asynchronous.Client:
    return await opening.__aenter__()


async def _leave(opening: AbstractAsyncContextManager[asynchronous.Client, None], error: BaseException | None) -> None:
    await opening.__aexit__(None if error is None else type(error), error, None)
