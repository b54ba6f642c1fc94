"""Handlers of ``Consumer.run``, those that a type checker takes and those that it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from txnframework import Client, Consumer, Message, PlannedSend, Transaction
from txnframework import blocking as without_asyncio


@dataclass(frozen=True)
class Work:
    txn: Transaction
    session: str


@asynccontextmanager
async def work() -> AsyncIterator[Work]:
    raise NotImplementedError
    yield


@asynccontextmanager
async def without() -> AsyncIterator[str]:
    yield ""


async def in_transaction(message: Message, txn: Transaction) -> str:
    return f"{message.value!r} {txn.id}"


async def in_work(message: Message, given: Work) -> None:
    assert given.session


async def plain(message: Message, txn: None) -> None:
    assert message.value


async def batch(messages: tuple[Message, ...], txn: Transaction) -> None:
    assert messages


def blocking(message: Message, txn: Transaction) -> None:
    assert message.value


async def returns_one(message: Message) -> PlannedSend | None:
    raise NotImplementedError


async def returns_several(messages: tuple[Message, ...]) -> list[PlannedSend]:
    raise NotImplementedError


async def returns_nothing(message: Message) -> None:
    assert message.value


async def returns_text(message: Message) -> str:
    return f"{message.value!r}"


def yields(message: Message) -> Iterator[PlannedSend]:
    raise NotImplementedError


async def main(client: Client, consumer: Consumer) -> None:
    await consumer.run(in_transaction, concurrency=4)
    await consumer.run(in_transaction, transaction=lambda: client.transaction(timeout_ms=1_000))
    await consumer.run(in_work, transaction=work)
    await consumer.run(plain, transactional=False)
    await consumer.run_batches(batch, messages_max=10)
    await consumer.run(batch)  # refused: "run" of "HandlerRuns"
    await consumer.run_batches(in_transaction)  # refused: "run_batches" of "HandlerRuns"
    await consumer.run(blocking)  # refused: "run" of "HandlerRuns"
    await consumer.run(in_work)  # refused: "run" of "HandlerRuns"
    await consumer.run(in_transaction, transaction=work)  # refused: Cannot infer value
    await consumer.run(in_transaction, transactional=False)  # refused: "run" of "HandlerRuns"
    await consumer.run(plain)  # refused: "run" of "HandlerRuns"
    await consumer.run(in_transaction, transaction=without)  # refused: Cannot infer value
    await consumer.run(in_transaction, speed=4)  # refused: "run" of "HandlerRuns"
    await consumer.run(returns_one, concurrency=4)
    await consumer.run(returns_nothing)
    await consumer.run(returns_nothing, transactional=False)
    await consumer.run_batches(returns_several, messages_max=10)
    await consumer.run(returns_several)  # refused: "run" of "HandlerRuns"
    await consumer.run_batches(returns_one)  # refused: "run_batches" of "HandlerRuns"
    await consumer.run(returns_text)  # refused: "run" of "HandlerRuns"
    await consumer.run(yields)  # refused: "run" of "HandlerRuns"
    await consumer.run(returns_one, transactional=False)  # refused: "run" of "HandlerRuns"
    await consumer.run(returns_one, transaction=client.transaction)  # refused: "run" of "HandlerRuns"


def main_of_threads(consumer: without_asyncio.Consumer) -> None:
    consumer.run(yields)
    consumer.run(lambda message: None)
    consumer.run(lambda message: None, transactional=False)
    consumer.run(lambda message: "text")  # refused: "run" of "HandlerRuns"
    consumer.run(returns_one)  # refused: "run" of "HandlerRuns"
    consumer.run(yields, transactional=False)  # refused: "run" of "HandlerRuns"
