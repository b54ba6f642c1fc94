"""Many small messages: batches in transactions compared with the raw database."""

from __future__ import annotations

import asyncio

from measurement import Found, Run, Target, interleaved, opened, timed

MESSAGE = b"x" * 100
TRANSACTION = 10_000
"""Messages of one transaction, and rows of one commit of the raw side."""


async def million_messages(run: Run) -> list[Found]:
    """Messages per second, 100 bytes each, sent in transactions, over rows of raw ``executemany``."""
    messages, rounds = run.size(1_000_000, 50_000), min(run.rounds, 3)
    with run.backend.raw("raw") as connection:
        connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, value BLOB NOT NULL)")
        async with opened(run.backend.config("million"), transactions={}) as client:
            await client.create_topic("t")
            producer = await client.producer("t")

            async def send() -> None:
                for _ in range(messages // TRANSACTION):
                    async with client.transaction() as txn:
                        await producer.send_many([MESSAGE] * TRANSACTION, txn=txn)

            def insert() -> None:
                for _ in range(messages // TRANSACTION):
                    connection.execute("BEGIN IMMEDIATE")
                    connection.executemany(
                        "INSERT INTO messages (value) VALUES (?)", [(value,) for value in [MESSAGE] * TRANSACTION]
                    )
                    connection.execute("COMMIT")

            run.progress(f"{rounds} rounds of {messages:,} messages")
            # In a thread: an event loop that is blocked for seconds loses its session and its open transactions.
            took, raw_took = await interleaved(rounds, lambda: timed(send()), lambda: timed(asyncio.to_thread(insert)))
    notes = {
        "messages": messages,
        "messages_per_transaction": TRANSACTION,
        "messages_per_s": round(messages / min(took)),
        "raw_rows_per_s": round(messages / min(raw_took)),
    }
    ratios = tuple(theirs / ours for ours, theirs in zip(took, raw_took, strict=True))
    return [Found("messages per second in transactions / raw executemany", ratios, Target(0.2, False), notes)]


async def sends_in_transactions(run: Run) -> list[Found]:
    """1,000 messages sent in one transaction, its commit included, over 1,000 sent outside transactions."""
    ratios = []
    values = [b"x" * 200] * 1_000
    async with opened(run.backend.config("inside")) as client:
        await client.create_topic("t")
        async with await client.producer("t") as producer:

            async def inside() -> None:
                async with client.transaction() as txn:
                    await producer.send_many(values, txn=txn)

            await producer.send_many(values)
            for number in range(run.rounds):
                run.progress(f"round {number + 1} of {run.rounds}")
                took, plain = await interleaved(
                    run.size(5, 1), lambda: timed(inside()), lambda: timed(producer.send_many(values))
                )
                ratios.append(sum(took) / sum(plain))
    return [Found("1,000 messages in a transaction / outside", tuple(ratios))]
