"""Rules of roll, seal, trim, count, find_time and watch."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import Closed, EntryTrimmed
from txnframework.interfaces import IAppendedWatch, IManagedLedger
from txnframework.model import EARLIEST, Append, EntryRange, LedgerSummary, Limit, MessageCount, Position
from txnframework.testing._suites._ledger._case import (
    MANY,
    NAME,
    NONE,
    LedgerStoreRules,
    append,
    last_of,
    read_all,
    read_range,
)
from txnframework.testing.capabilities import requires
from txnframework.testing.harness import Misleading

WAKES_MAX = 20


async def rolled(ledger: IManagedLedger, *rounds: bytes) -> list[Position]:
    """Append each entry and roll after it; return the positions of the entries."""
    positions: list[Position] = []
    for data in rounds:
        positions += await append(ledger, data)
        await ledger.roll()
    return positions


class TailRules(LedgerStoreRules):
    """Successive ledgers, of which the last is open."""

    async def test_roll(self) -> None:
        """A roll opens a ledger with a higher id; the tail stays consistent and never moves back."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            (a,) = await append(ledger, b"a")
            tail = await ledger.roll()
            assert tail == await ledger.tail()
            assert tail.open_ledger_id > a.ledger_id
            assert a <= tail.last_confirmed <= Position(tail.open_ledger_id, -1)
            assert await append(ledger, b"b") == [Position(tail.open_ledger_id, 0)]

    async def test_roll_of_an_empty_or_sealed_ledger(self) -> None:
        """A roll does nothing while the open ledger is empty, and nothing after a seal."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            before = await ledger.tail()
            assert await ledger.roll() == before
            await append(ledger, b"a")
            sealed = await ledger.seal()
            assert await ledger.roll() == sealed

    async def test_seal_repeats(self) -> None:
        """Seal returns the final tail, and the same tail on each repetition, on any client."""
        async with self.data.open() as store, self.data.open() as other:
            ledger = await store.create(NAME)
            (a,) = await append(ledger, b"a")
            sealed = await ledger.seal()
            assert sealed.sealed
            assert sealed.last_confirmed == a
            assert await ledger.seal() == sealed
            assert await (await other.open(NAME)).seal() == sealed

    async def test_seal_of_an_empty_ledger(self) -> None:
        """An empty ledger can be sealed, and stays empty."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            sealed = await ledger.seal()
            assert sealed.sealed
            assert await ledger.read(EntryRange(EARLIEST, sealed.last_confirmed), MANY) == ()

    async def test_trim(self) -> None:
        """Trim removes whole closed ledgers below the id and returns the first remaining id; the rest is unchanged."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            a, b, c = await rolled(ledger, b"a", b"b", b"c")
            before = await ledger.tail()
            left = await ledger.trim(c.ledger_id, NONE)
            while left < c.ledger_id:
                left = await ledger.trim(c.ledger_id, NONE)
            assert left == c.ledger_id
            assert await ledger.tail() == before
            assert [entry.data for entry in await read_range(ledger, EntryRange(b, c))] == [b"c"]
            assert await ledger.trim(a.ledger_id, NONE) == c.ledger_id, "trimming again changes nothing"

    async def test_ledgers(self) -> None:
        """
        ``ledgers`` lists what remains in pages, the open one last, each with entries, messages, bytes and last time.
        """
        async with self.data.open() as store, self.data.open() as other:
            ledger = await store.create(NAME)
            (empty,) = await ledger.ledgers(-1, 10)
            assert (empty.ledger_id, empty.entries) == ((await ledger.tail()).open_ledger_id, 0)
            (a,) = await rolled(ledger, b"aa")
            await ledger.append((Append(b"b", 3), Append(b"bcd", 4)), None)
            await self.data.pass_time(1_000)
            (c,) = await append(await other.open(NAME), b"c")
            for one in (ledger, await other.open(NAME)):
                first, second = await one.ledgers(-1, 10)
                assert first == LedgerSummary(a.ledger_id, 1, 1, 2, first.appended_ms)
                assert first.last == a
                assert (second.last, second.entries, second.messages, second.bytes) == (c, 3, 8, 5)
                assert first.appended_ms <= second.appended_ms - 1_000
                assert await one.ledgers(-1, 1) == (first,)
                assert await one.ledgers(a.ledger_id, 10) == (second,)
                assert await one.ledgers(c.ledger_id, 10) == ()
            await ledger.trim(c.ledger_id, NONE)
            assert await ledger.ledgers(-1, 10) == (second,)

    async def test_open_ledger_is_not_trimmed(self) -> None:
        """No id makes trim remove the open ledger or its entries, and appends to it continue."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            (a,) = await rolled(ledger, b"a")
            (b,) = await append(ledger, b"b")
            left = a.ledger_id
            for _ in range(3):
                left = await ledger.trim(b.ledger_id + 100, NONE)
            assert left == b.ledger_id
            assert [entry.data for entry in await read_range(ledger, EntryRange(a, b))] == [b"b"]
            assert await append(ledger, b"c") == [Position(b.ledger_id, 1)]

    async def test_reading_what_was_trimmed(self) -> None:
        """
        Reading trimmed entries raises EntryTrimmed with the first remaining position; a range after them is read.

        If this fails, check that a gap is never taken for the end: a reader would skip entries without an error.
        """
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            a, b, c = await rolled(ledger, b"a", b"b", b"c")
            while await ledger.trim(c.ledger_id, NONE) < c.ledger_id:
                pass
            for entries in (EntryRange(EARLIEST, c), EntryRange(a, c), EntryRange(a, b)):
                with pytest.raises(EntryTrimmed) as caught:
                    await ledger.read(entries, MANY)
                assert (caught.value.name, caught.value.first) == (NAME, c)
                assert entries.after < caught.value.position <= b
            assert await ledger.read(EntryRange(a, a), MANY) == ()
            assert await ledger.read(EntryRange(c, c), MANY) == ()
            assert len(await ledger.read(EntryRange(b, c), MANY)) == 1

    async def test_trimmed_to_the_end(self) -> None:
        """After a trim of all but an empty open ledger, the tail does not move back, and positions are not reused."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            (a,) = await rolled(ledger, b"a")
            before = await ledger.tail()
            await ledger.trim(before.open_ledger_id, NONE)
            assert await ledger.tail() == before
        async with self.data.open() as store:
            ledger = await store.open(NAME)
            assert await ledger.tail() == before
            (b,) = await append(ledger, b"b")
            assert b > a
            assert await read_all(ledger, before.last_confirmed) == [b"b"]

    async def test_count(self) -> None:
        """A count covers whole entries, over ledgers too; only its first entry may exceed the requested messages."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            tail = await ledger.tail()
            first = await ledger.append((Append(b"a", 3), Append(b"b", 2)), tail.open_ledger_id)
            await ledger.roll()
            second = await ledger.append((Append(b"c", 4), Append(b"d", 1)), None)
            a, b, c, d = (appended.position for appended in (*first, *second))
            every = EntryRange(tail.last_confirmed, d)
            for messages_max, upto, messages in (
                (1, a, 3), (3, a, 3), (4, a, 3), (5, b, 5), (8, b, 5), (9, c, 9), (10, d, 10), (99, d, 10),
            ):  # fmt: skip
                counted = await ledger.count(every, messages_max)
                assert (counted.upto, counted.messages) == (upto, messages), messages_max
            counted = await ledger.count(EntryRange(a, c), 99)
            assert (counted.upto, counted.messages) == (c, 6)
            assert await ledger.count(EntryRange(d, d), 99) == MessageCount(d, 0, None)

    async def test_count_tells_when_its_last_entry_was_appended(self) -> None:
        """
        ``find_time`` with the time that a count returned finds the count's last entry, in open and closed ledgers.

        If this fails, check that a count and ``find_time`` use one clock. A count that ends within a ledger must return
        the time of that entry, not of the ledger.
        """
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            before = (await ledger.tail()).last_confirmed
            positions: list[Position] = []
            for data in (b"a", b"b", b"c", b"d"):
                await self.data.pass_time(1000)
                positions += await append(ledger, data)
                if data == b"b":
                    await ledger.roll()
            told: list[int] = []
            for number, position in enumerate(positions):
                for messages_max, upto in ((number + 1, positions[-1]), (99, position)):
                    counted = await ledger.count(EntryRange(before, upto), messages_max)
                    assert counted.upto == position
                    assert counted.appended_ms is not None
                    told.append(counted.appended_ms)
                    assert await self.first_after(ledger, await ledger.find_time(told[-1])) == position
                    assert await ledger.find_time(told[-1] + 1) >= position
            assert told[::2] == told[1::2] == sorted(set(told))

    async def test_find_time(self) -> None:
        """
        ``find_time`` returns the position before the first entry at or after a time: the start for the past, the end
        for the future.
        """
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            positions: list[Position] = []
            times: list[int] = []
            for data in (b"a", b"b", b"c", b"d"):
                await self.data.pass_time(1000)
                times.append(self.data.now_ms())
                positions += await append(ledger, data)
                await self.data.pass_time(1000)
                if data == b"b":
                    await ledger.roll()
            for number, time_ms in enumerate(times):
                before = await ledger.find_time(time_ms - 500)
                assert await self.first_after(ledger, before) == positions[number]
                between = await ledger.find_time(time_ms + 500)
                assert between >= positions[number]
            assert await self.first_after(ledger, await ledger.find_time(0)) == positions[0]
            assert await ledger.find_time(times[-1] + 1_000_000) == await last_of(ledger)

    async def test_watch(self) -> None:
        """A watch on the tail is armed when it is returned, and wakes for appends, rolls and seals of any client."""
        async with self.data.open() as store, self.data.open() as other:
            ledger, writer = await store.create(NAME), await other.create(NAME)
            watch = await ledger.watch()
            await append(writer, b"a")
            await self.soon(watch.changed())
            for _ in range(WAKES_MAX):
                async with self.started(watch.changed()) as waiting:
                    if not waiting.done():
                        break
            else:
                pytest.fail(f"still woken after {WAKES_MAX} times without a change")
            await append(ledger, b"b")
            await self.soon(watch.changed())
            await writer.seal()
            await self.soon(watch.changed())
            await watch.close()
            await watch.close()
            with pytest.raises(Closed):
                await self.soon(watch.changed())

    async def test_what_a_watch_tells_was_appended(self) -> None:
        """
        ``appended`` is None or holds exactly the entries since the last report; it is None if anything else changed.

        If this fails, check changes that close a ledger or are too large to report: they must clear all reported
        entries.
        """
        async with self.data.open() as store, self.data.open() as other:
            ledger, writer = await store.create(NAME), await other.create(NAME)
            watch = await ledger.watch()
            if not IAppendedWatch.providedBy(watch):
                return
            known = (await ledger.tail()).last_confirmed
            for data in (b"a", bytes(range(256)), b"large" * 20_000, b"b"):
                await append(writer, data)
                while (upto := (await ledger.tail()).last_confirmed) > known:
                    await self.soon(watch.changed())
                    standing = await ledger.read(EntryRange(known, upto), Limit(10))
                    told = None if watch.appended is None else [one for one in watch.appended if one.position > known]
                    assert told in (None, [], list(standing))
                    if told != []:
                        known = upto
            for changed in (writer.roll, writer.seal):
                async with self.started(watch.changed()) as waiting:
                    await append(writer, b"c")
                    await changed()
                    await self.soon(asyncio.wait({waiting}))
                # The first wake-up may report the entry alone; the next one then reports the roll or the seal.
                if watch.appended is not None:
                    await self.soon(watch.changed())
                assert watch.appended is None

    @requires(Misleading)
    async def test_a_hint_is_no_more_than_a_hint(self) -> None:
        """
        A false notification of entries wakes the watch, but changes neither ``appended`` nor the result of any read.

        If this fails, check that the client keeps nothing of a notification: entries of ``appended`` are read from the
        store.
        """
        assert isinstance(self.data, Misleading)
        async with self.data.open() as store, self.data.open() as other:
            ledger, writer = await store.create(NAME), await other.create(NAME)
            await append(writer, b"a")
            standing = [b"a"]
            for data in (b"b", b"c"):
                tail = await ledger.tail()
                watch = await ledger.watch()
                await self.data.mislead(store, NAME)
                await self.soon(watch.changed())
                if IAppendedWatch.providedBy(watch):
                    assert not watch.appended
                assert await ledger.tail() == tail
                await append(writer, data)
                standing.append(data)
                last = (await ledger.tail()).last_confirmed
                assert [one.data for one in await ledger.read(EntryRange(EARLIEST, last), MANY)] == standing
                await watch.close()

    async def test_closed_ledger_closes_its_watches(self) -> None:
        """Closing the ledger ends a waiting ``changed`` with Closed."""
        async with self.data.open() as store:
            ledger = await store.create(NAME)
            watch = await ledger.watch()

            async def until_closed() -> None:
                try:
                    while True:
                        await watch.changed()
                except Closed:
                    return

            async with self.started(until_closed()) as waiting:
                await ledger.close()
                await self.soon(waiting)

    async def first_after(self, ledger: IManagedLedger, position: Position) -> Position:
        """Return the position of the first entry after a position."""
        entry, *_ = await ledger.read(EntryRange(position, await last_of(ledger)), MANY)
        return entry.position
