"""Opening and closing a segment: whether its ledger matches its records."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import SEGMENT, World, branch_of, step, waiting

from txnframework.errors import Closed, StoreMismatch, Unavailable
from txnframework.model import EARLIEST, Expect, Position, Put, TxnID
from txnframework.model.indexes import abort_indexes
from txnframework.model.paths import abort_record_key
from txnframework.model.records import AbortRecord, WriteOperation, encode
from txnframework_metadata.records.operations import put_operations, require_open


async def test_a_ledger_that_ends_before_an_intent_is_refused() -> None:
    """The ledger store is older than the metadata store; the error names the repair command."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    document = WriteOperation(branch=0, segment=SEGMENT, ledger=1, after="1:5")
    await put_operations(process.wire, await require_open(process.wire, txn.txn_id), [document], 10)
    buffer = await process.buffer()
    with pytest.raises(StoreMismatch, match=r"names 1:5 of .*ends at 1:-1.*restore --restored ledger"):
        await buffer.recover()
    with pytest.raises(StoreMismatch):
        await process.values()


@pytest.mark.parametrize(("ledger", "after"), [(1, "1:5"), (4, "1:-1")])
async def test_a_ledger_that_ends_before_an_abort_record_is_refused(ledger: int, after: str) -> None:
    """The ledger is older by its number or by its end."""
    process = await World().process()
    key = abort_record_key(SEGMENT, ledger, TxnID(0, 5), 0)
    record = AbortRecord(after=after)
    await process.wire.put(Put(key, encode(record), Expect.ABSENT, abort_indexes(SEGMENT, ledger, record)))
    with pytest.raises(StoreMismatch):
        await (await process.buffer()).recover()


async def test_a_healthy_busy_pair_is_never_refused() -> None:
    """What the metadata store says is read before the ledger's end, which only grows."""
    world = World()
    process, opener = await world.process(), await world.process()
    await process.send("a")
    stop = opener.wire.stop(step("scan_index", "writes-by-segment"))
    recovering = await waiting((await opener.buffer()).recover())
    assert stop.reached.is_set()
    await process.send("b")
    txn = await process.begin()
    await (await process.ledger()).roll()
    await process.send("c", branch_of(txn))
    stop.go.set()
    assert await recovering == Position(1, 1)


async def test_a_pair_that_aborts_while_it_is_opened_is_not_refused() -> None:
    """An abort record beyond where the ledger ended just before is compared with where it ends now."""
    world = World()
    process, opener = await world.process(), await world.process()
    await process.send("a")
    stop = opener.wire.stop(step("scan_index", "aborts-by-bound"))
    recovering = await waiting((await opener.buffer()).recover())
    assert stop.reached.is_set()
    await process.send("b")
    txn = await process.begin()
    await process.send("c", branch_of(txn))
    await process.abort(txn)
    await process.coordinator.settle(txn.txn_id)
    stop.go.set()
    assert await recovering == Position(1, 2)
    assert await opener.values() == ["a", "b"]


async def test_a_failed_recovery_can_be_repeated() -> None:
    """The next call reads again; no task loops, and nothing is half open."""
    process = await World().process()
    process.wire.refuse(step("scan_index", "writes-by-segment"))
    with pytest.raises(Unavailable):
        await process.send("a")
    await process.send("b")
    assert await process.values() == ["b"]


async def test_sends_that_wait_for_recovery_keep_their_order() -> None:
    """They go on in the order of the calls."""
    process = await World().process()
    stop = process.wire.stop(step("scan_index", "writes-by-segment"))
    await process.buffer()
    sends = [asyncio.ensure_future(process.send(f"{at}")) for at in range(5)]
    await stop.reached.wait()
    stop.go.set()
    await asyncio.gather(*sends)
    assert await process.values() == [f"{at}" for at in range(5)]


async def test_a_closed_buffer_says_so() -> None:
    """Every call raises Closed; closing may be repeated."""
    process = await World().process()
    buffer = await process.buffer()
    await buffer.close()
    await buffer.close()
    for call in (buffer.recover(), buffer.max_read_position(), buffer.advanced(EARLIEST), process.send("a")):
        with pytest.raises(Closed):
            await call
