"""Group commit: concurrent transactions and sends share commits of the database."""

from __future__ import annotations

import asyncio

from measurement import Found, Run, Target, interleaved, opened, settle, timed, unsettled

from txnframework import Client, Producer

TOGETHER = 64


async def transactions_together(run: Run) -> list[Found]:
    """Transactions per second (begin, one write, commit), 64 concurrent ones over the same number in sequence."""
    samples, ratios, per_second = run.size(3, 1), [], []
    async with opened(run.backend.config("together")) as client:
        await client.create_topic("t")
        producers = [await client.producer("t") for _ in range(TOGETHER)]
        with unsettled(client) as ended:

            async def together() -> float:
                return await timed(asyncio.gather(*(_transaction(client, producer) for producer in producers)))

            async def one_by_one() -> float:
                return await timed(_each(client, producers))

            await together()
            for number in range(run.rounds):
                run.progress(f"round {number + 1} of {run.rounds}")
                took, serial = await interleaved(samples, together, one_by_one)
                await settle(client, ended)
                ratios.append(sum(serial) / sum(took))
                per_second.append((TOGETHER * samples / sum(took), TOGETHER * samples / sum(serial)))
    fast, slow = max(per_second)
    return [
        Found(
            f"transactions per second, {TOGETHER} together / one by one",
            tuple(ratios),
            run.target(sqlite=Target(5.0, at_most=False)),
            {"best_together_per_s": round(fast), "best_one_by_one_per_s": round(slow)},
        )
    ]


async def sends_together(run: Run) -> list[Found]:
    """Sends per second, 64 concurrent producers over the same sends in sequence."""
    ratios = []
    async with opened(run.backend.config("sends")) as client:
        await client.create_topic("t")
        producers = [await client.producer("t") for _ in range(TOGETHER)]

        async def together() -> float:
            return await timed(asyncio.gather(*(producer.send(b"x" * 200) for producer in producers)))

        async def one_by_one() -> float:
            async def each() -> None:
                for producer in producers:
                    await producer.send(b"x" * 200)

            return await timed(each())

        await together()
        for number in range(run.rounds):
            run.progress(f"round {number + 1} of {run.rounds}")
            took, serial = await interleaved(run.size(4, 1), together, one_by_one)
            ratios.append(sum(serial) / sum(took))
    return [Found(f"sends per second, {TOGETHER} together / one by one", tuple(ratios))]


async def _transaction(client: Client, producer: Producer) -> None:
    async with client.transaction() as txn:
        await producer.send(b"x" * 200, txn=txn)


async def _each(client: Client, producers: list[Producer]) -> None:
    for producer in producers:
        await _transaction(client, producer)
