"""Many concurrent clients, compared with the same work written without the framework."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from backend import Side
from measurement import Found, Run, Target, interleaved, opened, settle, timed, unsettled

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

    Over those of 64 held connections, each with a transaction of three statements: insert, insert, update. A commit is
    whole without being settled, which happens beside; the second ratio is of clients that do that, too, every time.
    """
    each, samples = run.size(20, 2), run.size(4, 1)
    plain, settling, raw_s = [], [], []
    async with run.backend.raw("raw", CLIENTS) as connections, opened(run.backend.config("clients")) as client:
        await connections[0].execute(TABLES)
        await client.create_topic("t")
        producers = [await client.producer("t") for _ in range(CLIENTS)]

        def framework(*, settles: bool) -> Side:
            return lambda: timed(asyncio.gather(*(_send(client, one, each, settles=settles) for one in producers)))

        def raw() -> Awaitable[float]:
            return timed(asyncio.gather(*(_insert(connection, each) for connection in connections)))

        with unsettled(client) as ended:
            sides = framework(settles=False), framework(settles=True), raw
            await interleaved(1, *sides)
            for number in range(run.rounds):
                run.progress(f"round {number + 1} of {run.rounds}")
                for seconds, taken in zip((plain, settling, raw_s), await interleaved(samples, *sides), strict=True):
                    seconds.append(sum(taken))
                await settle(client, ended)
    transactions = CLIENTS * each * samples
    raw_best = round(transactions / min(raw_s))
    what = f"transactions per second of {CLIENTS} clients / raw transactions of three statements"
    return [
        Found(
            title,
            tuple(theirs / ours for ours, theirs in zip(seconds, raw_s, strict=True)),
            target,
            {"best_per_s": round(transactions / min(seconds)), "best_raw_per_s": raw_best},
        )
        for title, seconds, target in (
            (what, plain, Target(0.6, at_most=False)),
            (f"{what}, each settled before the next", settling, None),
        )
    ]


async def _send(client: Client, producer: Producer, times: int, *, settles: bool) -> None:
    coordinator = await client.host.coordinator()
    for _ in range(times):
        async with client.transaction() as txn:
            await producer.send(MESSAGE, txn=txn)
        if settles:
            await coordinator.settle(txn.id)


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
