"""Rules of visibility."""

from __future__ import annotations

import asyncio

from txnframework.interfaces import IInPlaceBuffer, ITransactionBuffer, ITransactionCoordinator
from txnframework.model import Branch, Isolation, Visibility
from txnframework.testing._suites._buffer._case import (
    BufferRules,
    abort,
    begin,
    commit,
    pages,
    send,
    skipped,
    text_of,
    visible,
)
from txnframework.testing.capabilities import requires


class VisibilityRules(BufferRules):
    """Committed messages are visible, open transactions hold back readers, and aborted messages are skipped."""

    async def test_keeps_the_interface(self) -> None:
        """Buffer and coordinator have all methods and attributes of their roles."""
        from txnframework.plugin import verify_provider

        async with self.data.open() as world:
            verify_provider(ITransactionBuffer, world.buffer)
            verify_provider(ITransactionCoordinator, world.coordinator)

    async def test_plain_messages_are_readable_at_once(self) -> None:
        """
        Messages outside transactions are readable in all processes once confirmed, and advance the max read position.
        """
        async with self.data.open() as world, self.data.open() as other:
            assert await visible(world) == []
            for text in ("a", "b"):
                position = await send(world, text)
                assert await world.buffer.max_read_position() >= position
                assert await other.buffer.max_read_position() >= position
            assert await visible(world) == await visible(other) == ["a", "b"]

    @requires(IInPlaceBuffer)
    async def test_open_pins(self) -> None:
        """
        Messages of an open transaction, and all after them, are unreadable; after the commit all are read in order.

        If this fails, check that the lowest ``after`` of open operations bounds the max read position.
        """
        async with self.data.open() as world, self.data.open() as other:
            first = await send(world, "before")
            txn = await begin(world)
            inside = await send(world, "inside", txn)
            await send(world, "behind")
            for process in (world, other):
                assert first <= await process.buffer.max_read_position() < inside
                assert await visible(process) == ["before"]
            await commit(world, txn)
            for process in (world, other):
                assert await visible(process) == ["before", "inside", "behind"]

    @requires(IInPlaceBuffer)
    async def test_aborted_is_skipped(self) -> None:
        """Messages of an aborted transaction are never readable, and a read reports that they were skipped."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            inside = [await send(world, "inside", txn), await send(world, "inside", txn)]
            last = await send(world, "behind")
            await abort(world, txn)
            for process in (world, other):
                assert await visible(process) == ["behind"]
                assert await skipped(process) == inside
                assert await process.buffer.max_read_position() >= last

    @requires(IInPlaceBuffer)
    async def test_pages_of_skipped_entries_are_progress(self) -> None:
        """A reader passes any number of aborted entries, and a read reports each of them once."""
        async with self.data.open() as world:
            txn = await begin(world)
            inside = [await send(world, f"x{number}", txn) for number in range(10)]
            await send(world, "behind")
            await abort(world, txn)
            assert await skipped(world) == inside
            assert await visible(world) == ["behind"]

    @requires(IInPlaceBuffer)
    async def test_interleaved_transactions(self) -> None:
        """
        Interleaved transactions on one segment end independently; committed messages are read in order of position.
        """
        async with self.data.open() as world:
            one, two, three = await begin(world), await begin(world), await begin(world)
            for number in range(3):
                await send(world, f"one-{number}", one)
                await send(world, f"two-{number}", two)
                await send(world, f"three-{number}", three)
            await commit(world, two)
            assert await visible(world) == []
            await abort(world, three)
            await commit(world, one)
            expected = [f"{name}-{number}" for number in range(3) for name in ("one", "two")]
            assert await visible(world) == expected

    async def test_branches_that_count(self) -> None:
        """
        In a committed transaction, the listed branches are readable and all other branches are aborted.

        If this fails, check that all uses of an outcome also test the branches of the commit.
        """
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            await send(world, "zero", txn, 0)
            await send(other, "five", txn, 5)
            await send(other, "six", txn, 6)
            await send(world, "five again", txn, 5)
            await commit(world, txn, 0, 5)
            for process in (world, other):
                assert await visible(process) == ["zero", "five", "five again"]
        async with self.data.open() as fresh:
            assert await visible(fresh) == ["zero", "five", "five again"]

    @requires(IInPlaceBuffer)
    async def test_branches_that_do_not_count_are_skipped(self) -> None:
        """A read reports a branch that the commit left out as skipped, like an aborted one."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            await send(world, "zero", txn)
            lost = await send(other, "six", txn, 6)
            await commit(world, txn)
            for process in (world, other):
                assert await skipped(process) == [lost]

    async def test_unlisted_branch_zero(self) -> None:
        """A commit that does not list branch 0 aborts the messages of branch 0."""
        async with self.data.open() as world:
            txn = await begin(world)
            await send(world, "zero", txn, 0)
            await send(world, "five", txn, 5)
            await commit(world, txn, 5)
            assert await visible(world) == ["five"]

    async def test_largest_branch(self) -> None:
        """A branch number may be any 63-bit number."""
        async with self.data.open() as world:
            txn = await begin(world)
            largest = (1 << 63) - 1
            await send(world, "largest", txn, largest)
            await send(world, "lost", txn, largest - 1)
            await commit(world, txn, 0, largest)
            assert await visible(world) == ["largest"]

    @requires(IInPlaceBuffer)
    async def test_read_uncommitted(self) -> None:
        """READ_UNCOMMITTED returns all entries up to the tail, with the known state of each."""
        async with self.data.open() as world:
            kept, dropped, undecided = await begin(world), await begin(world), await begin(world)
            await send(world, "plain")
            await send(world, "kept", kept)
            await send(world, "dropped", dropped)
            await send(world, "open", undecided)
            await commit(world, kept)
            await abort(world, dropped)
            found = [one for page in await pages(world, isolation=Isolation.READ_UNCOMMITTED) for one in page.entries]
            assert [(text_of(one), one.visibility, one.branch) for one in found] == [
                ("plain", Visibility.COMMITTED, None),
                ("kept", Visibility.COMMITTED, Branch(kept)),
                ("dropped", Visibility.ABORTED, Branch(dropped)),
                ("open", Visibility.OPEN, Branch(undecided)),
            ]

    async def test_resolve(self) -> None:
        """``resolve`` returns open, committed or aborted; a branch that the commit left out is aborted."""
        async with self.data.open() as world, self.data.open() as other:
            txn, dropped = await begin(world), await begin(world)
            for branch in (0, 5, 6):
                await send(world, "x", txn, branch)
            await send(world, "x", dropped)
            for process in (world, other):
                assert await process.buffer.resolve(Branch(txn, 5)) is Visibility.OPEN
            await commit(world, txn, 0, 5)
            await abort(world, dropped)
            for process in (world, other):
                assert await process.buffer.resolve(Branch(txn, 0)) is Visibility.COMMITTED
                assert await process.buffer.resolve(Branch(txn, 5)) is Visibility.COMMITTED
                assert await process.buffer.resolve(Branch(txn, 6)) is Visibility.ABORTED
                assert await process.buffer.resolve(Branch(dropped)) is Visibility.ABORTED

    async def test_max_read_position_never_moves_back(self) -> None:
        """No process announces a lower max read position than before, whatever begins, ends or is read."""
        async with self.data.open() as world, self.data.open() as other:
            processes = (world, other)
            announced = [await process.buffer.max_read_position() for process in processes]
            for number in range(6):
                txn = await begin(world)
                writes = (send(world, "x", txn), send(other, "y", txn, 1), send(other, "plain"))
                await asyncio.gather(*writes)
                for at, process in enumerate(processes):
                    now = await process.buffer.max_read_position()
                    assert now >= announced[at]
                    announced[at] = now
                await (commit(world, txn, 0, 1) if number % 2 else abort(other, txn))
            assert (await visible(world)).count("x") == 3
            assert await visible(world) == await visible(other)

    async def test_many_small_transactions_keep_their_order(self) -> None:
        """Successive transactions are read in their order, and none is missing."""
        async with self.data.open() as world:
            for number in range(50):
                txn = await begin(world)
                await send(world, str(number), txn)
                await commit(world, txn)
            assert await visible(world) == [str(number) for number in range(50)]

    @requires(IInPlaceBuffer)
    async def test_rolled_over_in_the_middle(self) -> None:
        """A transaction that wrote to two ledgers is visible as a whole or not at all."""
        async with self.data.open() as world:
            kept, dropped = await begin(world), await begin(world)
            for half in ("1", "2"):
                await send(world, f"kept {half}", kept)
                await send(world, f"dropped {half}", dropped)
                await send(world, f"plain {half}")
                await world.ledger.roll()
            assert await visible(world) == []
            await commit(world, kept)
            await abort(world, dropped)
            assert await visible(world) == ["kept 1", "plain 1", "kept 2", "plain 2"]
