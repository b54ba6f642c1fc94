"""Whoever asks for the end of a ledger and for what stands there is answered by one statement."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from txnframework.errors import LedgerNotFound
from txnframework.interfaces import IManagedLedger
from txnframework.model import EARLIEST, Append, EntryRange, LedgerEntry, Limit, Position

if TYPE_CHECKING:
    from conftest import Ledgers

EVERYTHING = EntryRange(EARLIEST, Position((1 << 63) - 1, (1 << 63) - 1))


async def read(ledger: IManagedLedger) -> tuple[LedgerEntry, ...]:
    return await ledger.read(EVERYTHING, Limit(10))


def test_both_are_one_fact(ledgers: Ledgers) -> None:
    """They are asked together, whatever is read; who asks for the end of another ledger beside that asks apart."""

    async def test() -> None:
        async with ledgers.opened() as store:
            ledger, other = await store.create("a"), await store.create("b")
            asked = 0
            connections: Any = ledger._entries._connections  # type: ignore[attr-defined]
            run = connections.run

            async def counted(work: Any) -> Any:
                nonlocal asked
                asked += 1
                return await run(work)

            connections.run = counted
            tail, entries = await asyncio.gather(ledger.tail(), read(ledger))
            assert (entries, asked) == ((), 1)
            await ledger.append((Append(b"x"), Append(b"y")), None)
            asked = 0
            tail, entries, again = await asyncio.gather(ledger.tail(), read(ledger), ledger.tail())
            assert asked == 1
            assert [entry.data for entry in entries] == [b"x", b"y"]
            assert tail == again
            assert tail.last_confirmed == entries[-1].position
            asked = 0
            _, entries, of_other = await asyncio.gather(ledger.tail(), read(ledger), other.tail())
            assert asked == 2
            assert len(entries) == 2
            assert of_other == await other.tail()

    ledgers.run(test)


def test_who_reads_does_not_depend_on_who_asks_for_the_end(ledgers: Ledgers) -> None:
    """One that is cancelled leaves the other alone, before it was sent and after."""

    async def test() -> None:
        async with ledgers.opened() as store:
            ledger = await store.create("a")
            await ledger.append((Append(b"x"),), None)
            for turns in range(4):
                tail, reading = asyncio.ensure_future(ledger.tail()), asyncio.ensure_future(read(ledger))
                for _ in range(turns):
                    await asyncio.sleep(0)
                tail.cancel()
                assert len(await reading) == 1
                tail, reading = asyncio.ensure_future(ledger.tail()), asyncio.ensure_future(read(ledger))
                for _ in range(turns):
                    await asyncio.sleep(0)
                reading.cancel()
                assert not (await tail).sealed

    ledgers.run(test)


def test_a_ledger_that_is_gone(ledgers: Ledgers) -> None:
    """Both are told, each by an exception of its own."""

    async def test() -> None:
        async with ledgers.opened() as store:
            ledger = await store.create("a")
            await store.delete("a", None)
            told = await asyncio.gather(ledger.tail(), read(ledger), return_exceptions=True)
            assert [type(one) for one in told] == [LedgerNotFound, LedgerNotFound]
            with pytest.raises(LedgerNotFound):
                await ledger.tail()

    ledgers.run(test)
