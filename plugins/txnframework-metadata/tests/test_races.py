"""Many small worlds in which processes race, each with another order of events; what they did is checked afterwards."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from metadata_world import SEGMENT, SUBSCRIPTION, Process, World, branch_of, entry, value_of
from txnframework.errors import Conflict, LedgerSealed, NotFound, TxnFrameworkError
from txnframework.model import (
    EARLIEST,
    Ack,
    Action,
    Begin,
    End,
    Limit,
    Position,
    ReadRequest,
    State,
)


class Racing:
    """A pause that lets others go first a random number of times."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    async def __call__(self) -> None:
        for _ in range(self.random.choice((0, 0, 1, 1, 2, 5, 20))):
            await asyncio.sleep(0)


@dataclass
class History:
    """What was done, and what came of it."""

    confirmed: dict[str, tuple[object, int]] = field(default_factory=dict)
    outcomes: dict[object, tuple[State, frozenset[int]]] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)
    acked: dict[Position, list[tuple[object, int]]] = field(default_factory=dict)
    delivered: dict[str, list[str]] = field(default_factory=dict)


async def racing_process(world: World, pause: Racing) -> Process:
    process = await world.process()
    process.wire.inner.link._pause = pause
    process.ledgers.link._pause = pause
    process.ledgers._pause = pause
    return process


async def write(process: Process, pause: Racing, history: History, name: str) -> None:
    """Begin a transaction, write under two branches, acknowledge, end it somehow."""
    try:
        txn = await process.coordinator.begin(Begin(1_000))
        for number in (0, 7):
            for at in range(pause.random.randint(0, 2)):
                value = f"{name}-{number}-{at}"
                buffer = await process.buffer()
                await buffer.append((entry(value, branch_of(txn, number)),))
                history.confirmed[value] = (txn.txn_id, number)
        position = Position(1, pause.random.randint(0, 2))
        await process.acknowledge(txn, Ack(position))
        history.acked.setdefault(position, []).append((txn.txn_id, 0))
    except (Conflict, NotFound):
        pass
    else:
        branches = pause.random.choice((frozenset({0}), frozenset({0, 7})))
        try:
            action = pause.random.choice((Action.COMMIT, Action.COMMIT, Action.ABORT))
            await process.coordinator.end(End(txn.txn_id, action, branches=branches))
            if pause.random.random() < 0.5:
                await process.coordinator.settle(txn.txn_id)
        except Conflict:
            pass


async def timeout(process: Process, pause: Racing) -> None:
    """Sweep: abort somebody early, collect at once."""
    for _ in range(6):
        await pause()
        await process.coordinator.expire(process.world.environment.now_ms() + pause.random.choice((0, 10_000)))
        await process.coordinator.collect(process.world.environment.now_ms() + 10_000_000)


async def plain(process: Process, pause: Racing, history: History) -> None:
    """Write outside transactions, close ledgers now and then."""
    for at in range(3):
        await process.send(f"plain-{at}")
        history.plain.add(f"plain-{at}")
        if pause.random.random() < 0.3:
            await (await process.ledger()).roll()


async def read(process: Process, history: History, name: str) -> None:
    """Follow the segment to its sealed end, as a dispatcher does."""
    buffer = await process.buffer()
    after = EARLIEST
    found = history.delivered.setdefault(name, [])
    while not await buffer.finished(after):
        page = await buffer.read(ReadRequest(after, Limit(2)))
        found += [value_of(readable.data) for readable in page.entries]
        if page.upto > after:
            after = page.upto
        else:
            await buffer.advanced(after)


async def race(seed: int, atomic: bool) -> tuple[World, History]:
    world = World(atomic=atomic)
    pause = Racing(seed)
    history = History()
    processes = [await racing_process(world, pause) for _ in range(4)]
    readers = [asyncio.ensure_future(read(process, history, f"r{at}")) for at, process in enumerate(processes[:2])]
    work = [write(processes[at % 3], pause, history, f"t{at}") for at in range(5)]
    work.append(timeout(processes[3], pause))
    work.append(plain(processes[2], pause, history))
    await asyncio.gather(*work)
    # Whoever is still open is past its deadline now.
    await world.environment.advance(100_000)
    await processes[3].coordinator.expire(world.environment.now_ms())
    for record in world.paths("/txn/"):
        header = await processes[3].coordinator.describe(_txn_of(record))
        history.outcomes[header.txn_id] = (header.state, header.branches or frozenset())
    await (await processes[3].ledger()).seal()
    await asyncio.wait_for(asyncio.gather(*readers), 20)
    late = await world.process()
    history.delivered["late"] = await late.values()
    for _ in range(30):
        await processes[3].coordinator.collect(world.environment.now_ms() + 10_000_000)
    history.delivered["after collection"] = await (await world.process()).values()
    for process in processes:
        for buffer in process.buffers.values():
            await buffer.close()
    return world, history


def _txn_of(path: str) -> object:
    from txnframework.model.paths import txn_id_of

    return txn_id_of(path)


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "recheck"])
@pytest.mark.parametrize("seed", range(25))
def test_no_order_of_events_breaks_the_protocol(seed: int, atomic: bool) -> None:
    """Every reader delivers the same: all that counts, once, nothing that does not; and everything can be collected."""
    outcomes: dict[object, tuple[State, frozenset[int]]] = {}
    ended = End.__call__ if False else None
    assert ended is None
    world, history = asyncio.run(race_noting(seed, atomic, outcomes))
    expected = set(history.plain)
    for value, (txn_id, number) in history.confirmed.items():
        state, branches = outcomes[txn_id]
        if state is State.COMMITTED and number in branches:
            expected.add(value)
    for name, values in history.delivered.items():
        assert len(values) == len(set(values)), f"{name}: delivered twice"
        assert set(values) == expected, name
    orders = {tuple(values) for values in history.delivered.values()}
    assert len(orders) == 1, "readers disagree on the order"
    assert world.paths("/txn/") == []
    assert world.operations() == 0
    for position, takers in history.acked.items():
        counted = [txn for txn, number in takers if outcomes[txn][0] is State.COMMITTED and number in outcomes[txn][1]]
        assert len(counted) <= 1, f"{position} consumed by {counted}"
        applied = position in [ack.position for ack in world.cursor(SEGMENT, SUBSCRIPTION).applied]
        assert applied == bool(counted)


async def race_noting(
    seed: int, atomic: bool, outcomes: dict[object, tuple[State, frozenset[int]]]
) -> tuple[World, History]:
    """Race, with every decision noted where it is made: headers are collected meanwhile."""
    from txnframework.model.paths import txn_id_of
    from txnframework.model.records import TransactionHeader, decode
    from txnframework_memory._records import Records

    put = Records._put

    def noting(self: Records, write: object, changes: object) -> object:
        record = put(self, write, changes)  # type: ignore[arg-type]
        if record.key.path.startswith("/txn/"):
            header = decode(TransactionHeader, record)
            txn_id = txn_id_of(record.key.path)
            if header.state != "OPEN":
                assert txn_id not in outcomes, "decided twice"
                outcomes[txn_id] = (State(header.state), frozenset(header.branches or ()))
        return record

    Records._put = noting  # type: ignore[method-assign,assignment]
    try:
        return await race(seed, atomic)
    finally:
        Records._put = put  # type: ignore[method-assign]


_UNUSED = (LedgerSealed, TxnFrameworkError)
