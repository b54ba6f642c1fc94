"""What happens between two steps: of sending, ending, compacting and trimming; and what is told apart then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from sidecar_world import BUSY, ShortLedgers, SidecarInMemory, SidecarInShortLedgers, SmallMarkers

from txnframework.errors import (
    CorruptEntry,
    EndTransactionTimeout,
    LedgerNotFound,
    OutcomeUnknown,
    StoreMismatch,
    UnknownFormat,
)
from txnframework.model import (
    EARLIEST,
    Action,
    Append,
    Branch,
    End,
    EntryRange,
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
from txnframework.testing import WorldHarness
from txnframework.testing.clock import run_ready
from txnframework.testing.line import Line
from txnframework.testing.world import SEGMENT, World
from txnframework_legacy.buffer.markers import MARKER_BRANCH
from txnframework_sidecar.buffer import SidecarBuffer
from txnframework_sidecar.compaction.format import Kind, decode_line
from txnframework_sidecar.ledgers import names_of
from txnframework_sidecar.model.markers import read_topic_entry
from txnframework_sidecar.snapshots import Snapshot, Snapshots

NAMES = names_of(SEGMENT, 1)
Scenario = Callable[[WorldHarness], Awaitable[None]]
Runner = Callable[[type[WorldHarness], Scenario], None]


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    def run(kind: type[WorldHarness], test: Scenario) -> None:
        async def main() -> None:
            harness = kind(tmp_path)
            async with asyncio.timeout(30):
                await test(harness)
            await harness.destroy()

        asyncio.run(main())

    return run


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
    """Decide a transaction, and let nobody be told: its end times out."""
    world.participants.out_of_reach.add(Participant(SEGMENT))
    ending = asyncio.ensure_future(world.coordinator.end(End(txn, action)))
    await run_ready()
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    world.participants.out_of_reach.clear()
    return await world.coordinator.describe(txn)


async def held(line: Line, step: int, work: Awaitable[object]) -> tuple[asyncio.Future[object], bool]:
    """Run up to a step and hold it up there."""
    hold = line.hold(step)
    task = asyncio.ensure_future(work)
    reached = asyncio.ensure_future(hold.reached.wait())
    await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    return task, hold.reached.is_set()


async def steps_of(work: Awaitable[object], line: Line) -> int:
    """Return how many steps something takes: the last step of a send is its append."""
    before = line.steps
    await work
    return line.steps - before


async def killed(world: World, task: asyncio.Future[object]) -> None:
    world.line.is_cut = True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def stored(world: World, name: str) -> int:
    """Return how many entries are left in a ledger."""
    try:
        ledger = await world.ledgers.open(name)
    except LedgerNotFound:
        return 0
    return sum(one.entries for one in await ledger.ledgers(-1, 1_000))


def test_trimmed_while_it_is_read(run: Runner) -> None:
    """What was fetched before the topic was trimmed is read as it would have been: of two markers the first."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as world:
            txn = await begin(world)
            await send(world, 1, txn)
            await world.coordinator.end(End(txn, Action.COMMIT))
            (marker,) = await world.ledger.read(EntryRange(EARLIEST, await world.buffer.max_read_position()), Limit(9))
            await world.ledger.append((Append(marker.data, 1, Branch(txn)),), marker.position.ledger_id)
            await world.buffer.max_read_position()
            reading = asyncio.ensure_future(world.buffer.read(ReadRequest(EARLIEST, Limit(9))))
            hold = world.line.hold(2)  # the topic's entries were fetched, and those of the sidecar are about to be
            await hold.reached.wait()
            await world.buffer.trim((await world.ledger.roll()).open_ledger_id)
            world.line.restore()
            assert [one.position for one in (await reading).entries] == [marker.position]

    run(SidecarInMemory, test)


# -- sending ------------------------------------------------------------------------------------------


def test_appended_and_the_reply_lost(run: Runner) -> None:
    """Sent again in its transaction it stands in the sidecar once, from whichever process it is sent again."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as world, harness.open() as other:
            txn = await begin(world)
            await send(world, 1, txn)
            world.line.lose(1)
            with pytest.raises(OutcomeUnknown):
                await send(world, 2, txn)
            world.line.restore()
            assert not await send(other, 2, txn)
            assert not await send(world, 2, txn)
            await world.coordinator.end(End(txn, Action.COMMIT))
            assert await visible(other) == ["s1", "s2"]
            assert not await send(other, 2), "it was committed"

    run(SidecarInMemory, test)


def test_written_behind_the_decision(run: Runner) -> None:
    """
    An entry of a writer that was paused while its transaction was committed is listed in the marker or never read; sent
    again it is found if it is listed, and read once if it is not.
    """

    async def test(harness: WorldHarness) -> None:
        step, reached, sequence, expected = 0, True, 10, list[str]()
        async with harness.open() as other:
            while reached:
                step, sequence = step + 1, sequence + 10
                txn = await begin(other)
                async with harness.open() as world:
                    await send(world, sequence, txn)
                    sending, reached = await held(world.line, step, send(world, sequence + 1, txn))
                    await other.coordinator.end(End(txn, Action.COMMIT))
                    world.line.restore()
                    await asyncio.gather(sending, return_exceptions=True)
                await send(other, sequence + 1)
                expected += [f"s{sequence}", f"s{sequence + 1}"]
                async with harness.open() as fresh:
                    for process in (other, fresh):
                        assert await visible(process) == expected, f"held up at step {step}"

    run(SidecarInMemory, test)


def test_written_while_it_is_ended(run: Runner) -> None:
    """The same between any two steps of ending, the last of which are after the markers and before the note."""

    async def test(harness: WorldHarness) -> None:
        step, reached, sequence, expected = 0, True, 10, list[str]()
        async with harness.open() as other:
            while reached:
                step, sequence = step + 1, sequence + 10
                txn = await begin(other)
                async with harness.open() as world, harness.open() as ending:
                    await send(world, sequence, txn)
                    appending = await steps_of(send(world, sequence + 5, txn), world.line)
                    sending, _ = await held(world.line, appending, send(world, sequence + 1, txn))
                    settling, reached = await held(ending.line, step, ending.buffer.settle(await decided(other, txn)))
                    world.line.restore()
                    await asyncio.gather(sending, return_exceptions=True)
                    ending.line.restore()
                    await settling
                await send(other, sequence + 1)
                expected += [f"s{sequence}", f"s{sequence + 5}", f"s{sequence + 1}"]
                async with harness.open() as fresh:
                    for process in (other, fresh):
                        assert await visible(process) == expected, f"held up at step {step}"

    run(SidecarInMemory, test)


# -- ending -------------------------------------------------------------------------------------------


def test_two_processes_end_at_once(run: Runner) -> None:
    """Held up at any step of ending while another process ends too: there may be two markers, and one is read."""

    async def test(harness: WorldHarness) -> None:
        step, reached, repeated, expected = 0, True, 0, list[str]()
        async with harness.open() as other:
            while reached:
                step += 1
                txn = await begin(other)
                await send(other, step, txn)
                ended = await decided(other, txn)
                async with harness.open() as world:
                    settling, reached = await held(world.line, step, world.buffer.settle(ended))
                    before = (await other.ledger.tail()).last_confirmed
                    await other.buffer.settle(ended)
                    world.line.restore()
                    await settling
                    after = (await other.ledger.tail()).last_confirmed
                    repeated += len(await other.ledger.read(EntryRange(before, after), Limit(9))) > 1
                    expected.append(f"s{step}")
                    async with harness.open() as fresh:
                        for process in (world, other, fresh):
                            assert await visible(process) == expected, f"held up at step {step}"
                if step % 3 == 0:
                    await other.ledger.roll()
            assert repeated, "no step was between looking and appending"

    run(ShortLedgers, test)


def test_killed_between_marker_and_note(run: Runner) -> None:
    """Killed at any step of ending, and both ledgers closed since: whoever ends it again makes it visible once."""

    async def test(harness: WorldHarness) -> None:
        step, reached, expected = 0, True, list[str]()
        async with harness.open() as other:
            while reached:
                step += 1
                txn = await begin(other)
                await send(other, step, txn)
                ended = await decided(other, txn)
                async with harness.open() as world:
                    settling, reached = await held(world.line, step, world.buffer.settle(ended))
                    await killed(world, settling)
                await send(other, 1_000 + step)
                is_marked = (await visible(other))[-2:] == [f"s{step}", f"s{1_000 + step}"]
                await other.ledger.roll()
                await (await other.ledgers.open(NAMES.sidecar)).roll()
                await send(other, 2_000 + step)
                for _ in range(2):
                    await other.buffer.settle(ended)
                new = [f"s{step}", f"s{1_000 + step}", f"s{2_000 + step}"]
                expected += new if is_marked else [*new[1:], new[0]]
                async with harness.open() as fresh:
                    for process in (other, fresh):
                        assert await visible(process) == expected, f"killed at step {step}"

    run(ShortLedgers, test)


def test_marked_and_trimmed_before_it_was_noted(run: Runner) -> None:
    """A commit whose marker was trimmed with the topic, and whose writer died before the note, never comes again."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as other:
            txn = await begin(other)
            await send(other, 1, txn)
            ended = await decided(other, txn)
            for step in range(1, 50):
                async with harness.open() as world:
                    settling, _ = await held(world.line, step, world.buffer.settle(ended))
                    is_marked = await visible(other) == ["s1"]
                    await killed(world, settling)
                if is_marked:
                    break
            await other.ledger.roll()
            await send(other, 2)
            last = await other.buffer.max_read_position()
            await other.buffer.trim(last.ledger_id)
            start = Position(last.ledger_id, -1)
            async with harness.open() as fresh:
                for process in (fresh, other):
                    await process.buffer.settle(ended)
                    assert await visible(process, start) == ["s2"]

    run(SidecarInMemory, test)


def test_ending_on_a_sealed_topic_times_out(run: Runner) -> None:
    """The limit of the family: no marker can be written there, so the commit never takes effect."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as world:
            txn = await begin(world)
            await send(world, 1, txn)
            await world.ledger.seal()
            ending = asyncio.ensure_future(world.coordinator.end(End(txn, Action.COMMIT)))
            await harness.settle()
            await harness.pass_time(harness.transactions.end_timeout_ms)
            with pytest.raises(EndTransactionTimeout):
                await ending
            assert await visible(world) == []

    run(SidecarInMemory, test)


# -- compaction and retention -------------------------------------------------------------------------


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


def test_compaction_while_it_is_read(run: Runner) -> None:
    """A reader that is held up at any step while everything is compacted and trimmed reads the same, in its order."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as world:
            everything, step, reached = list[str](), 0, True
            while reached:
                step += 1
                last = await world.buffer.max_read_position()
                expected = await filled(world, 3, 1_000 * step)
                everything += expected
                async with harness.open() as reader:
                    reading, reached = await held(reader.line, step, visible(reader, last))
                    await compacted(world)
                    reader.line.restore()
                    assert await reading == expected, f"held up at step {step}"
            assert await visible(world) == everything
            assert await stored(world, NAMES.sidecar) <= 4, "messages and notes of what is over are gone"
            for sequence in (1_000, 1_002):
                assert not await send(world, sequence), "what was compacted is still recognized"

    run(ShortLedgers, test)


def test_killed_while_compacting(run: Runner) -> None:
    """Killed at any step of compaction, nothing is lost, and whoever compacts next goes on."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as other:
            expected = await filled(other, 2)
            step, reached = 0, True
            while reached:
                step += 1
                async with harness.open() as world:
                    compacting, reached = await held(world.line, step, world.buffer.trim(0))
                    await killed(world, compacting)
                async with harness.open() as fresh:
                    for process in (other, fresh):
                        assert await visible(process) == expected, f"killed at step {step}"
                await compacted(other)
                assert await visible(other) == expected
                expected += await filled(other, 2, 1_000 * step)

    run(ShortLedgers, test)


def test_two_processes_compact_at_once(run: Runner) -> None:
    """Held up at any step of compaction while another process compacts too: nothing is lost or read twice."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as other:
            expected = await filled(other, 2)
            step, reached = 0, True
            while reached:
                step += 1
                async with harness.open() as world:
                    compacting, reached = await held(world.line, step, world.buffer.trim(0))
                    await compacted(other)
                    world.line.restore()
                    await compacting
                    async with harness.open() as fresh:
                        for process in (world, other, fresh):
                            assert await visible(process) == expected, f"held up at step {step}"
                expected += await filled(other, 2, 1_000 * step)

    run(ShortLedgers, test)


def test_a_large_transaction_has_several_markers_and_a_ledger_of_its_own(run: Runner) -> None:
    """It is read as a whole; compacted it stands alone, so that it goes as soon as the topic is trimmed behind it."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as world:
            small, large = await begin(world), await begin(world)
            await send(world, 1, small)
            for sequence in range(10, 15):
                await send(world, sequence, large)
                assert await visible(world) == []
            await world.coordinator.end(End(small, Action.COMMIT))
            await world.coordinator.end(End(large, Action.COMMIT))
            await send(world, 20)
            expected = ["s1", *(f"s{sequence}" for sequence in range(10, 15)), "s20"]
            assert await visible(world) == expected
            last = (await world.ledger.tail()).last_confirmed
            entries = await world.ledger.read(EntryRange(EARLIEST, last), Limit(9))
            markers = [read_topic_entry(one, SEGMENT) for one in entries]
            assert [None if one is None else (one.number, one.parts, one.part.messages) for one in markers] == [
                (0, 1, 1),
                (0, 3, 2),
                (1, 3, 2),
                (2, 3, 1),
                None,
            ]
            await compacted(world)
            row = await world.ledgers.open(NAMES.compacted)
            kept = []
            for summary in await row.ledgers(-1, 9):
                upto = Position(summary.ledger_id, summary.entries - 1)
                lines = [
                    decode_line(one, "row")
                    for one in await row.read(EntryRange(Position(summary.ledger_id, -1), upto), Limit(9))
                ]
                kept.append([line.position.entry_id for line in lines if line.kind is Kind.KEPT])
            assert [1, 2, 3] in kept, "the large one stands alone"
            async with harness.open() as fresh:
                assert await visible(fresh) == expected

    run(SmallMarkers, test)


def test_retention_follows_the_topic(run: Runner) -> None:
    """What the topic refers to no more goes from beside it, and what is kept in memory does not grow."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as world:
            for turn in range(5):
                await filled(world, 4, 1 + 1_000 * turn)
                await world.ledger.roll()
                await send(world, 1_000 * turn + 999)
                last = await world.buffer.max_read_position()
                while (await world.buffer.trim(last.ledger_id)).left:
                    pass
                assert await visible(world, Position(last.ledger_id, -1)) == [f"s{1_000 * turn + 999}"]
                assert await stored(world, NAMES.sidecar) <= 4
                assert await stored(world, NAMES.compacted) <= 4
            await filled(world, 1, 9_000)
            buffer = world.buffer
            assert isinstance(buffer, SidecarBuffer)
            index, stream = buffer._ledgers.index, buffer._ledgers.stream
            sizes = (index.writing, index.noted, index.late, stream.repeated, stream.ahead, stream.references.lowest)
            assert max(map(len, sizes)) <= 4

    run(ShortLedgers, test)


# -- what was written down, and formats ---------------------------------------------------------------


def test_snapshots_recover_equal(run: Runner) -> None:
    """Whoever begins with a snapshot knows what whoever read everything knows, and does not read everything."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as world:
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

    run(SidecarInShortLedgers, test)


def test_a_snapshot_past_the_end_is_refused(run: Runner) -> None:
    """A topic that is shorter than what was written down of it was restored from a backup."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as world:
            snapshot = Snapshot(
                topic=str(Position(10**9, 5)), marked={}, repeated=[], ahead={}, references=[],
                sidecar=str(EARLIEST), writing={}, noted={}, aborted={}, late={},
            )  # fmt: skip
            await Snapshots(world.ledgers, NAMES.snapshots, BUSY).write(snapshot)
            with pytest.raises(StoreMismatch):
                await world.buffer.recover()

    run(SidecarInMemory, test)


@pytest.mark.parametrize(
    ("value", "error"), [(b'{"format":2}', UnknownFormat), (b"{", CorruptEntry), (b'{"format":1}', CorruptEntry)]
)
def test_what_cannot_be_read_is_refused(run: Runner, value: bytes, error: type[Exception]) -> None:
    """A marker of another release, or one that is damaged, is never passed over: neither in the topic nor beside it."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as world:
            txn = await begin(world)
            await send(world, 1, txn)
            message = EntryMessage(None, value, (), 0, 0)
            data = encode_entry([message], "__sidecar-marker", Branch(txn, MARKER_BRANCH))
            for ledger in (await world.ledgers.open(NAMES.sidecar), world.ledger):
                async with harness.open() as fresh:
                    await ledger.append((Append(data, 1, Branch(txn)),), (await ledger.tail()).open_ledger_id)
                    with pytest.raises(error):
                        await (fresh.buffer.recover() if ledger is world.ledger else fresh.buffer.resolve(Branch(txn)))

    run(SidecarInMemory, test)


def test_entries_of_another_buffer_are_refused(run: Runner) -> None:
    """A topic that was written through markers in place is not read as if nothing of it were undecided."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as world:
            branch = Branch(await begin(world))
            tail = await world.ledger.tail()
            await world.ledger.append((entry(1, branch),), tail.open_ledger_id)
            with pytest.raises(CorruptEntry, match="another transaction buffer"):
                await world.buffer.recover()

    run(SidecarInMemory, test)
