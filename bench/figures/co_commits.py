"""Transactions that commit together with a row of the application, compared with the row alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from measurement import Found, Run, interleaved, microseconds, opened, p50, settle, timed, unsettled

from txnframework import Client, Consumer, Producer

TABLE = "CREATE TABLE own_rows (text TEXT NOT NULL)"
INSERT = "INSERT INTO own_rows (text) VALUES ('a row of the application')"


@dataclass(frozen=True)
class Own:
    """The connection of the application."""

    connection: Any
    execute: Callable[[str], Awaitable[object]]


async def co_commits_over_plain(run: Run) -> list[Found]:
    """
    p50 of a transaction with an own row over p50 of the plain SQL transaction with that row, from BEGIN to COMMIT.

    The second figure also sends a message and acknowledges one; the message was received before.
    """
    samples = run.size(200, 10)
    row_only, whole, plain_s = [], [], []
    async with opened(run.backend.config("co-commit")) as client, _own(run) as own:
        await own.execute(TABLE)
        for topic in ("orders", "invoices"):
            await client.create_topic(topic)
        await client.subscribe("orders", "billing", start="earliest")
        orders, invoices = await client.producer("orders"), await client.producer("invoices")
        consumer = await client.consumer("orders", "billing")

        async def plain() -> float:
            async def once() -> None:
                await own.execute("BEGIN")
                await own.execute(INSERT)
                await own.execute("COMMIT")

            return await timed(once())

        async def with_row() -> float:
            return await timed(_row(client, own))

        async def with_message() -> float:
            await orders.send(b"an order")
            return await timed(_bill(client, own, consumer, invoices, await consumer.receive(timeout_ms=5000)))

        with unsettled(client) as ended:
            await interleaved(5, plain, with_row, with_message)
            for number in range(run.rounds):
                run.progress(f"round {number + 1} of {run.rounds}")
                sides = (plain_s, row_only, whole)
                for taken, into in zip(await interleaved(samples, plain, with_row, with_message), sides, strict=True):
                    into.append(p50(taken))
                await settle(client, ended)
    notes = {"plain_p50_us": microseconds(p50(plain_s))}
    return [
        Found(
            f"{what} / the row in a plain SQL transaction",
            tuple(ours / theirs for ours, theirs in zip(seconds, plain_s, strict=True)),
            None,
            {**notes, "p50_us": microseconds(p50(seconds))},
        )
        for what, seconds in (("own row", row_only), ("own row, message and acknowledgment", whole))
    ]


async def _row(client: Client, own: Own) -> None:
    async with client.transaction(commit_with=own.connection):
        await own.execute(INSERT)


async def _bill(client: Client, own: Own, consumer: Consumer, invoices: Producer, order: Any) -> None:
    async with client.transaction(commit_with=own.connection) as txn:
        await invoices.send(b"an invoice", txn=txn)
        await consumer.ack(order, txn=txn)
        await own.execute(INSERT)


@asynccontextmanager
async def _own(run: Run) -> AsyncIterator[Own]:
    if run.backend.name == "sqlite":
        with run.backend.raw("co-commit") as connection:  # type: ignore[attr-defined]

            async def execute(statement: str) -> None:
                connection.execute(statement)

            yield Own(connection, execute)
        return
    async with run.backend.raw("co-commit") as (connection,):  # type: ignore[attr-defined]
        yield Own(connection, connection.execute)
