"""The blocking facade: the same behaviour without ``await``."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

import txnframework
from txnframework import Message, State, blocking
from txnframework.client import LoopThread
from txnframework.errors import Closed, InvalidInput, ReceiveTimeout, TransactionHasFailedOperations, Unavailable

if TYPE_CHECKING:
    from conftest import Stores


def test_the_same_names_without_await(stores: Stores) -> None:
    """A blocking client consumes, transforms and produces in transactions, iterates, and takes part from
    another client.
    """
    with stores.open_blocking() as client, stores.open_blocking() as elsewhere:
        client.create_topic("orders")
        client.create_topic("invoices", segments=2)
        with (
            client.producer("orders") as orders,
            client.producer("invoices") as invoices,
            client.consumer("orders", "billing", start="earliest") as consumer,
        ):
            sent = orders.send_many([b"1", b"2", b"3"], sequence_id=0)
            assert orders.send_many([b"1", b"2", b"3"], sequence_id=0) == sent
            for order in consumer:
                with client.transaction() as txn:
                    invoices.send(b"for " + order.value, key=order.value, txn=txn)
                    consumer.ack(order, txn=txn)
                if order.value == b"3":
                    break
            with pytest.raises(ReceiveTimeout):
                consumer.receive(timeout_ms=1)
        with client.transaction() as txn:
            with elsewhere.join(txn.id) as part, elsewhere.producer("invoices") as far:
                far.send(b"far", txn=part)
            txn.commit([part.branch])
        assert elsewhere.outcome(txn.id) is State.COMMITTED
        with client.reader("invoices") as reader:
            assert sorted(message.value for message in reader) == [b"far", b"for 1", b"for 2", b"for 3"]
        with pytest.raises(TransactionHasFailedOperations), client.transaction() as txn, pytest.raises(Closed):
            orders.send(b"late", txn=txn)
        client.split("orders", 0)


def test_dead_letters_without_await(stores: Stores) -> None:
    """A blocking consumer takes the same options for standing by and for dead letters."""
    with stores.open_blocking() as client:
        client.create_topic("orders")
        client.create_topic("graves")
        rule = txnframework.DeadLetter(redeliveries_max=0, topic="graves")
        with (
            client.producer("orders") as orders,
            client.consumer("graves", "relatives") as graves,
            client.consumer("orders", "billing", type="failover", priority=1, dead_letter=rule) as consumer,
            client.consumer("orders", "billing", type="failover", stand_by=True) as other,
        ):
            orders.send_many([b"bad", b"good", b"bad"])
            for message in (consumer.receive(timeout_ms=60_000) for _ in range(3)):
                (consumer.nack if message.value == b"bad" else consumer.ack)(message)
            with pytest.raises(ReceiveTimeout):
                consumer.receive(timeout_ms=1_000)
            assert [graves.receive(timeout_ms=60_000).value for _ in range(2)] == [b"bad", b"bad"]
            consumer.close()
            orders.send(b"next")
            assert other.receive(timeout_ms=60_000).value == b"next"


def test_closing_ends_an_iteration_in_another_thread(memory: Stores) -> None:
    """Closing the consumer wakes a thread that waits for messages."""
    with memory.open_blocking() as client:
        client.create_topic("orders")
        consumer = client.consumer("orders", "billing")
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.extend(message.value for message in consumer))
        thread.start()
        consumer.close()
        thread.join(timeout=60)
        assert not thread.is_alive()
        assert found == []


def test_the_loop_thread_is_made_anew_after_a_fork() -> None:
    """Each process has one loop thread for all clients; the thread refuses to wait for itself."""
    mine = LoopThread.shared()
    assert LoopThread.shared() is mine

    async def number() -> int:
        return 7

    assert mine.run(number()) == 7
    child = os.fork()
    if child == 0:
        fine = LoopThread.shared() is not mine and LoopThread.shared().run(number()) == 7 and not mine.alive
        os._exit(0 if fine else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0

    async def nested() -> int:
        return LoopThread.shared().run(number())

    with pytest.raises(RuntimeError, match="own loop"):
        mine.run(nested())


def test_running_a_blocking_handler(stores: Stores) -> None:
    """In threads, each message in a transaction, until a handler or a signal stops it."""
    with stores.open_blocking() as client:
        for topic in ("orders", "invoices"):
            client.create_topic(topic)
        orders, invoices = client.producer("orders"), client.producer("invoices")
        orders.send_many([b"1", b"2", b"3"])
        with client.consumer("orders", "billing", start="earliest") as consumer:
            failed: list[bytes | None] = []

            def bill(order: Message, txn: blocking.Transaction) -> None:
                invoices.send(order.value, txn=txn)
                if order.value == b"2" and not failed:
                    failed.append(order.value)
                    raise ValueError("this fails once")
                if order.value == b"3":
                    os.kill(os.getpid(), signal.SIGTERM)

            before = signal.getsignal(signal.SIGTERM)
            consumer.run(bill, stop_on_signals=(signal.SIGTERM,))
            assert signal.getsignal(signal.SIGTERM) is before
            orders.send_many([b"4", b"5"])

            def check(received: tuple[Message, ...], txn: None) -> None:
                failed.extend(one.value for one in received)
                consumer.stop()

            consumer.run_batches(check, transactional=False, messages_max=10)
            assert failed == [b"2", b"4", b"5"]

            async def unawaited(_message: Message, _txn: blocking.Transaction) -> None:
                pass

            for run in (consumer.run, consumer.run_batches):
                with pytest.raises(InvalidInput, match="unawaited is 'async def', and would not be awaited"):
                    run(unawaited)  # type: ignore[arg-type]
        with client.reader("invoices") as reader:
            assert [one.value for one in reader] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("kind", ["failover", "key_shared"])
@pytest.mark.parametrize("method", ["run", "run_batches"])
def test_stopping_a_blocking_handler_keeps_the_order(stores: Stores, method: str, kind: str) -> None:
    """A message that waits for another attempt at the time of the stop is not overtaken."""
    values = [b"1", b"2", b"3"]
    with stores.open_blocking() as client:
        client.create_topic("orders")
        orders = client.producer("orders")
        for value in values:
            orders.send(value, key=b"k")
        handled: list[bytes | None] = []
        with client.consumer("orders", "billing", type=kind, start="earliest") as consumer:

            def fail(_received: object) -> None:
                consumer.stop()
                raise Unavailable("for a moment")

            def handle(received: Message | tuple[Message, ...]) -> None:
                handled.extend(one.value for one in (received if isinstance(received, tuple) else (received,)))
                if len(handled) == len(values):
                    consumer.stop()

            getattr(consumer, method)(fail, concurrency=2)
            getattr(consumer, method)(handle, concurrency=2)
        assert handled == values
