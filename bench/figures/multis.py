"""Many clients at a time on ZooKeeper, over multis that are sent without waiting for each other."""

from __future__ import annotations

import asyncio

from backends.zookeeper import WAIT_S, RawTransactions, assert_done
from rig import Found, Run, Target, interleaved, opened, settle, timed, unsettled

from txnframework import Client, Producer

CLIENTS = 64


async def clients_over_raw_multis(run: Run) -> list[Found]:
    """
    Transactions per second of 64 clients, each beginning, sending one message and committing, again and again.

    Over those of kazoo alone, 64 under way at a time, of three multis each, as the framework has them: one that begins,
    one with the operation, one that ends it. The messages are in memory: what is measured is ZooKeeper.
    """
    each, ratios, ours, theirs = run.size(5, 2), [], [], []
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
                await interleaved(1, framework, multis)
                await settle(client, ended)
                for number in range(run.rounds):
                    run.progress(f"round {number + 1} of {run.rounds}")
                    took, raw_took = await interleaved(run.size(3, 1), framework, multis)
                    await settle(client, ended)
                    ratios.append(sum(raw_took) / sum(took))
                    ours.append(CLIENTS * each / min(took))
                    theirs.append(CLIENTS * each / min(raw_took))
    notes = {"best_per_s": round(max(ours)), "best_raw_per_s": round(max(theirs)), "messages": "in memory"}
    what = f"transactions per second of {CLIENTS} clients / the same number of pipelined raw multis"
    return [Found(what, tuple(ratios), Target(0.6, at_most=False), notes)]


async def _send(client: Client, producer: Producer, times: int) -> None:
    for _ in range(times):
        async with client.transaction() as txn:
            await producer.send(b"x" * 200, txn=txn)


async def _ask(raw: RawTransactions, turns: list[list[str]]) -> None:
    for names in turns:
        for step in (raw.begin, raw.write, raw.end):
            for asked in [step(name) for name in names]:
                assert_done(asked.get(timeout=WAIT_S))
