"""Rules of answers as large as the families request, and of repeated reads."""

from __future__ import annotations

from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import EARLIEST, EntryRange, Limit, Position
from txnframework.testing._suites._ledger._case import NAME, LedgerStoreRules, append, last_of, read_range, sent

ENTRIES = 1_050
LIMITS = (100, 101, 500, 501, 1_000, 2_000)
"""The largest answer that a family requests has 1,000 entries."""

LEDGERS = 110
"""More ledgers than most callers request at once; not more, because rolling is slow on most backends."""

FAR = Position(1_000_000, 0)


class PageRules(LedgerStoreRules):
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
