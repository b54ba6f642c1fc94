"""Rules of append, tail and read, also of answers as large as the families request."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import Closed, LedgerClosed, LedgerSealed
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import EARLIEST, Append, EntryRange, Limit, Position
from txnframework.testing._suites._ledger._case import (
    MANY,
    NAME,
    LedgerStoreRules,
    append,
    branch,
    last_of,
    read_all,
    read_range,
    send,
    sent,
)


class AppendRules(LedgerStoreRules):
    """Entries are appended at the end of the open ledger."""

    async def test_keeps_the_interface(self) -> None:
        """
        Store, ledger and watch have all methods and attributes of their roles, async and with the roles' parameters.
        """
        from txnframework.interfaces import IWatch
        from txnframework.plugin import verify_provider

        async with self.data.open() as store:
            verify_provider(ILedgerStore, store)
            ledger = await store.create(NAME)
            verify_provider(IManagedLedger, ledger)
            verify_provider(IWatch, await ledger.watch())
            assert ledger.name == NAME

    async def test_empty(self) -> None:
        """A new ledger is open and not sealed; no entry can exist at or below its last confirmed position."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            tail = await ledger.tail()
            assert not tail.sealed
            assert tail.open_ledger_id >= 0
            assert tail.last_confirmed <= Position(tail.open_ledger_id, -1)
            assert await ledger.read(EntryRange(EARLIEST, tail.last_confirmed), MANY) == ()

    async def test_positions_are_adjacent(self) -> None:
        """The entries of a ledger have numbers 0, 1, 2, ... in the order of appends; the tail is at the last one."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            opened = (await ledger.tail()).open_ledger_id
            positions = [*await append(ledger, b"a"), *await append(ledger, b"b", b"c"), *await append(ledger, b"d")]
            assert positions == [Position(opened, number) for number in range(4)]
            assert await last_of(ledger) == positions[-1]
            assert await read_all(ledger) == [b"a", b"b", b"c", b"d"]

    async def test_nothing_to_append(self) -> None:
        """An append of no entries changes nothing."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            before = await ledger.tail()
            assert await ledger.append((), before.open_ledger_id) == ()
            assert await ledger.tail() == before

    @pytest.mark.parametrize("data", [b"", b"\x00", bytes(range(256)), b"x" * 300_000], ids=range(4))
    async def test_entries_are_bytes(self, data: bytes) -> None:
        """An entry is read back byte for byte: empty, with zero bytes, or 300 kB long."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            await append(ledger, data)
            assert await read_all(ledger) == [data]

    async def test_named_ledger(self) -> None:
        """
        An append by the id of the open ledger succeeds; one by any other id is refused and appends nothing.

        If this fails, check that the id is compared in the step that assigns the position.
        """
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            opened = (await ledger.tail()).open_ledger_id
            (first,) = await ledger.append((Append(b"a", branch=branch(1)),), opened)
            assert first.position == Position(opened, 0)
            for other in (opened + 1, opened - 1):
                with pytest.raises(LedgerClosed) as caught:
                    await ledger.append((Append(b"b", branch=branch(1)), Append(b"c")), other)
                assert (caught.value.name, caught.value.ledger_id) == (NAME, other)
            assert await read_all(ledger) == [b"a"]

    async def test_closed_ledger_refuses(self) -> None:
        """
        After a roll, an append to the earlier ledger is refused and appends none of its entries.

        If this fails, a writer that was paused can append after records that were cleaned up.
        """
        async with self.data.open() as store, self.data.open() as other:
            ledger, paused = await store.create(NAME), await other.open(NAME)
            await append(ledger, b"a")
            opened = (await paused.tail()).open_ledger_id
            rolled = await ledger.roll()
            assert rolled.open_ledger_id > opened
            with pytest.raises(LedgerClosed):
                await paused.append((Append(b"b"), Append(b"c")), opened)
            assert await read_all(ledger) == [b"a"]
            assert await append(paused, b"d") == [Position(rolled.open_ledger_id, 0)]

    async def test_sealed_refuses(self) -> None:
        """After a seal, all appends of all clients are refused and append nothing."""
        async with self.data.open() as store, self.data.open() as other:
            ledger, paused = await store.create(NAME), await other.open(NAME)
            await append(ledger, b"a")
            opened = (await paused.tail()).open_ledger_id
            sealed = await ledger.seal()
            for ledger_id in (opened, None):
                with pytest.raises(LedgerSealed) as caught:
                    await paused.append((Append(b"b"), Append(b"c")), ledger_id)
                assert caught.value.name == NAME
            assert await ledger.tail() == sealed
            assert await read_all(ledger) == [b"a"]

    async def test_read_ranges(self) -> None:
        """A range excludes its start, includes its end, and may span ledgers; it returns nothing beyond the tail."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            a, b = await append(ledger, b"a", b"b")
            await ledger.roll()
            c, d = await append(ledger, b"c", b"d")
            for after, upto, expected in (
                (EARLIEST, d, b"abcd"),
                (a, d, b"bcd"),
                (a, c, b"bc"),
                (b, c, b"c"),
                (b, b, b""),
                (d, Position(d.ledger_id + 5, 5), b""),
                (c, a, b""),
                (Position(a.ledger_id, -1), a, b"a"),
                (Position(c.ledger_id, -1), c, b"c"),
                (Position(a.ledger_id, 9), d, b"cd"),
                (Position(a.ledger_id, 0, 3), d, b"bcd"),
            ):
                found = await read_range(ledger, EntryRange(after, upto))
                assert b"".join(entry.data for entry in found) == expected, (after, upto)
                assert [entry.position for entry in found] == sorted(entry.position for entry in found)

    async def test_read_limits(self) -> None:
        """
        A read returns at most the given entries and bytes, but always one entry, even if it alone exceeds the bytes.
        """
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            await append(ledger, b"a" * 10, b"b" * 10, b"c" * 100, b"d" * 10)
            every = EntryRange(EARLIEST, await last_of(ledger))
            for items in (1, 2, 3, 9):
                assert len(await ledger.read(every, Limit(items))) == min(items, 4)
                assert len(await read_range(ledger, every, Limit(items))) == 4
            assert len(await ledger.read(every, Limit(9, 20))) == 2
            assert len(await ledger.read(every, Limit(9, 19))) == 1
            assert len(await ledger.read(every, Limit(9, 1))) == 1
            pieces = await read_range(ledger, every, Limit(9, 25))
            assert [entry.data[:1] for entry in pieces] == [b"a", b"b", b"c", b"d"]

    async def test_restart_keeps_entries(self) -> None:
        """After all clients were closed, entries, tail and seal are unchanged, and appends continue after them."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            positions = await append(ledger, b"a", b"b")
            await ledger.roll()
            positions += await append(ledger, b"c")
            tail = await ledger.tail()
        async with self.data.open() as store:
            ledger = await store.open(NAME)
            assert await ledger.tail() == tail
            assert await read_all(ledger) == [b"a", b"b", b"c"]
            assert await append(ledger, b"d") == [Position(positions[-1].ledger_id, 1)]
            sealed = await ledger.seal()
        async with self.data.open() as store:
            ledger = await store.open(NAME)
            assert await ledger.tail() == sealed
            with pytest.raises(LedgerSealed):
                await append(ledger, b"e")

    async def test_cancelled_append_is_whole_or_not_at_all(self) -> None:
        """A cancelled append stores all its entries, adjacent, or none."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            for number in range(8):
                before = await last_of(ledger)
                task = asyncio.ensure_future(send(ledger, Append(b"1"), Append(b"2"), Append(b"3")))
                for _ in range(number):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await self.data.settle()
                assert await read_all(ledger, before) in ([], [b"1", b"2", b"3"])

    async def test_closed_handles(self) -> None:
        """
        After close, a ledger raises Closed, and so do a store and all ledgers opened by it; close may be repeated.
        """
        async with self.data.open() as store:
            closed, other = await store.create(NAME), await store.open(NAME)
            await closed.close()
            await closed.close()
            with pytest.raises(Closed):
                await closed.tail()
            with pytest.raises(Closed):
                await append(closed, b"a")
            await append(other, b"a")
            await store.close()
            await store.close()
            with pytest.raises(Closed):
                await other.tail()
            with pytest.raises(Closed):
                await store.open(NAME)


ENTRIES = 1_050
LIMITS = (100, 101, 500, 501, 1_000, 2_000)
"""The largest answer that a family requests has 1,000 entries."""

LEDGERS = 110
"""More ledgers than most callers request together; not more, because rolling is slow on most backends."""

FAR = Position(1_000_000, 0)


class LargeAnswerRules(LedgerStoreRules):
    """Answers are complete, whatever their size and whatever was read before."""

    async def test_many_entries_in_one_answer(self) -> None:
        """
        Reading returns each entry once and in order, with pages of any size.

        If this fails, check for a row limit per answer in the backend or its driver.
        """
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            data = [b"%d" % number for number in range(ENTRIES)]
            for first in range(0, ENTRIES, 150):
                await append(ledger, *data[first : first + 150])
            whole = EntryRange(EARLIEST, await last_of(ledger))
            for items_max in LIMITS:
                found = [entry.data for entry in await read_range(ledger, whole, Limit(items_max))]
                assert found == data, f"{len(found)} of {ENTRIES} entries, in steps of {items_max}"
                counted = await ledger.count(whole, items_max)
                assert counted.messages == min(items_max, ENTRIES)

    async def test_many_ledgers_in_one_answer(self) -> None:
        """``ledgers`` returns each ledger once and in order, with answers of any size."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            ids = []
            for number in range(LEDGERS):
                ids.append((await append(ledger, b"%d" % number))[0].ledger_id)
                await ledger.roll()
            ids.append((await ledger.tail()).open_ledger_id)
            for items_max in (100, 101, 1_000):
                found: list[int] = []
                while page := await ledger.ledgers(found[-1] if found else -1, items_max):
                    assert len(page) <= items_max
                    found += [one.ledger_id for one in page]
                assert found == ids, f"{len(found)} of {len(ids)} ledgers, in answers of {items_max}"

    async def test_reads_that_are_repeated(self) -> None:
        """
        Each read sees what any client had confirmed before it began, whatever the reader saw before.

        If this fails, check what the client caches, including that an entry is absent.
        """
        async with self.data.open() as writer, self.data.open() as reader:
            ledger = await writer.create(NAME)
            seen = await reader.open(NAME)
            for number in range(4):
                (appended,) = await ledger.append((sent("p", number),), (await ledger.tail()).open_ledger_id)
                position = appended.position
                assert (await seen.tail()).last_confirmed == position
                found = await seen.read(EntryRange(EARLIEST, FAR), Limit(1_000))
                assert [entry.data for entry in found] == [f"p:{one}-{one}".encode() for one in range(number + 1)]
                counted = await seen.count(EntryRange(EARLIEST, FAR), 1_000)
                assert (counted.messages, counted.upto) == (number + 1, position)
                copies = [await seen.find_sequence("p", sequence) for sequence in range(4)]
                assert [copy is not None for copy in copies] == [sequence <= number for sequence in range(4)]
                await self._check_rolled(writer, reader, ledger, seen, number)
            await ledger.seal()
            assert (await seen.tail()).sealed

    async def _check_rolled(
        self, writer: ILedgerStore, reader: ILedgerStore, ledger: IManagedLedger, seen: IManagedLedger, number: int
    ) -> None:
        before = [one.ledger_id for one in await seen.ledgers(-1, 1_000)]
        tail = await ledger.roll()
        assert [one.ledger_id for one in await seen.ledgers(-1, 1_000)] == [*before, tail.open_ledger_id]
        assert (await seen.tail()).open_ledger_id == tail.open_ledger_id
        names = await reader.list_names("other:", "", 1_000)
        await writer.create(f"other:{number}")
        assert await reader.list_names("other:", "", 1_000) == (*names, f"other:{number}")
