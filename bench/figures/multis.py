"""Many concurrent clients on ZooKeeper, compared with multis that do not wait for each other."""

from __future__ import annotations

import asyncio

from backends.zookeeper import WAIT_S, RawTransactions, assert_done
from measurement import Found, Run, Target, interleaved, opened, settle, timed, unsettled

from txnframework import Client, Producer

CLIENTS = 64


async def clients_over_raw_multis(run: Run) -> list[Found]:
    """
    Transactions per second of 64 clients, each beginning, sending one message and committing, again and again.

    Over those of kazoo alone, 64 under way at a time, of three multis each, as the framework has them: one that begins,
    one with the operation, one that ends it. The messages are in memory: what is measured is ZooKeeper.
    """
    each, samples = run.size(20, 2), run.size(2, 1)
    ours_s: list[float] = []
    raw_s: list[float] = []
    names = iter(range(1 << 30))
    with run.backend.raw("raw") as raw:
        async with opened(run.backend.config("clients")) as client:
            await client.create_topic("t")
            producers = [await client.producer("t") for _ in range(CLIENTS)]

            async def framework() -> float:
                return await timed(asyncio.gather(*(_send(client, producer, each) for producer in producers)))

            async def multis() -> float:
                return await timed(_ask(raw, [[str(next(names)) for _ in range(CLIENTS)] for _ in range(each)]))

            with unsettled(client) as ended:
                # The server is Java and becomes faster with use, so each side is warmed up with one round.
                await interleaved(samples, framework, multis)
                await settle(client, ended)
                for number in range(run.rounds):
                    run.progress(f"round {number + 1} of {run.rounds}")
                    taken = await interleaved(samples, framework, multis)
                    for seconds, one in zip((ours_s, raw_s), taken, strict=True):
                        seconds.append(sum(one))
                    await settle(client, ended)
    transactions = CLIENTS * each * samples
    ratios = tuple(theirs / ours for ours, theirs in zip(ours_s, raw_s, strict=True))
    best, raw_best = (round(transactions / min(seconds)) for seconds in (ours_s, raw_s))
    notes = {"best_per_s": best, "best_raw_per_s": raw_best, "messages": "in memory"}
    what = f"transactions per second of {CLIENTS} clients / the same number of pipelined raw multis"
    return [Found(what, ratios, Target(0.5, at_most=False), notes)]


async def _send(client: Client, producer: Producer, times: int) -> None:
    for _ in range(times):
        async with client.transaction() as txn:
            await producer.send(b"x" * 200, txn=txn)


async def _ask(raw: RawTransactions, turns: list[list[str]]) -> None:
    for names in turns:
        for step in (raw.begin, raw.write, raw.end):
            for asked in [step(name) for name in names]:
                assert_done(asked.get(timeout=WAIT_S))
