"""Rules of buffers in which messages of transactions get their positions at the commit."""

from __future__ import annotations

import pytest

from txnframework.errors import EntryTrimmed
from txnframework.interfaces import ICommitOrderBuffer
from txnframework.model import EARLIEST, Branch, Isolation, Limit, Position, ReadRequest, Visibility
from txnframework.model.entries import EntryView
from txnframework.testing._suites._buffer._case import (
    BufferRules,
    abort,
    begin,
    commit,
    pages,
    send,
    send_sequence,
    texts_of,
    visible,
)
from txnframework.testing.capabilities import requires


class CommitOrderRules(BufferRules):
    """Messages are read in the order of commits, and open transactions delay no reader."""

    @requires(ICommitOrderBuffer)
    async def test_open_holds_nothing_back(self) -> None:
        """
        A message outside transactions is readable immediately, despite open transactions; theirs follow at their
        commit.
        """
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            await send(world, "inside", txn)
            plain = await send(world, "plain")
            for process in (world, other):
                assert await process.buffer.max_read_position() >= plain
                assert await visible(process) == ["plain"]
            await commit(world, txn)
            for process in (world, other):
                assert await visible(process) == ["plain", "inside"]

    @requires(ICommitOrderBuffer)
    async def test_commits_are_read_in_their_order(self) -> None:
        """Each of several interleaved transactions is read as a whole at its commit; an aborted one is not read."""
        async with self.data.open() as world, self.data.open() as other:
            one, two, three = await begin(world), await begin(world), await begin(world)
            for number in range(3):
                await send(world, f"one-{number}", one)
                await send(other, f"two-{number}", two)
                await send(world, f"three-{number}", three)
            await commit(other, two)
            await abort(world, three)
            await send(world, "plain")
            await commit(world, one)
            expected = [*(f"two-{number}" for number in range(3)), "plain", *(f"one-{number}" for number in range(3))]
            for process in (world, other):
                assert await visible(process) == expected
        async with self.data.open() as fresh:
            assert await visible(fresh) == expected

    @requires(ICommitOrderBuffer)
    async def test_messages_of_a_commit_are_one_entry(self) -> None:
        """
        The messages of one producer in a transaction share one entry, each with an index; the ledger counts them all.
        """
        async with self.data.open() as world:
            txn = await begin(world)
            for sequence in range(1, 6):
                await send_sequence(world, sequence, txn)
            await commit(world, txn)
            (found,) = [one for page in await pages(world) for one in page.entries]
            view = EntryView(found.data)
            assert (view.count, found.branch, texts_of(found)) == (5, Branch(txn), [f"s{n}" for n in range(1, 6)])
            (summary,) = [one for one in await world.ledger.ledgers(-1, 9) if one.entries]
            assert summary.messages == 5

    @requires(ICommitOrderBuffer)
    async def test_nothing_uncommitted_is_shown(self) -> None:
        """
        READ_UNCOMMITTED returns only committed messages, because uncommitted ones have no position in the segment.
        """
        async with self.data.open() as world:
            kept, dropped, undecided = await begin(world), await begin(world), await begin(world)
            await send(world, "plain")
            for text, txn in (("kept", kept), ("dropped", dropped), ("open", undecided)):
                await send(world, text, txn)
            await commit(world, kept)
            await abort(world, dropped)
            found = [one for page in await pages(world, isolation=Isolation.READ_UNCOMMITTED) for one in page.entries]
            assert [texts_of(one) for one in found] == [["plain"], ["kept"]]
            assert {one.visibility for one in found} == {Visibility.COMMITTED}

    @requires(ICommitOrderBuffer)
    async def test_the_place_that_append_tells(self) -> None:
        """
        In a transaction, ``append`` returns a position after all ledgers of the segment, where nothing is ever read.
        """
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            at = await send(world, "inside", txn)
            before = Position(at.ledger_id, at.entry_id - 1)
            for _ in range(2):
                for process in (world, other):
                    assert at.ledger_id > (await process.ledger.tail()).open_ledger_id
                    for isolation in Isolation:
                        page = await process.buffer.read(ReadRequest(before, Limit(1), isolation))
                        assert (page.entries, page.upto) == ((), before)
                await commit(world, txn)

    @requires(ICommitOrderBuffer)
    async def test_open_transactions_can_be_ended_later(self) -> None:
        """Transactions that were open at a restart can be ended after it, with all messages sent before."""
        async with self.data.open() as world:
            kept, dropped = await begin(world), await begin(world)
            await send(world, "kept", kept)
            await send(world, "dropped", dropped)
            await send(world, "plain")
        async with self.data.open() as world:
            await send(world, "kept too", kept)
            await commit(world, kept)
            assert await visible(world) == ["plain", "kept", "kept too"]
        async with self.data.open() as world:
            await abort(world, dropped)
            assert await visible(world) == ["plain", "kept", "kept too"]

    @requires(ICommitOrderBuffer)
    async def test_woken_by_a_commit(self) -> None:
        """A reader at the end waits while a transaction is written to, and wakes when any process commits it."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(other)
            await send(other, "inside", txn)
            beyond = await world.buffer.max_read_position()
            async with self.started(world.buffer.advanced(beyond)) as waiting:
                await send(world, "behind", txn)
                await self.data.settle()
                assert not waiting.done()
                await other.coordinator.settle((await commit(other, txn)).txn_id)
                assert await self.soon(waiting) > beyond

    @requires(ICommitOrderBuffer)
    async def test_trimming_keeps_what_is_open(self) -> None:
        """Whatever is trimmed, the messages of an open transaction are read after its commit."""
        async with self.data.open() as world:
            txn, gone = await begin(world), await begin(world)
            await send(world, "inside", txn)
            await send(world, "gone", gone)
            await commit(world, gone)
            await send(world, "first")
            await world.ledger.roll()
            last = await send(world, "last")
            for _ in range(2):
                await world.buffer.trim(last.ledger_id)
            with pytest.raises(EntryTrimmed):
                await world.buffer.read(ReadRequest(EARLIEST, Limit(10)))
            start = Position(last.ledger_id, -1)
            await commit(world, txn)
            assert await visible(world, start) == ["last", "inside"]
        async with self.data.open() as fresh:
            assert await visible(fresh, start) == ["last", "inside"]
