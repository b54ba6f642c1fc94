"""
The blocking facade: the names of ``txnframework`` without ``await``.

::

    with txnframework.blocking.open("txnframework.toml") as client:
        producer = client.producer("topic://public/default/orders")
        with client.transaction() as txn:
            producer.send(b"one", txn=txn)

One loop thread per process does the work. It is made on first use, and anew after a fork; a client that was opened
before a fork belongs to the parent. The objects may be used from several threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING

from txnframework import client as asynchronous
from txnframework.blocking._client import Client
from txnframework.blocking._messages import Consumer, Producer, Reader
from txnframework.blocking._transactions import JoinedTransaction, Transaction, TransactionPart
from txnframework.client import ConfigSource, LoopThread, Message, MessageID
from txnframework.environment import Environment
from txnframework.plugin import PluginRegistry

if TYPE_CHECKING:
    from txnframework.metrics import Metrics

__all__ = [
    "Client",
    "Consumer",
    "JoinedTransaction",
    "Message",
    "MessageID",
    "Producer",
    "Reader",
    "Transaction",
    "TransactionPart",
    "open",
]


@contextmanager
def open(
    config: ConfigSource = None,
    *,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
    loop: LoopThread | None = None,
    metrics: Metrics | None = None,
) -> Iterator[Client]:
    """
    Open a client: ``with txnframework.blocking.open(...) as client``; see ``txnframework.open``.

    :param loop: the loop thread to use; default: the one of this process.
    """
    thread = loop or LoopThread.shared()
    opening = asynchronous.open(config, registry=registry, environment=environment, metrics=metrics)
    client = thread.run(_enter(opening))
    try:
        yield Client(thread, client)
    except BaseException as error:
        thread.run(_leave(opening, error))
        raise
    thread.run(_leave(opening, None))


async def _enter(opening: AbstractAsyncContextManager[asynchronous.Client]) -> asynchronous.Client:
    return await opening.__aenter__()


async def _leave(opening: AbstractAsyncContextManager[asynchronous.Client], error: BaseException | None) -> None:
    await opening.__aexit__(None if error is None else type(error), error, None)
