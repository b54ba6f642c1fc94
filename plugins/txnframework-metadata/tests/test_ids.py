"""Transaction ids never repeat."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import World, step

from txnframework.errors import Unavailable
from txnframework.model import TxnID
from txnframework.model.paths import ids_key
from txnframework.model.records import IdBlock, decode

RESERVE = step("put", "/ids/")


async def test_ids_count_up_within_a_block_and_differ_between_processes() -> None:
    """Ids count up by one within a block; processes have blocks of their own."""
    world = World()
    one, two = await world.process(), await world.process()
    first = [(await one.begin()).txn_id.number for _ in range(12)]
    second = [(await two.begin()).txn_id.number for _ in range(3)]
    assert first == [*range(1, 11), 11, 12]
    assert second == [21, 22, 23]


async def test_a_restart_never_gives_an_id_again() -> None:
    """Unused ids that a process had reserved are lost with the process."""
    world = World()
    before = (await (await world.process()).begin()).txn_id
    after = (await (await world.process()).begin()).txn_id
    assert after.number > before.number + 1
    record = await (await world.process()).wire.get(ids_key(0))
    assert record is not None
    assert decode(IdBlock, record).next > after.number


async def test_a_block_of_unknown_outcome_is_abandoned() -> None:
    """A block of ids is not used if its reservation has an unknown outcome."""
    world = World()
    process = await world.process()
    process.wire.lose_reply(RESERVE)
    assert (await process.begin()).txn_id == TxnID(0, 11)


async def test_concurrent_reservations_give_different_blocks() -> None:
    """A reservation that lost a race is retried from the stored number."""
    world = World()
    processes = [await world.process() for _ in range(8)]
    begun = await asyncio.gather(*(process.begin() for process in processes for _ in range(15)))
    assert len({txn.txn_id for txn in begun}) == len(begun)


async def test_a_refused_reservation_leaves_the_coordinator_usable() -> None:
    """The error is raised and changes nothing; a cancelled call changes nothing, either."""
    world = World()
    process = await world.process()
    process.wire.refuse(RESERVE)
    with pytest.raises(Unavailable):
        await process.begin()
    stop = process.wire.stop(RESERVE)
    task = asyncio.ensure_future(process.begin())
    await stop.reached.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await process.begin()).txn_id.number == 1
