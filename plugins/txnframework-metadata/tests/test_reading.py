"""Reading a segment."""

from __future__ import annotations

from metadata_world import PUT_OPERATION, World, branch_of, path_of, step, waiting

from txnframework.model import Limit, Position, ReadRequest, TxnID, Visibility
from txnframework_metadata.options import BufferOptions


def places(steps: list[tuple[str, object]]) -> list[str]:
    """Return the operations and the kinds of their records."""
    return [f"{name} {'' if what is None else path_of(what).strip('/').split('/')[0]}" for name, what in steps]


async def test_reading_follows_the_order_that_is_the_rule() -> None:
    """The order is: the ledger's end, the intents, their headers, and then the abort records of fetched entries."""
    world = World()
    process, reader = await world.process(), await world.process()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    buffer = await reader.buffer()
    await buffer.recover()
    ledger = await reader.ledger()
    tail, order = ledger.tail, reader.wire.steps

    async def noted() -> object:
        order.append(("tail", None))
        return await tail()

    ledger.tail = noted  # type: ignore[method-assign,assignment]
    expected = ["tail ", "scan_index writes-by-segment", "get txn"]
    order.clear()
    await buffer.max_read_position()
    assert places(order) == expected
    await process.abort(txn)
    await process.coordinator.settle(txn.txn_id)
    txn = await process.begin()
    await process.send("b", branch_of(txn))
    order.clear()
    assert (await buffer.read(ReadRequest(Position(1, -1), Limit(3)))).skipped == (Position(1, 0),)
    assert places(order) == [*expected, "get txn-aborted"]


async def test_an_entry_that_is_settled_in_the_middle_of_a_reading_stays_hidden() -> None:
    """The abort record is written before the intent is deleted, and read after the intents."""
    world = World()
    process, reader = await world.process(), await world.process()
    buffer = await reader.buffer()
    await buffer.recover()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    await process.abort(txn)
    stop = reader.wire.stop(step("scan_index", "writes-by-segment"))
    reading = await waiting(reader.values())
    await process.coordinator.settle(txn.txn_id)
    assert world.operations() == 0
    stop.go.set()
    assert await reading == []


async def test_a_late_intent_never_moves_an_announced_position_back() -> None:
    """The intent names an earlier position, but has no entries there."""
    world = World()
    process, reader = await world.process(), await world.process()
    txn = await process.begin()
    stop = process.wire.stop(PUT_OPERATION)
    late = await waiting(process.send("late", branch_of(txn)))
    for at in range(3):
        await reader.send(f"{at}")
    buffer = await reader.buffer()
    assert await buffer.max_read_position() == Position(1, 2)
    stop.go.set()
    await late
    assert await buffer.max_read_position() == Position(1, 2)
    assert await reader.values() == ["0", "1", "2"]
    newcomer = await world.process()
    assert await (await newcomer.buffer()).max_read_position() == Position(1, -1)
    await process.commit(txn)
    assert await newcomer.values() == ["0", "1", "2", "late"]
    assert await reader.values() == ["0", "1", "2", "late"]


async def test_only_the_headers_that_matter_are_read() -> None:
    """The lowest open intent decides; intents behind it are not read."""
    world = World()
    world.buffer_options = BufferOptions(headers_together_max=2)
    process, reader = await world.process(), await world.process()
    for at in range(8):
        txn = await process.begin()
        await process.send(f"{at}", branch_of(txn))
    reader.wire.steps.clear()
    assert await (await reader.buffer()).recover() == Position(1, -1)
    assert sum(name == "get" for name, _ in reader.wire.steps) == 2


async def test_old_ledgers_are_read_when_somebody_starts_there() -> None:
    """Aborted branches of closed ledgers are looked up when needed, and a limited number is cached."""
    world = World()
    world.buffer_options = BufferOptions(page_records=2, outcomes_max=1)
    process, reader = await world.process(), await world.process()
    expected = []
    for at in range(5):
        txn, other = await process.begin(), await process.begin()
        await process.send(f"aborted-{at}", branch_of(txn))
        await process.send(f"unsettled-{at}", branch_of(other))
        await process.send(f"plain-{at}")
        expected.append(f"plain-{at}")
        await process.abort(txn)
        await process.abort(other)
        await process.coordinator.settle(txn.txn_id)
        await (await process.ledger()).roll()
    for _ in range(2):
        assert await reader.values() == expected
    for txn_path in world.paths("/txn/"):
        await process.coordinator.settle(TxnID.parse(txn_path[5:]))
    assert await reader.values() == expected
    assert world.operations() == 0


async def test_what_is_known_of_a_branch_is_read_and_never_guessed() -> None:
    """A branch is open, committed, unlisted or aborted; without a header, the abort record decides."""
    world = World()
    process = await world.process()
    buffer = await process.buffer()
    txn, aborted = await process.begin(), await process.begin()
    for number in (0, 7):
        await process.send("a", branch_of(txn, number))
    await process.send("a", branch_of(aborted))
    assert await buffer.resolve(branch_of(txn)) is Visibility.OPEN
    await process.commit(txn)
    await process.abort(aborted)
    for _ in range(2):
        assert await buffer.resolve(branch_of(txn)) is Visibility.COMMITTED
        assert await buffer.resolve(branch_of(txn, 7)) is Visibility.ABORTED
        assert await buffer.resolve(branch_of(aborted)) is Visibility.ABORTED
        await process.coordinator.collect(world.environment.now_ms() + 10**9)
        assert world.paths("/txn/") == []
