"""Racing and restarted runs of one application commit each batch once."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from metadata_world import Process, World

from txnframework.errors import Conflict, NotFound, OutcomeUnknown, Unavailable
from txnframework.model import Action, BatchID, Branch, End, Position, SourceRange

APP = "pipeline"
BATCHES = 3
GIVES_UP = (Conflict, NotFound, Unavailable, OutcomeUnknown)


def ranges_of(version: int) -> tuple[SourceRange, ...]:
    return (SourceRange("t", "s", {"g": Position(1, version)}, {"g": Position(1, version + 1)}),)


async def work(process: Process, chance: random.Random, batch: BatchID, committed: list[int]) -> None:
    """Do one batch as a sink does: several tasks begin and write it, the driver judges and commits."""
    coordinator = process.coordinator
    txns = await asyncio.gather(*(coordinator.begin_batch(batch, 60_000) for _ in range(2)))
    if len({txn.txn_id for txn in txns}) > 1:
        return
    txn = txns[0]
    branch = chance.getrandbits(63)
    await process.send(f"{batch.version}", Branch(txn.txn_id, branch))
    application = await coordinator.application(APP)
    assert application is not None
    if any(known.version >= batch.version for known in application.committed):
        await coordinator.end(End(txn.txn_id, Action.ABORT))
        return
    await coordinator.finish_batch(batch, txn.txn_id, ranges_of(batch.version))
    application = await coordinator.application(APP)
    assert application is not None
    if (application.run, application.txn_id) != (batch.run, txn.txn_id):
        return
    await coordinator.end(End(txn.txn_id, Action.COMMIT, branches=frozenset({0, branch})))
    if chance.random() < 0.5:
        await coordinator.settle(txn.txn_id)
    committed.append(batch.version)


async def drive(process: Process, chance: random.Random, name: str, committed: list[int]) -> None:
    """Start runs that go on from some checkpoint until the last batch is done or the run is fenced or dies."""
    for attempt in range(3):
        run = f"{name}-{attempt}"
        with contextlib.suppress(*GIVES_UP):
            await process.coordinator.claim(APP, run)
            for version in range(chance.randrange(BATCHES), BATCHES):
                await work(process, chance, BatchID(APP, "query", run, version), committed)
                if chance.random() < 0.2:
                    break


async def race(world: World, seed: int, faults: float) -> tuple[list[str], list[int], list[int]]:
    chance = random.Random(seed)

    async def pause() -> None:
        for _ in range(chance.choice((0, 0, 1, 2, 5, 20))):
            await asyncio.sleep(0)

    def fault() -> str:
        return chance.choice(("refused", "lost")) if chance.random() < faults else ""

    async def sweep(process: Process) -> None:
        for _ in range(10):
            await pause()
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                await process.coordinator.collect(world.environment.now_ms() + 10**9)

    processes = []
    for _ in range(4):
        process = await world.process()
        process.wire.inner = await world.space.open_metadata(pause)
        process.wire.fault = fault
        processes.append(process)
    told: list[int] = []
    drivers = [drive(process, chance, f"run-{at}", told) for at, process in enumerate(processes[:3])]
    await asyncio.gather(*drivers, sweep(processes[3]))
    last = await world.process()
    await world.environment.advance(100_000)
    await last.coordinator.expire(world.environment.now_ms())
    application = await last.coordinator.application(APP)
    known = [] if application is None else [batch.version for batch in application.committed]
    for batch in () if application is None else application.committed:
        assert batch.ranges == ranges_of(batch.version)
    for process in processes:
        for buffer in process.buffers.values():
            await buffer.close()
    return await last.values(), told, known


@pytest.mark.parametrize("faults", [0, 0.03], ids=["calm", "faulty"])
@pytest.mark.parametrize("seed", range(25))
def test_each_batch_is_committed_once_however_runs_race(seed: int, faults: float) -> None:
    """Readable are exactly the committed batches, each once; the record has each with its consumed ranges."""
    values, told, known = asyncio.run(race(World(), seed, faults))
    assert len(values) == len(set(values)), "a batch was committed twice"
    assert len(known) == len(set(known))
    assert {int(value) for value in values} == set(known)
    assert set(told) <= set(known), "a run was told that its batch was committed"
