"""Rules that only concurrent clients can break."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import LedgerClosed, LedgerSealed, OutcomeUnknown, Unavailable
from txnframework.interfaces import IManagedLedger
from txnframework.model import EARLIEST, Append, EntryRange, LedgerEntry, Position
from txnframework.testing._suites._ledger._case import (
    NAME,
    LedgerStoreRules,
    append,
    last_of,
    read_all,
    read_range,
    send,
    sent,
)
from txnframework.testing.capabilities import requires
from txnframework.testing.harness import Crashing, Disconnecting


class RaceRules(LedgerStoreRules):
    """Two clients use one ledger at the same time, or one of them fails."""

    async def test_racing_appends(self) -> None:
        """
        Concurrent appends of two clients are all stored once; each call's entries are adjacent, each writer's in order.
        """

        async def write(ledger: IManagedLedger, who: bytes) -> list[Position]:
            positions: list[Position] = []
            for number in range(8):
                pair = await append(ledger, b"%s%da" % (who, number), b"%s%db" % (who, number))
                assert pair[1] == Position(pair[0].ledger_id, pair[0].entry_id + 1)
                positions += pair
            return positions

        async with self.data.open() as one, self.data.open() as two:
            ledgers = await one.create(NAME), await two.create(NAME)
            x, y = await asyncio.gather(write(ledgers[0], b"x"), write(ledgers[1], b"y"))
            assert x == sorted(x)
            assert y == sorted(y)
            assert sorted(position.entry_id for position in (*x, *y)) == list(range(32))
            data = await read_all(ledgers[0])
            assert [data[position.entry_id] for position in x] == [
                b"x%d%s" % (number, half) for number in range(8) for half in (b"a", b"b")
            ]

    async def test_nothing_appears_below_the_last_confirmed_position(self) -> None:
        """
        The entries up to a last confirmed position never change.

        If this fails, check that positions become visible in order: a gap that is filled later loses messages.
        """
        done = asyncio.Event()

        async def write(ledger: IManagedLedger) -> None:
            for number in range(10):
                await append(ledger, b"%d" % number)
                if number % 4 == 3:
                    await ledger.roll()

        async def watch(ledger: IManagedLedger) -> list[LedgerEntry]:
            seen: list[LedgerEntry] = []
            after = EARLIEST
            while True:
                finishing = done.is_set()
                last = await last_of(ledger)
                assert last >= after, "the last confirmed position never moves back"
                seen += await read_range(ledger, EntryRange(after, last))
                after = last
                if finishing:
                    return seen

        async with self.data.open() as one, self.data.open() as two, self.data.open() as three:
            first, second, third = await one.create(NAME), await two.create(NAME), await three.create(NAME)
            reader = asyncio.ensure_future(watch(third))
            await asyncio.gather(write(first), write(second))
            done.set()
            seen = await self.soon(reader)
            assert seen == await read_range(first, EntryRange(EARLIEST, await last_of(first)))
            assert len(seen) == 20

    async def test_seal_ends_every_writer(self) -> None:
        """
        After seal has returned, no entry is stored after its tail, and all confirmed appends are stored before it.
        """

        async def write(ledger: IManagedLedger) -> list[Position]:
            confirmed: list[Position] = []
            try:
                while True:
                    confirmed += await append(ledger, b"x")
            except LedgerSealed:
                return confirmed

        async with self.data.open() as one, self.data.open() as two:
            first, second = await one.create(NAME), await two.create(NAME)
            async with self.started(write(first)) as writing:
                sealed = await second.seal()
                standing = len(await read_range(second, EntryRange(EARLIEST, sealed.last_confirmed)))
                confirmed = await self.soon(writing)
            assert len(confirmed) == standing
            assert await second.tail() == sealed

    async def test_roll_ends_writers_of_the_earlier_ledger(self) -> None:
        """After a roll has returned, no entry is appended to the earlier ledger."""

        async def write(ledger: IManagedLedger, ledger_id: int) -> list[Position]:
            confirmed: list[Position] = []
            try:
                while True:
                    (appended,) = await ledger.append((Append(b"x"),), ledger_id)
                    confirmed.append(appended.position)
            except LedgerClosed:
                return confirmed

        async with self.data.open() as one, self.data.open() as two:
            first, second = await one.create(NAME), await two.create(NAME)
            await append(first, b"x")
            earlier = (await first.tail()).open_ledger_id
            async with self.started(write(first, earlier)) as writing:
                rolled = await second.roll()
                assert rolled.open_ledger_id > earlier
                standing = len(await read_all(second))
                confirmed = await self.soon(writing)
            assert len(confirmed) + 1 == standing == len(await read_all(second))
            assert await append(second, b"y") == [Position(rolled.open_ledger_id, 0)]

    async def test_racing_rolls(self) -> None:
        """Two clients that roll one ledger at the same time open one next ledger, or two in succession."""
        async with self.data.open() as one, self.data.open() as two:
            first, second = await one.create(NAME), await two.create(NAME)
            await append(first, b"a")
            tails = await asyncio.gather(first.roll(), second.roll())
            now = await first.tail()
            assert max(tail.open_ledger_id for tail in tails) == now.open_ledger_id
            assert await append(second, b"b") == [Position(now.open_ledger_id, 0)]
            assert await read_all(first) == [b"a", b"b"]

    async def test_racing_copies_are_stored_once(self) -> None:
        """
        Of two clients that send one sequence at the same time, one appends it and the other gets its position.

        If this fails, check that the look-up and the append are one step.
        """
        async with self.data.open() as one, self.data.open() as two:
            first, second = await one.create(NAME), await two.create(NAME)
            for number in range(8):
                outcomes = await asyncio.gather(send(first, sent("p", number)), send(second, sent("p", number)))
                (left,), (right,) = outcomes
                assert left.position == right.position
                assert sorted((left.duplicate, right.duplicate)) == [False, True]
            assert len(await read_all(first)) == 8

    async def test_racing_replacements(self) -> None:
        """
        Of two clients that replace one copy at the same time, exactly one does; the other gets the new copy's position.
        """
        async with self.data.open() as one, self.data.open() as two:
            first, second = await one.create(NAME), await two.create(NAME)
            (old,) = await send(first, sent("p", 1))
            entry = sent("p", 1)
            again = Append(entry.data, 1, None, entry.sequence, old.position)
            (left,), (right,) = await asyncio.gather(send(first, again), send(second, again))
            assert sorted((left.duplicate, right.duplicate)) == [False, True]
            assert left.position == right.position != old.position
            assert len(await read_all(first)) == 2

    @requires(Crashing)
    async def test_crash_keeps_what_was_confirmed(self) -> None:
        """After the crash of a client, all its confirmed entries are read, and their sequences are remembered."""
        harness = self.data
        assert isinstance(harness, Crashing)
        async with harness.open() as store:
            ledger = await store.create(NAME)
            (before,) = await send(ledger, sent("p", 1))
            await harness.crash(store)
        async with harness.open() as store:
            ledger = await store.open(NAME)
            assert await read_all(ledger) == [b"p:1-1"]
            (after,) = await send(ledger, sent("p", 1))
            assert (after.duplicate, after.position) == (True, before.position)

    @requires(Disconnecting)
    async def test_lost_reply(self) -> None:
        """An append whose reply was lost raises OutcomeUnknown; sending it again with its sequence stores it once."""
        harness = self.data
        assert isinstance(harness, Disconnecting)
        async with harness.open() as store:
            ledger = await store.create(NAME)
            opened = (await ledger.tail()).open_ledger_id
            await harness.cut(store)
            with pytest.raises(OutcomeUnknown):
                await self.soon(ledger.append((sent("p", 1),), opened))
            with pytest.raises(Unavailable):
                await self.soon(ledger.tail())
            await harness.restore(store)
            (again,) = await send(ledger, sent("p", 1))
            assert again.duplicate
            assert await read_all(ledger) == [b"p:1-1"]
