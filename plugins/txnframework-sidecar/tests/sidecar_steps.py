"""What the tests of crash windows share: sending, reading, and stopping between two steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from txnframework.errors import (
    LedgerNotFound,
)
from txnframework.model import (
    EARLIEST,
    Action,
    Append,
    Branch,
    End,
    Limit,
    Participant,
    Position,
    ProducerSequence,
    ReadRequest,
    Transaction,
    TxnID,
)
from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.transactions import Begin
from txnframework.testing.clock import run_ready
from txnframework.testing.connection import StoreConnection
from txnframework.testing.world import SEGMENT, World
from txnframework_sidecar.ledgers import ledger_names

NAMES = ledger_names(SEGMENT, 1)


async def begin(world: World) -> TxnID:
    txn_id = (await world.coordinator.begin(Begin(60_000))).txn_id
    await world.coordinator.enlist(txn_id, frozenset({Participant(SEGMENT)}))
    return txn_id


def entry(sequence: int, branch: Branch | None, text: str = "") -> Append:
    message = EntryMessage(None, (text or f"s{sequence}").encode(), (), sequence, 0)
    return Append(encode_entry([message], "p", branch), 1, branch, ProducerSequence("p", sequence, sequence))


async def send(world: World, sequence: int, txn: TxnID | None = None) -> bool:
    """Send; return whether it was appended, not found."""
    (appended,) = await world.buffer.append((entry(sequence, None if txn is None else Branch(txn)),))
    return not appended.duplicate


async def visible(world: World, after: Position = EARLIEST) -> list[str]:
    await world.buffer.max_read_position()
    found: list[str] = []
    while (page := await world.buffer.read(ReadRequest(after, Limit(3)))).upto > after:
        for one in page.entries:
            found += [message.value.decode() for message in EntryView(one.data).messages()]
        after = page.upto
    return found


async def decided(world: World, txn: TxnID, action: Action = Action.COMMIT) -> Transaction:
    """Decide a transaction without a notification: its end times out."""
    world.participants.out_of_reach.add(Participant(SEGMENT))
    ending = asyncio.ensure_future(world.coordinator.end(End(txn, action)))
    await run_ready()
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    world.participants.out_of_reach.clear()
    return await world.coordinator.describe(txn)


async def held(connection: StoreConnection, step: int, work: Awaitable[object]) -> tuple[asyncio.Future[object], bool]:
    """Run up to a step and hold it up there."""
    hold = connection.hold(step)
    task = asyncio.ensure_future(work)
    reached = asyncio.ensure_future(hold.reached.wait())
    await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    return task, hold.reached.is_set()


async def steps_of(work: Awaitable[object], connection: StoreConnection) -> int:
    """Return how many steps something takes: the last step of a send is its append."""
    before = connection.steps
    await work
    return connection.steps - before


async def killed(world: World, task: asyncio.Future[object]) -> None:
    world.connection.is_cut = True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def stored(world: World, name: str) -> int:
    """Return how many entries are left in a ledger."""
    try:
        ledger = await world.ledgers.open(name)
    except LedgerNotFound:
        return 0
    return sum(one.entries for one in await ledger.ledgers(-1, 1_000))


async def filled(world: World, commits: int, first: int = 1) -> list[str]:
    """Commit so many transactions, interleaved with others that are aborted; return what is to be read."""
    expected = []
    for number in range(first, first + 10 * commits, 10):
        kept, dropped = await begin(world), await begin(world)
        for step in range(2):
            await send(world, number + 2 * step, kept)
            await send(world, number + 2 * step + 1, dropped)
        await world.coordinator.end(End(dropped, Action.ABORT))
        await world.coordinator.end(End(kept, Action.COMMIT))
        expected += [f"s{number}", f"s{number + 2}"]
    return expected


async def compacted(world: World) -> None:
    while (await world.buffer.trim(0)).left:
        pass
