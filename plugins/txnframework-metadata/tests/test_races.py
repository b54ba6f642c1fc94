"""Many small worlds in which processes race in random orders; their results are checked afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from metadata_world import Process, World, branch_of, entry, value_of

from txnframework.errors import Conflict, NotFound, OutcomeUnknown, Unavailable
from txnframework.model import (
    EARLIEST,
    Ack,
    Action,
    Begin,
    Branch,
    End,
    Limit,
    Position,
    ReadRequest,
    Record,
    State,
    Step,
    TxnID,
)
from txnframework.model.paths import txn_id_of
from txnframework.model.records import TransactionHeader, decode

GIVES_UP = (Conflict, NotFound, Unavailable, OutcomeUnknown)


class Racing:
    """A pause that lets others go first a random number of times."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    async def __call__(self) -> None:
        for _ in range(self.random.choice((0, 0, 1, 1, 2, 5, 20))):
            await asyncio.sleep(0)


@dataclass
class History:
    """The operations, the decisions (recorded when made, because headers are collected), and the reads."""

    plain: set[str] = field(default_factory=set)
    confirmed: dict[str, Branch] = field(default_factory=dict)
    acknowledged: list[tuple[Position, Branch]] = field(default_factory=list)
    decided: dict[TxnID, tuple[State, frozenset[int]]] = field(default_factory=dict)
    delivered: dict[str, list[str]] = field(default_factory=dict)

    def counts(self, branch: Branch) -> bool:
        state, branches = self.decided[branch.txn_id]
        return state is State.COMMITTED and branch.number in branches

    def note_decisions(self, world: World) -> None:
        """Note every header that ends from now on."""
        apply = world.space.records.apply

        def noting(step: Step, *versions: Any) -> tuple[Record, ...]:
            written = apply(step, *versions)
            for record in written:
                if record.key.path.startswith("/txn/"):
                    header = decode(TransactionHeader, record)
                    txn_id = txn_id_of(record.key.path)
                    assert txn_id not in self.decided, "an ended transaction was written again"
                    if header.finalized_ms is not None:
                        self.decided[txn_id] = (State(header.state), frozenset(header.branches or ()))
            return written

        world.space.records.apply = noting  # type: ignore[method-assign]


async def racing_process(world: World, pause: Racing, faults: float) -> Process:
    """Start a process whose every step takes a random time; some are refused, and some lose their reply."""

    def fault() -> str:
        return pause.random.choice(("refused", "lost")) if pause.random.random() < faults else ""

    process = await world.process()
    process.wire.fault = fault
    process.wire.inner = await world.space.open_metadata(pause)
    process.ledgers = await world.space.open_ledgers(None, pause)
    return process


async def transact(process: Process, pause: Racing, history: History, name: str) -> None:
    """
    Begin a transaction, write under two branches, acknowledge, end it somehow; others may end it before.

    As a client does, it gives up the branch of an operation that failed: what it does not know is not committed.
    """
    with contextlib.suppress(*GIVES_UP):
        txn = await process.coordinator.begin(Begin(1_000))
        branches = {0, 7}
        for number in (0, 7):
            try:
                for at in range(pause.random.randint(0, 2)):
                    value = f"{name}-{number}-{at}"
                    await (await process.buffer()).append((entry(value, branch_of(txn, number)),))
                    history.confirmed[value] = branch_of(txn, number)
            except (Unavailable, OutcomeUnknown):
                branches.remove(number)
        position = Position(1, pause.random.randint(0, 2))
        await process.acknowledge(txn, Ack(position))
        history.acknowledged.append((position, branch_of(txn)))
        action = pause.random.choice((Action.COMMIT, Action.COMMIT, Action.ABORT)) if 0 in branches else Action.ABORT
        branches &= pause.random.choice(({0}, {0, 7}))
        await process.coordinator.end(End(txn.txn_id, action, branches=frozenset(branches)))
        if pause.random.random() < 0.5:
            await process.coordinator.settle(txn.txn_id)


async def sweep(process: Process, pause: Racing) -> None:
    """Abort a transaction early, and collect without waiting."""
    for _ in range(6):
        await pause()
        now_ms = process.world.environment.now_ms()
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            await process.coordinator.expire(now_ms + pause.random.choice((0, 10_000)))
            await process.coordinator.collect(now_ms + 10_000_000)


async def publish(process: Process, pause: Racing, history: History) -> None:
    """Write outside transactions, close the ledger now and then."""
    for at in range(3):
        while True:
            with contextlib.suppress(Unavailable):
                await process.send(f"plain-{at}")
                break
        history.plain.add(f"plain-{at}")
        if pause.random.random() < 0.3:
            await (await process.ledger()).roll()


async def follow(process: Process, history: History, name: str) -> None:
    """Read the segment to its sealed end, as a dispatcher does."""
    buffer = await process.buffer()
    after = EARLIEST
    found = history.delivered.setdefault(name, [])
    finished = False
    while not finished:
        with contextlib.suppress(Unavailable):
            page = await buffer.read(ReadRequest(after, Limit(2)))
            found += [value_of(readable.data) for readable in page.entries]
            if page.upto > after:
                after = page.upto
            else:
                await buffer.advanced(after)
            finished = await buffer.finished(after)


async def race(world: World, seed: int, faults: float) -> History:
    """Let four processes at it, then end what is open, read once more, collect everything, read once more."""
    pause = Racing(seed)
    history = History()
    history.note_decisions(world)
    processes = [await racing_process(world, pause, faults) for _ in range(4)]
    readers = [asyncio.ensure_future(follow(processes[at], history, f"reader {at}")) for at in range(2)]
    work = [transact(processes[at % 3], pause, history, f"t{at}") for at in range(5)]
    await asyncio.gather(*work, sweep(processes[3], pause), publish(processes[2], pause, history))
    await world.environment.advance(100_000)
    last = await world.process()
    await last.coordinator.expire(world.environment.now_ms())
    await (await last.ledger()).seal()
    await asyncio.wait_for(asyncio.gather(*readers), 60)
    history.delivered["a late reader"] = await last.values()
    for _ in range(30):
        await last.coordinator.collect(world.environment.now_ms() + 10_000_000)
    history.delivered["a reader after collection"] = await (await world.process()).values()
    for process in processes:
        for buffer in process.buffers.values():
            await buffer.close()
    return history


@pytest.mark.parametrize("faults", [0, 0.03], ids=["calm", "faulty"])
@pytest.mark.parametrize("seed", range(25))
def test_no_order_of_events_breaks_the_protocol(seed: int, faults: float) -> None:
    """All readers see the same committed messages, once; no message is consumed twice; no records remain."""
    world = World()
    history = asyncio.run(race(world, seed, faults))
    expected = history.plain | {value for value, branch in history.confirmed.items() if history.counts(branch)}
    for name, values in history.delivered.items():
        assert len(values) == len(set(values)), f"{name} was given something twice"
        assert set(values) == expected, name
    assert len({tuple(values) for values in history.delivered.values()}) == 1, "readers disagree on the order"
    applied = {ack.position for ack in world.cursor().applied}
    for position in {position for position, _ in history.acknowledged}:
        takers = [branch for taken, branch in history.acknowledged if taken == position and history.counts(branch)]
        assert len(takers) <= 1, f"{position} was consumed by {takers}"
        assert (position in applied) == bool(takers)
    assert world.paths("/txn/") == []
    assert world.operations() == 0
