"""Many clients at a time, over what their user would write without the framework."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rig import Found, Run, Target, interleaved, opened, settle, timed, unsettled

from txnframework import Client, Producer

if TYPE_CHECKING:
    import asyncpg

CLIENTS = 64
MESSAGE = b"x" * 200
TABLES = """
CREATE TABLE transactions (id bigserial PRIMARY KEY, state text NOT NULL, ended timestamptz);
CREATE TABLE messages (
    id bigserial PRIMARY KEY, txn bigint NOT NULL REFERENCES transactions, topic text NOT NULL, value bytea NOT NULL
);
"""


async def clients_over_raw_transactions(run: Run) -> list[Found]:
    """
    Transactions per second of 64 clients, each beginning, sending one message and committing, again and again.

    Over those of 64 held connections, each with a transaction of three statements: insert, insert, update.
    """
    each, ratios, ours, theirs = run.size(20, 2), [], [], []
    async with run.backend.raw("raw", CLIENTS) as connections, opened(run.backend.config("clients")) as client:
        await connections[0].execute(TABLES)
        await client.create_topic("t")
        producers = [await client.producer("t") for _ in range(CLIENTS)]

        async def framework() -> float:
            return await timed(asyncio.gather(*(_send(client, producer, each) for producer in producers)))

        async def raw() -> float:
            return await timed(asyncio.gather(*(_insert(connection, each) for connection in connections)))

        with unsettled(client) as ended:
            await interleaved(1, framework, raw)
            for number in range(run.rounds):
                run.progress(f"round {number + 1} of {run.rounds}")
                took, raw_took = await interleaved(run.size(4, 1), framework, raw)
                await settle(client, ended)
                ratios.append(sum(raw_took) / sum(took))
                ours.append(CLIENTS * each / min(took))
                theirs.append(CLIENTS * each / min(raw_took))
    notes = {"best_per_s": round(max(ours)), "best_raw_per_s": round(max(theirs))}
    what = f"transactions per second of {CLIENTS} clients / raw transactions of three statements"
    return [Found(what, tuple(ratios), Target(0.6, at_most=False), notes)]


async def _send(client: Client, producer: Producer, times: int) -> None:
    for _ in range(times):
        async with client.transaction() as txn:
            await producer.send(MESSAGE, txn=txn)


async def _insert(connection: asyncpg.Connection, times: int) -> None:
    for _ in range(times):
        async with connection.transaction():
            number = await connection.fetchval("INSERT INTO transactions (state) VALUES ('OPEN') RETURNING id")
            await connection.execute(
                "INSERT INTO messages (txn, topic, value) VALUES ($1, $2, $3)", number, "t", MESSAGE
            )
            await connection.execute(
                "UPDATE transactions SET state = 'COMMITTED', ended = now() WHERE id = $1 AND state = 'OPEN'", number
            )
