"""The cost of ending a transaction, compared with a raw update and by the number of participants."""

from __future__ import annotations

import asyncio

from measurement import (
    Found,
    Run,
    Target,
    interleaved,
    microseconds,
    opened,
    p50,
    settle,
    timed,
    unsettled,
)

from txnframework import Client, Producer, Transaction


async def ending_over_raw_update(run: Run) -> list[Found]:
    """p50 of ``commit`` over p50 of one raw update with a version check, committed by itself and as durable."""
    samples = run.size(100, 20)
    ratios, ours, theirs = [], [], []
    async with run.backend.raw_update() as update, opened(run.backend.config("ending")) as client:
        producer = await _producer(client, "t")
        for number in range(run.rounds):
            run.progress(f"round {number + 1} of {run.rounds}")
            begun = iter([await _written(client, [producer]) for _ in range(samples)])

            async def end() -> float:
                return await timed(next(begun).commit())  # noqa: B023

            with unsettled(client) as ended:
                took, raw_took = await interleaved(samples, end, update)
            await settle(client, ended)
            ours.append(p50(took))
            theirs.append(p50(raw_took))
            ratios.append(ours[-1] / theirs[-1])
    notes = {"end_p50_us": microseconds(p50(ours)), "raw_p50_us": microseconds(p50(theirs))}
    target = run.target(sqlite=Target(2.0), postgresql=Target(1.5), zookeeper=Target(1.5))
    return [Found("end, p50 / raw update with a version check", tuple(ratios), target, notes)]


async def ending_by_participants(run: Run) -> list[Found]:
    """``commit`` of a transaction that wrote to 1000 segments over one that wrote to 1."""
    many, samples = run.size(1_000, 50), 8
    ratios = []
    async with opened(run.backend.config("participants")) as client:
        producers = []
        for number in range(many):
            producers.append(await _producer(client, f"t{number}"))
            if number % 100 == 99:
                run.progress(f"{number + 1} of {many} topics made")
        with unsettled(client):
            for number in range(run.rounds):
                run.progress(f"round {number + 1} of {run.rounds}")
                wide = iter([await _written(client, producers) for _ in range(samples)])
                narrow = iter([await _written(client, producers[:1]) for _ in range(samples)])

                async def end_wide() -> float:
                    return await timed(next(wide).commit())  # noqa: B023

                async def end_narrow() -> float:
                    return await timed(next(narrow).commit())  # noqa: B023

                took, narrow_took = await interleaved(samples, end_wide, end_narrow)
                ratios.append(p50(took) / p50(narrow_took))
    return [Found(f"end, {many:,} participating segments / 1", tuple(ratios), Target(1.3))]


async def _producer(client: Client, topic: str) -> Producer:
    await client.create_topic(topic)
    producer = await client.producer(topic)
    await producer.send(b"first")
    return producer


async def _written(client: Client, producers: list[Producer]) -> Transaction:
    """Return an open transaction that has written to each of these."""
    transaction = client.transaction(timeout_ms=3_600_000)
    await transaction.begin()
    await asyncio.gather(*(producer.send(b"x" * 100, txn=transaction) for producer in producers))
    return transaction
