"""The number of records that a transaction writes to the metadata store before it is cleaned up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from counting_store import CountingStore
from measurement import Found, Run, Target, unsettled

from txnframework import Client, Consumer, Message, Producer
from txnframework.broker import Host, HostContext, open_host
from txnframework.config import load_config
from txnframework.interfaces import IMetadataStore

TOPICS = 3


async def records_per_transaction(run: Run) -> list[Found]:
    """Records put from begin to the end of commit, over 2 + triples written + pairs acknowledged."""
    sizes = (1, 100, run.size(10_000, 500))
    together, singly = [], []
    async with _counted(run.backend.config("records")) as (client, store):
        producers, consumers = [], []
        for number in range(TOPICS):
            await client.create_topic(f"t{number}")
            producers.append(await client.producer(f"t{number}"))
            consumers.append(await client.consumer(f"t{number}", "s", start="earliest"))
        # Ids are reserved by the thousand and a session is created once, so neither is counted for a transaction.
        await _count(client, store, producers, consumers, 1, one_by_one=False)
        for messages in sizes:
            run.progress(f"{messages:,} messages in and out of each of {TOPICS} topics")
            together.append(await _count(client, store, producers, consumers, messages, one_by_one=False))
        few = run.size(100, 20)
        run.progress(f"{few} messages acknowledged one by one")
        singly.append(await _count(client, store, producers, consumers, few, one_by_one=True))
        for consumer in consumers:
            await consumer.close()
    allowed = 2 + TOPICS + TOPICS
    notes = {
        f"records, {size:,} messages a topic": float(count) for size, (count, _) in zip(sizes, together, strict=True)
    }
    return [
        Found(
            "records written / (2 + triples written + pairs acknowledged)",
            tuple(count / allowed for count, _ in together),
            Target(1.0),
            {"allowed": float(allowed), **notes},
        ),
        Found(
            f"the same, {few} messages a topic acknowledged by a call each",
            tuple(count / allowed for count, _ in singly),
            Target(1.0),
            {"records": float(singly[0][0]), "writes of them": float(singly[0][1])},
        ),
    ]


async def _count(
    client: Client,
    store: CountingStore,
    producers: list[Producer],
    consumers: list[Consumer],
    messages: int,
    *,
    one_by_one: bool,
) -> tuple[int, int]:
    """
    Consume and produce so many messages of each topic in one transaction; return the records it wrote, and the writes.

    An operation record that is written again, with more acknowledgments in it, is one record.
    """
    for producer in producers:
        await producer.send_many([b"in"] * messages)
    with unsettled(client) as ended:
        received = [await _receive(consumer, messages) for consumer in consumers]
        store.written.clear()
        store.rewritten.clear()
        async with client.transaction() as txn:
            for producer, consumer, some in zip(producers, consumers, received, strict=True):
                await producer.send_many([b"out"] * messages, txn=txn)
                for acked in [[one] for one in some] if one_by_one else [some]:
                    await consumer.ack(*acked, txn=txn)
        writes = sum(store.written.values())
        records = writes - store.rewritten["txn-op"]
    coordinator = await client.host.coordinator()
    await coordinator.settle(ended[0])
    for consumer in consumers:  # what the transaction sent is not what the next one is to count
        for message in await _receive(consumer, messages):
            await consumer.ack(message)
    return records, writes


async def _receive(consumer: Consumer, messages: int) -> list[Message]:
    received: list[Message] = []
    while len(received) < messages:
        received += await consumer.receive_many(messages_max=messages - len(received), timeout_ms=60_000)
    return received


@asynccontextmanager
async def _counted(config: Mapping[str, object]) -> AsyncIterator[tuple[Client, CountingStore]]:
    """Open a client whose metadata store counts writes."""
    inner = await open_host(load_config({**config, "transactions": {"sweep": False}}))
    store = CountingStore(inner.metadata)
    metadata = IMetadataStore(store)
    host = Host(HostContext(inner.config, inner.registry, inner.environment, metadata, inner.ledgers))
    try:
        yield Client(host), store
    finally:
        await host.close()  # which closes the stores of both
