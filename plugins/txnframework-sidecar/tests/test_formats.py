"""What was written down, and what is refused."""

from __future__ import annotations

import pytest
from sidecar_steps import (
    NAMES,
    begin,
    entry,
    filled,
    send,
    stored,
    visible,
)
from sidecar_world import BUSY, SidecarInShortLedgers

from txnframework.errors import (
    ConfigurationError,
    CorruptEntry,
    StoreMismatch,
    UnknownFormat,
)
from txnframework.model import (
    EARLIEST,
    Action,
    Append,
    Branch,
    End,
    Position,
)
from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.testing import WorldHarness
from txnframework.testing.world import World
from txnframework_legacy.buffer.markers import MARKER_BRANCH
from txnframework_sidecar.snapshots import Snapshot, snapshot_ledger


@pytest.mark.parametrize("kind", [SidecarInShortLedgers])
async def test_snapshots_recover_equal(harness: WorldHarness, world: World) -> None:
    """Reading from a snapshot gives the same state as reading everything, with fewer reads."""
    still = await begin(world)
    await send(world, 5, still)
    expected = await filled(world, 6, 100)
    assert await visible(world) == expected
    async with harness.open() as fresh:
        assert await visible(fresh) == expected
        assert not await send(fresh, 5, still)
        await send(fresh, 6, still)
        await fresh.coordinator.end(End(still, Action.COMMIT))
        assert await visible(fresh) == await visible(world) == [*expected, "s5", "s6"]
    assert await stored(world, NAMES.snapshots) == 1


async def test_a_snapshot_past_the_end_is_refused(harness: WorldHarness, world: World) -> None:
    """A topic that is shorter than what was written down of it was restored from a backup."""
    snapshot = Snapshot(
        topic=str(Position(10**9, 5)), marked={}, repeated=[], ahead={}, references=[], own={},
        sidecar=str(EARLIEST), writing={}, noted={}, aborted={}, late={},
    )  # fmt: skip
    await snapshot_ledger(world.ledgers, NAMES.snapshots, BUSY).write(snapshot)
    with pytest.raises(StoreMismatch):
        await world.buffer.recover()


@pytest.mark.parametrize(
    ("value", "error"), [(b'{"format":2}', UnknownFormat), (b"{", CorruptEntry), (b'{"format":1}', CorruptEntry)]
)
async def test_what_cannot_be_read_is_refused(
    value: bytes, error: type[Exception], harness: WorldHarness, world: World
) -> None:
    """A marker of another release, or one that is damaged, is never passed over: neither in the topic nor beside it."""
    txn = await begin(world)
    await send(world, 1, txn)
    message = EntryMessage(None, value, (), 0, 0)
    data = encode_entry([message], "__sidecar-marker", Branch(txn, MARKER_BRANCH))
    for ledger in (await world.ledgers.open(NAMES.sidecar), world.ledger):
        async with harness.open() as fresh:
            await ledger.append((Append(data, 1, Branch(txn)),), (await ledger.tail()).open_ledger_id)
            with pytest.raises(error):
                await (fresh.buffer.recover() if ledger is world.ledger else fresh.buffer.resolve(Branch(txn)))


async def test_entries_of_another_buffer_are_refused(harness: WorldHarness, world: World) -> None:
    """A topic that was written through markers in place is not read as if nothing of it were undecided."""
    branch = Branch(await begin(world))
    tail = await world.ledger.tail()
    await world.ledger.append((entry(1, branch),), tail.open_ledger_id)
    with pytest.raises(ConfigurationError, match="another buffer"):
        await world.buffer.recover()
