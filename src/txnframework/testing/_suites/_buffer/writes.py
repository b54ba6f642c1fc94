"""Rules of append: intents, refusals, idempotence and sealing."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest

from txnframework.errors import LedgerSealed, NotTransactionOwner, TransactionConflict, TransactionNotFound
from txnframework.model import Action, Append, Begin, Branch, End, Position, ProducerSequence, TxnID
from txnframework.testing._suites._buffer._case import (
    ENDS_WHEN_SEALED,
    BufferRules,
    abort,
    begin,
    commit,
    entry,
    held_up,
    send,
    send_sequence,
    visible,
)
from txnframework.testing.capabilities import requires
from txnframework.testing.world import World


class WriteRules(BufferRules):
    """Rules of appends: which are accepted, and which are refused."""

    async def test_intent_comes_first(self) -> None:
        """
        Wherever a transactional append is interrupted, no other process reads its message before the commit.

        If this fails, check that the write operation is durable before the entry is appended. An entry without an
        operation counts as committed.
        """
        async with self.data.open() as survivor:
            turns, finished = 0, False
            while not finished:
                # Each round interrupts one turn of the event loop later. Beyond 32 turns, most only wait for a server,
                # so the distance grows by half. ``test_killed_while_sending`` kills at each step to a server.
                turns += 1 + max(0, turns - 32) // 2
                txn = await begin(survivor)
                async with self.data.open() as world:
                    task = asyncio.ensure_future(send(world, "inside", txn))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    finished = task.done()
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                # It also reads, as a process that starts later, what the interrupted appends of earlier rounds left.
                async with self.data.open() as reader:
                    assert await visible(reader) == [], f"undecided and visible after {turns} turns"
                    await abort(survivor, txn)
                    assert await visible(reader) == [], f"aborted and visible after {turns} turns"
            async with self.data.open() as reader:
                assert await visible(reader) == [], f"aborted and visible after {turns} turns"

    async def test_ended_transaction_is_refused(self) -> None:
        """Writing in a transaction that has ended raises TransactionConflict in all processes, and appends nothing."""
        async with self.data.open() as world, self.data.open() as other:
            for end in (commit, abort):
                txn = await begin(world)
                await send(world, "inside", txn)
                await end(world, txn)
                for process in (world, other):
                    before = await process.ledger.tail()
                    with pytest.raises(TransactionConflict):
                        await send(process, "late", txn, 7)
                    assert await process.ledger.tail() == before
            assert await visible(world) == ["inside"]

    async def test_later_send_in_an_ended_transaction(self) -> None:
        """
        A writer that misses the end of its transaction makes nothing visible that does not count.

        Its later sends need not read the store. They may be refused, or be appended: as committed messages of a listed
        branch, or as aborted messages.
        """
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            await send(other, "first", txn, 5)
            await abort(world, txn)
            with suppress(TransactionConflict):
                await send(other, "late", txn, 5)
            assert await visible(world) == await visible(other) == []
        async with self.data.open() as fresh:
            assert await visible(fresh) == []

    async def test_commit_while_another_process_sends(self) -> None:
        """
        A transaction that another process has committed does not grow, wherever its owner was paused while it sent.

        The commit is unfinished. It may be refused if the first message to an empty ledger is under way. If this fails,
        check that an append is refused after the end, and not only the check before it.
        """
        async with self.data.open() as world, self.data.open() as other:
            for before in ("nothing", "a plain message", "a message of the branch"):
                step, reached = 0, True
                while reached:
                    step += 1
                    txn = await begin(world)
                    if before == "a plain message":
                        await send(world, f"{before} {step}")
                    elif before == "a message of the branch":
                        await send(world, f"{before} {step}", txn)
                    async with held_up(world.connection, step, send(world, f"after {before} {step}", txn)) as held:
                        task, reached = held
                        is_committed = await _commits_unfinished(other, txn)
                        assert is_committed or (reached and before == "nothing")
                        seen = await visible(other)
                        world.connection.restore()
                        await asyncio.wait({task})
                    assert await visible(other) == await visible(world) == seen
                    if not is_committed:
                        await abort(other, txn)
                        assert await visible(other) == seen

    async def test_unknown_transaction_is_refused(self) -> None:
        """Writing in a transaction that never began raises TransactionNotFound, and appends nothing."""
        async with self.data.open() as world:
            known = await begin(world)
            unknown = TxnID(known.coordinator, known.number + 10**6)
            before = await world.ledger.tail()
            with pytest.raises(TransactionNotFound):
                await send(world, "inside", unknown)
            assert await world.ledger.tail() == before
            await send(world, "plain")
            await abort(world, known)
            assert await visible(world) == ["plain"]

    async def test_another_principal_is_refused(self) -> None:
        """
        Writing in another principal's transaction raises NotTransactionOwner and appends nothing; its owner may write.
        """
        async with self.data.open() as world:
            owned = (await world.coordinator.begin(Begin(60_000, "ada"))).txn_id
            before = await world.ledger.tail()
            for principal in ("", "eve"):
                with pytest.raises(NotTransactionOwner):
                    await world.buffer.append(
                        (msgspec.structs.replace(entry("refused", Branch(owned, 7)), principal=principal),)
                    )
            assert (await world.ledger.tail()).last_confirmed == before.last_confirmed
            assert (await world.coordinator.describe(owned)).participants == frozenset()
            await world.buffer.append((msgspec.structs.replace(entry("sent", Branch(owned)), principal="ada"),))
            await world.coordinator.end(End(owned, Action.COMMIT, "ada"))
            assert await visible(world) == ["sent"]

    async def test_first_sends_at_a_time(self) -> None:
        """Many concurrent first sends to a new buffer lose no message, and each transaction is visible as a whole."""
        async with self.data.open() as world:
            txns = [await begin(world) for _ in range(6)]
            await asyncio.gather(*(send(world, f"{n}", txn) for n, txn in enumerate(txns)), send(world, "plain"))
            await asyncio.gather(*(commit(world, txn) for txn in txns))
            assert sorted(await visible(world)) == ["0", "1", "2", "3", "4", "5", "plain"]

    async def test_several_entries_of_one_call(self) -> None:
        """The entries of one call are adjacent and in order."""
        async with self.data.open() as world:
            txn = await begin(world)
            appended = await world.buffer.append(tuple(entry(text, Branch(txn)) for text in "abc"))
            first = appended[0].position
            expected = [Position(first.ledger_id, first.entry_id + number) for number in range(3)]
            assert [one.position for one in appended] == expected
            await commit(world, txn)
            assert await visible(world) == ["a", "b", "c"]

    async def test_two_processes_write_in_one_transaction(self) -> None:
        """One decision commits the messages of all processes, each with its own branch."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            await asyncio.gather(send(world, "a", txn, 1), send(other, "b", txn, 2), send(world, "c", txn))
            await commit(world, txn, 0, 1, 2)
            assert sorted(await visible(world)) == sorted(await visible(other)) == ["a", "b", "c"]

    async def test_same_send_again(self) -> None:
        """Repeating a send in the same branch is confirmed and stored once, before and after the commit."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            first = await send_sequence(world, 1, txn)
            for process in (world, other):
                again = await send_sequence(process, 1, txn)
                assert (again.duplicate, again.position) == (True, first.position)
            await commit(world, txn)
            later = await begin(other)
            for txn_id in (later, None):
                again = await send_sequence(other, 1, txn_id)
                assert (again.duplicate, again.position) == (True, first.position)
            await commit(other, later)
            assert await visible(world) == ["s1"]

    async def test_plain_send_again(self) -> None:
        """
        Repeating a send outside transactions is confirmed and stored once, also from another process or in a
        transaction.
        """
        async with self.data.open() as world, self.data.open() as other:
            first = await send_sequence(world, 1)
            txn = await begin(other)
            for txn_id in (None, txn):
                again = await send_sequence(other, 1, txn_id)
                assert (again.duplicate, again.position) == (True, first.position)
            await abort(other, txn)
            assert await visible(world) == ["s1"]

    async def test_copy_of_an_aborted_transaction_is_replaced(self) -> None:
        """
        A sequence whose copy was aborted, or whose branch does not count, is appended again and visible.

        If this fails, a retry after an abort is confirmed and its message is lost.
        """
        async with self.data.open() as world, self.data.open() as other:
            dropped = await begin(world)
            await send_sequence(world, 1, dropped)
            await abort(world, dropped)
            partly = await begin(world)
            await send_sequence(world, 2, partly, 6)
            await commit(world, partly)
            txn = await begin(other)
            for sequence in (1, 2):
                assert not (await send_sequence(other, sequence, txn)).duplicate
            await commit(other, txn)
            for sequence in (1, 2):
                assert (await send_sequence(world, sequence)).duplicate
            assert await visible(world) == ["s1", "s2"]

    async def test_copy_of_an_open_transaction_is_a_conflict(self) -> None:
        """A sequence that is stored in another open transaction, or in another branch, raises TransactionConflict."""
        async with self.data.open() as world, self.data.open() as other:
            txn, another = await begin(world), await begin(other)
            await send_sequence(world, 1, txn)
            before = await world.ledger.tail()
            for txn_id, branch in ((another, 0), (txn, 5), (None, 0)):
                with pytest.raises(TransactionConflict):
                    await send_sequence(other, 1, txn_id, branch)
            assert await world.ledger.tail() == before
            await abort(world, txn)
            assert not (await send_sequence(other, 1, another)).duplicate
            await commit(other, another)
            assert await visible(world) == ["s1"]

    async def test_partly_stored_batch(self) -> None:
        """
        A batch that is partly stored is reported with the sequences of the earlier copy, so that the rest can be sent.
        """
        async with self.data.open() as world:
            txn = await begin(world)
            (first,) = await world.buffer.append((entry("1-2", Branch(txn), 1, 2),))
            (again,) = await world.buffer.append((entry("1-3", Branch(txn), 1, 2, 3),))
            assert (again.duplicate, again.position) == (True, first.position)
            assert again.sequence == ProducerSequence("producer", 1, 2)
            assert not (await send_sequence(world, 3, txn)).duplicate
            await commit(world, txn)
            assert await visible(world) == ["1-2", "s3"]

    @requires(ENDS_WHEN_SEALED)
    async def test_sealed_segment_refuses(self) -> None:
        """On a sealed segment, all appends raise LedgerSealed and append nothing; transactions can still be ended."""
        async with self.data.open() as world, self.data.open() as other:
            txn, fresh = await begin(world), await begin(world)
            await send(world, "inside", txn)
            sealed = await other.ledger.seal()
            attempts = (
                entry("plain"),
                entry("inside", Branch(txn)),
                entry("inside", Branch(fresh)),
                entry("inside", Branch(txn, 5), 1),
            )
            for attempt in attempts:
                await self.refused(world, attempt)
                await self.refused(other, attempt)
            assert (await world.ledger.tail()) == sealed
            await commit(world, txn)
            await commit(world, fresh)
            assert await visible(world) == ["inside"]

    async def refused(self, world: World, attempt: Append) -> None:
        """Append to a sealed segment."""
        with pytest.raises(LedgerSealed):
            await world.buffer.append((attempt,))


async def _commits_unfinished(world: World, txn_id: TxnID) -> bool:
    """Commit a transaction whose owner may be sending; return whether it was committed, and not refused."""
    try:
        await world.coordinator.end(End(txn_id, Action.COMMIT, unfinished=True))
    except TransactionConflict:
        return False
    return True
