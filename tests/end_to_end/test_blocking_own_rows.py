"""Rows that commit with a blocking transaction: the connection is used in the caller's thread only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from zope.interface import implementer

import txnframework.blocking
from txnframework.interfaces import IDatabaseTransaction
from txnframework.model import Applied, State, Step
from txnframework.runtime.calling_thread import in_calling_thread
from txnframework_memory import MemoryMetadataStore

TOPIC = "topic://public/default/orders"


class ThreadBound:
    """A connection of a driver that blocks, which refuses every other thread; it has one row."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.calls: list[str] = []
        self.committed = False
        self.interrupted = ""

    def call(self, name: str) -> None:
        """Make one call of the driver."""
        assert threading.get_ident() == self.thread, f"{name} in another thread"
        self.calls.append(name)
        if name == self.interrupted:
            self.interrupted = ""
            raise KeyboardInterrupt


@implementer(IDatabaseTransaction)
class ThreadBoundTransaction:
    """The transaction of such a connection: its step is applied at the COMMIT."""

    store_waits: str | None = None

    def __init__(self, connection: ThreadBound) -> None:
        self.connection = connection
        self.apply: Callable[[], object] | None = None

    async def step(self, _: Step, examine: Callable[[], Applied], apply: Callable[[Applied], object]) -> Applied:
        """Keep a step of the store in memory for the COMMIT."""
        await in_calling_thread(lambda: self.connection.call("step"))
        found = examine()
        self.apply = partial(apply, found)
        return found

    async def commit(self) -> None:
        await in_calling_thread(lambda: self.connection.call("commit"))
        assert self.apply is not None
        self.apply()
        self.connection.committed = True

    async def rollback(self) -> None:
        await in_calling_thread(lambda: self.connection.call("rollback"))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[txnframework.blocking.Client]:
    """A client whose store joins such connections."""

    async def join(_: MemoryMetadataStore, connection: object) -> ThreadBoundTransaction:
        assert isinstance(connection, ThreadBound)
        await in_calling_thread(lambda: connection.call("join"))
        return ThreadBoundTransaction(connection)

    monkeypatch.setattr(MemoryMetadataStore, "join", join)
    url = "memory://blocking-own-rows"
    with txnframework.blocking.open({"metadata": {"url": url}, "ledger": {"url": url}}) as opened:
        opened.create_topic(TOPIC, exist_ok=True)
        yield opened


@contextmanager
def block(client: txnframework.blocking.Client, connection: ThreadBound) -> Iterator[txnframework.blocking.Transaction]:
    """Send in a transaction with rows."""
    with client.producer(TOPIC) as producer, client.transaction(commit_with=connection) as txn:
        producer.send(b"order", txn=txn)
        yield txn


def test_every_call_is_made_by_the_caller(client: txnframework.blocking.Client) -> None:
    """Joining, the step and committing happen in the thread that enters and leaves the block."""
    connection = ThreadBound()
    with block(client, connection) as txn:
        pass
    assert txn.state is State.COMMITTED
    assert connection.calls == ["join", "step", "commit"]


def test_an_exception_rolls_back_in_the_thread_of_the_caller(client: txnframework.blocking.Client) -> None:
    """An abort also runs in the thread of the caller."""
    connection = ThreadBound()
    with pytest.raises(LookupError), block(client, connection) as txn:
        raise LookupError
    assert txn.state is State.ABORTED
    assert connection.calls == ["join", "rollback"]


@pytest.mark.parametrize("name", ["join", "step", "commit"])
def test_an_interrupt_within_a_call(client: txnframework.blocking.Client, name: str) -> None:
    """The connection is rolled back before the interrupt arrives, and no COMMIT is sent twice."""
    connection = ThreadBound()
    connection.interrupted = name
    transaction = client.transaction(commit_with=connection)
    with pytest.raises(KeyboardInterrupt), transaction:
        pass
    assert connection.calls.count("commit") <= 1
    assert not connection.committed
    if name != "join":
        assert connection.calls[-1] == "rollback"
    assert client.outcome(transaction.id) is State.ABORTED


def test_a_step_uses_the_connection_in_its_thread(client: txnframework.blocking.Client) -> None:
    """``transact`` joins, makes the step and commits in the thread of its caller."""
    with client.producer(TOPIC) as producer:
        connection = ThreadBound()
        (sent,) = client.transact(producer.outgoing(b"order"), commit_with=connection)
        assert connection.calls == ["join", "step", "commit"]
        assert connection.committed
        assert client.last_message(TOPIC) == sent
