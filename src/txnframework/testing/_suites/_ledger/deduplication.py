"""Rules of idempotent producers."""

from __future__ import annotations

import pytest

from txnframework.errors import LedgerSealed
from txnframework.model import Append, Position, ProducerSequence
from txnframework.testing._suites._ledger._case import (
    NAME,
    LedgerStoreRules,
    branch,
    read_all,
    send,
    sent,
)


class DeduplicationRules(LedgerStoreRules):
    """(producer, sequence) is checked atomically with the assignment of the position."""

    async def test_duplicate_is_reported(self) -> None:
        """A stored sequence is not appended again; the answer reports the copy's position, branch and sequence."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            (first,) = await send(ledger, sent("p", 1, 3, branch(7)))
            assert not first.duplicate
            (again,) = await send(ledger, sent("p", 1, 3, branch(8)))
            assert again.duplicate
            assert again.position == first.position
            assert again.branch == branch(7)
            assert again.sequence == ProducerSequence("p", 1, 3)
            assert len(await read_all(ledger)) == 1

    async def test_producers_are_independent(self) -> None:
        """Equal sequences of two producers are two entries; entries without a sequence are never duplicates."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            appended = await send(ledger, sent("p", 1), sent("q", 1), sent("p-2", 1), Append(b""), Append(b""))
            assert not any(one.duplicate for one in appended)
            assert len(await read_all(ledger)) == 5

    async def test_gaps_and_order(self) -> None:
        """A lower sequence that was never sent is appended; only stored sequences are duplicates."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            for first in (10, 20, 15, 5):
                (appended,) = await send(ledger, sent("p", first))
                assert not appended.duplicate, first
            for first in (5, 10, 15, 20):
                (appended,) = await send(ledger, sent("p", first))
                assert appended.duplicate, first

    @pytest.mark.parametrize(("first", "last"), [(1, 2), (3, 5), (2, 3), (4, 9), (0, 9)])
    async def test_partial_overlap(self, first: int, last: int) -> None:
        """
        A batch that is partly stored is not appended; the sequence of the earlier copy shows which part is stored.

        If this fails, check that the whole range is compared, not only the first or the last sequence.
        """
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            (copy,) = await send(ledger, sent("p", 2, 4))
            (again,) = await send(ledger, sent("p", first, last))
            assert again.duplicate
            assert again.position == copy.position
            assert again.sequence == ProducerSequence("p", 2, 4)
            assert len(await read_all(ledger)) == 1

    async def test_others_of_the_call_are_appended(self) -> None:
        """
        The other entries of a call with a duplicate are appended, adjacent; a repeat within the call is a duplicate
        too.
        """
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            (one,) = await send(ledger, sent("p", 1))
            appended = await send(ledger, sent("p", 2), sent("p", 1), sent("p", 3), sent("p", 3))
            assert [result.duplicate for result in appended] == [False, True, False, True]
            two, again, three, repeat = (result.position for result in appended)
            assert again == one.position
            assert two == Position(one.position.ledger_id, 1)
            assert three == repeat == Position(one.position.ledger_id, 2)
            assert await read_all(ledger) == [b"p:1-1", b"p:2-2", b"p:3-3"]

    async def test_replaces_the_named_copy(self) -> None:
        """An entry that names its stored copy replaces it: the entry is appended, and is the copy from then on."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            (old,) = await send(ledger, sent("p", 1, 2, branch(1)))
            entry = sent("p", 1, 2, branch(2))
            replacing = Append(entry.data, 2, entry.branch, entry.sequence, old.position)
            (new,) = await send(ledger, replacing)
            assert not new.duplicate
            assert new.position > old.position
            found = await ledger.find_sequence("p", 2)
            assert found is not None
            assert (found.position, found.branch) == (new.position, branch(2))
            (again,) = await send(ledger, replacing)
            assert again.duplicate, "the stored copy is not the one that is named"
            assert again.position == new.position
            assert len(await read_all(ledger)) == 2

    async def test_replaces_only_the_copy_that_stands(self) -> None:
        """Naming a position other than the copy's replaces nothing, and so does naming one of two copies."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            one, two = await send(ledger, sent("p", 1), sent("p", 2))
            wrong = sent("p", 1)
            (reported,) = await send(ledger, Append(wrong.data, 1, None, wrong.sequence, two.position))
            assert (reported.duplicate, reported.position) == (True, one.position)
            both = sent("p", 1, 2)
            (reported,) = await send(ledger, Append(both.data, 2, None, both.sequence, one.position))
            assert (reported.duplicate, reported.position) == (True, two.position)
            assert len(await read_all(ledger)) == 2

    async def test_find_sequence(self) -> None:
        """
        Each sequence of a stored entry is found with the entry's position, branch and sequence; others are not found.
        """
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            (appended,) = await send(ledger, sent("p", 2, 4, branch(7)))
            for sequence in (2, 3, 4):
                found = await ledger.find_sequence("p", sequence)
                assert found is not None
                assert found.position == appended.position
                assert found.branch == branch(7)
                assert found.sequence == ProducerSequence("p", 2, 4)
            assert await ledger.find_sequence("p", 1) is None
            assert await ledger.find_sequence("p", 5) is None
            assert await ledger.find_sequence("q", 3) is None

    async def test_window_survives(self) -> None:
        """
        Sequences are remembered after a roll, after a restart and by other clients, and can be looked up after a seal.
        """
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            copies = await send(ledger, *(sent("p", number) for number in range(100)))
            await ledger.roll()
        async with self.data.open() as store:
            ledger = await store.open(NAME)
            for number in (0, 50, 99):
                (again,) = await send(ledger, sent("p", number))
                assert (again.duplicate, again.position) == (True, copies[number].position)
            await ledger.seal()
            with pytest.raises(LedgerSealed):
                await send(ledger, sent("p", 0))
            found = await ledger.find_sequence("p", 99)
            assert found is not None
            assert found.position == copies[99].position
            assert await ledger.find_sequence("p", 100) is None

    async def test_edge_of_the_window(self) -> None:
        """
        The last sequences of a producer, as many as the ledger's window, are recognized; older ones may be stored
        again.

        If this fails, check that sequences are counted, not entries, and from the highest one down.
        """
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            window = (await ledger.remembered("p", 0)).window
            assert window >= 1
            edge = min(150, window // 3)
            singles = [sent("p", number) for number in range(2 * edge)]
            copies = await send(ledger, *singles, sent("p", 2 * edge, window - 1))
            copies += await send(ledger, *(sent("p", number) for number in range(window, window + edge)))
            # The window now begins at number ``edge``.
            for number in range(edge, 2 * edge):
                (again,) = await send(ledger, sent("p", number, number, branch(1)))
                assert again.duplicate, f"{window + edge - number} sequences from the last one, of {window}"
                assert again.position == copies[number].position
        async with self.data.open() as store:
            ledger = await store.open(NAME)
            assert await ledger.find_sequence("p", edge) is not None
            if await ledger.find_sequence("p", 0) is None:
                (fresh,) = await send(ledger, sent("p", 0))
                assert not fresh.duplicate, "what was forgotten is stored again"

    async def test_what_is_remembered(self) -> None:
        """``remembered`` counts the sequences above a number, also within one entry and after a seal."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            nothing = await ledger.remembered("p", 5)
            assert (nothing.highest, nothing.above) == (None, 0)
            await send(ledger, sent("p", 3, 6), sent("p", 10), sent("q", 100))
            await ledger.roll()
            await send(ledger, sent("p", 20, 21))
            await ledger.seal()
            found = {sequence: await ledger.remembered("p", sequence) for sequence in (-1, 3, 5, 6, 8, 20, 21, 50)}
            assert {one.highest for one in found.values()} == {21}
            assert {one.window for one in found.values()} == {nothing.window}
            above = {sequence: one.above for sequence, one in found.items()}
            assert above == {-1: 7, 3: 6, 5: 4, 6: 3, 8: 3, 20: 1, 21: 0, 50: 0}

    async def test_trim_settles_the_window(self) -> None:
        """
        A trim forgets the sequences of aborted branches in the trimmed ledgers, and keeps the others as committed.

        If this fails, check that the trim itself settles them: later, no data separates an aborted copy from a
        committed one. A message that is sent again would then be taken for one that is stored.
        """
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            counts, aborted, other = branch(1), branch(2), branch(2, txn=2)
            entries = (sent("p", 1, 2, counts), sent("p", 3, 4, aborted), sent("q", 3), sent("r", 1, 1, other))
            old = await send(ledger, *entries)
            await ledger.roll()
            (later,) = await send(ledger, sent("p", 5, 5, aborted))
            tail = await ledger.tail()
            while await ledger.trim(tail.open_ledger_id, frozenset({aborted, branch(9)})) < tail.open_ledger_id:
                pass
        async with self.data.open() as store:
            ledger = await store.open(NAME)
            assert await ledger.find_sequence("p", 3) is None
            for producer, sequence, copy in (("p", 2, old[0]), ("q", 3, old[2]), ("r", 1, old[3])):
                found = await ledger.find_sequence(producer, sequence)
                assert found is not None, (producer, sequence)
                assert (found.position, found.branch) == (copy.position, None), (producer, sequence)
            found = await ledger.find_sequence("p", 5)
            assert found is not None
            assert (found.position, found.branch) == (later.position, aborted), "its ledger is still there"
            (again,) = await send(ledger, sent("p", 3, 4, branch(3)))
            assert not again.duplicate
            (again,) = await send(ledger, sent("p", 1, 2, branch(3)))
            assert again.duplicate

    async def test_trim_settles_nothing_that_stays(self) -> None:
        """
        Copies in the open ledger, or in ledgers not below the id, keep their branches, even if these are named as
        aborted.
        """
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            (one,) = await send(ledger, sent("p", 1, 1, branch(1)))
            await ledger.roll()
            await send(ledger, sent("p", 2, 2, branch(2)))
            for ledger_id in (one.position.ledger_id, one.position.ledger_id + 1_000):
                await ledger.trim(ledger_id, frozenset({branch(2)}))
            found = await ledger.find_sequence("p", 2)
            assert found is not None
            assert found.branch == branch(2)

    async def test_trim_settles_many_producers(self) -> None:
        """All copies are settled before their ledger is removed, however many they are."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            names = [f"p{number}" for number in range(1_100)]
            await send(ledger, *(sent(name, 1, 1, branch(number % 2)) for number, name in enumerate(names)))
            await ledger.roll()
            await send(ledger, Append(b"last"))
            tail = await ledger.tail()
            while await ledger.trim(tail.open_ledger_id, frozenset({branch(1)})) < tail.open_ledger_id:
                pass
            found = [await ledger.find_sequence(name, 1) for name in names[:20] + names[-20:]]
            assert [copy is None for copy in found] == [False, True] * 20
            assert {copy.branch for copy in found if copy} == {None}
