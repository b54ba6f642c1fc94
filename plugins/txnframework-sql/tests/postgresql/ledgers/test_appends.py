"""Appends that waited for another writer, or were sent together with others."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from txnframework.errors import InvalidInput, LedgerClosed, LedgerNotFound, LedgerSealed, OutcomeUnknown
from txnframework.interfaces import IManagedLedger
from txnframework.model import EARLIEST, Append, Appended, EntryRange, LedgerEntry, Limit, ProducerSequence
from txnframework_sql.postgresql._connection import FOLLOW_THE_INDEX
from txnframework_sql.postgresql._schema import READ_ENTRIES

if TYPE_CHECKING:
    from conftest import Hold, Ledgers

Appending = asyncio.Task[tuple[Appended, ...]]


def entry(producer: str, first: int, last: int | None = None) -> Append:
    """Return an entry whose data is its name."""
    last = first if last is None else last
    return Append(f"{producer}:{first}-{last}".encode(), sequence=ProducerSequence(producer, first, last))


def start(ledger: IManagedLedger, *entries: Append, ledger_id: int | None = None) -> Appending:
    return asyncio.create_task(ledger.append(entries, ledger_id))


async def start_behind(hold: Hold, sessions: int, ledger: IManagedLedger, *entries: Append) -> Appending:
    """Start an append, and return when this many sessions wait."""
    task = start(ledger, *entries)
    await hold.waiting(sessions)
    return task


async def all_of(ledger: IManagedLedger) -> tuple[LedgerEntry, ...]:
    upto = (await ledger.tail()).last_confirmed
    return await ledger.read(EntryRange(EARLIEST, upto), Limit(10_000))


async def test_sees_the_copy_of_whom_it_waited_for(ledgers: Ledgers) -> None:
    """
    An append finds sequences, also partial ones, that were appended by the writer it waited for.

    They did not exist when the waiting statement began. A decision by that statement's snapshot would store them twice.
    """
    async with ledgers.opened() as one, ledgers.opened() as two:
        first, second = await one.create("a"), await two.create("a")
        async with ledgers.held() as hold:
            winner = await start_behind(hold, 1, first, entry("p", 0, 1))
            loser = await start_behind(hold, 2, second, entry("p", 1, 2))
            await hold.let_go()
            (appended,), (duplicate,) = await winner, await loser
        assert not appended.duplicate
        assert duplicate == Appended(appended.position, True, None, ProducerSequence("p", 0, 1))
        assert [found.data for found in await all_of(first)] == [b"p:0-1"]


async def test_finds_the_ledger_that_was_opened_meanwhile(ledgers: Ledgers) -> None:
    """An append that waits for a roll goes to the next ledger; it is refused if it named the rolled one."""
    async with ledgers.opened() as one, ledgers.opened() as two, ledgers.opened() as three:
        rolled, any_one, named = await one.create("a"), await two.create("a"), await three.create("a")
        await rolled.append((Append(b"first"),), None)
        before = await rolled.tail()
        async with ledgers.held() as hold:
            rolling = asyncio.create_task(rolled.roll())
            await hold.waiting(1)
            appending = await start_behind(hold, 2, any_one, entry("p", 0))
            refused = start(named, entry("q", 0), ledger_id=before.open_ledger_id)
            await hold.waiting(3)
            await hold.let_go()
            after = await rolling
            (appended,) = await appending
            assert appended.position.ledger_id == after.open_ledger_id > before.open_ledger_id
            with pytest.raises(LedgerClosed):
                await refused


@pytest.mark.parametrize("ending", ["seal", "delete"])
def test_is_refused_after_the_end_it_waited_for(ledgers: Ledgers, ending: str) -> None:
    """An append that waited for a seal or a deletion is refused."""

    async def test() -> None:
        async with ledgers.opened() as one, ledgers.opened() as two:
            ended, late = await one.create("a"), await two.create("a")
            async with ledgers.held() as hold:
                end = asyncio.create_task(_end(one.delete("a", None) if ending == "delete" else ended.seal()))
                await hold.waiting(1)
                appending = await start_behind(hold, 2, late, entry("p", 0))
                await hold.let_go()
                await end
                with pytest.raises(LedgerNotFound if ending == "delete" else LedgerSealed):
                    await appending
            assert ending == "delete" or await all_of(late) == ()

    async def _end(work: object) -> None:
        await work  # type: ignore[misc]

    ledgers.run(test)


async def test_waiting_appends_share_a_statement(ledgers: Ledgers) -> None:
    """Appends that wait for a running one share a statement, and so a commit."""
    async with ledgers.opened() as store, ledgers.session() as looking:
        ledger = await store.create("a")
        async with ledgers.held() as hold:
            appending = [await start_behind(hold, 1, ledger, entry("p", 0))]
            appending += [start(ledger, entry(f"p{number % 4}", number)) for number in range(1, 64)]
            await hold.let_go()
            appended = [one for task in appending for one in await task]
        assert [one.position.entry_id for one in appended] == list(range(64))
        assert await looking.fetchval("SELECT count(DISTINCT xmin::text) FROM entries") == 2


async def test_calls_that_fill_a_ledger(ledgers: Ledgers) -> None:
    """The call that reaches the limit closes the ledger, at any place in its group."""
    async with ledgers.opened(ledger_entries_max=10) as store:
        ledger = await store.create("a")
        async with ledgers.held() as hold:
            appending = [await start_behind(hold, 1, ledger, entry("p", 0))]
            appending += [start(ledger, entry("p", number), entry("q", number)) for number in range(1, 13)]
            await hold.let_go()
            appended = [one.position for task in appending for one in await task]
        assert appended == sorted(appended)
        # One alone, and then pairs: the pair that reaches ten entries makes eleven.
        assert list(Counter(position.ledger_id for position in appended).values()) == [11, 10, 4]
        assert [found.position for found in await all_of(ledger)] == appended

        open_ledger_id = (await ledger.tail()).open_ledger_id
        named = [start(ledger, entry("r", number), ledger_id=open_ledger_id) for number in range(20)]
        answers = await asyncio.gather(*named, return_exceptions=True)
        assert [type(answer) for answer in answers] == [tuple] * 6 + [LedgerClosed] * 14


async def test_lost_connection_is_told_to_each(ledgers: Ledgers) -> None:
    """After a lost connection, each call of the group raises OutcomeUnknown; sent again, each is stored once."""
    async with ledgers.opened() as store:
        ledger = await store.create("a")
        async with ledgers.held() as hold:
            alone = await start_behind(hold, 1, ledger, entry("p", 0))
            together = [start(ledger, entry("p", number)) for number in range(1, 5)]
            await hold.end_waiting()
            with pytest.raises(OutcomeUnknown):
                await alone
            await hold.waiting(1)
            await hold.end_waiting()
            answers = await asyncio.gather(*together, return_exceptions=True)
            assert [type(answer) for answer in answers] == [OutcomeUnknown] * 4
            assert len({id(answer) for answer in answers}) == 4
        again = [one for number in range(5) for one in await ledger.append((entry("p", number),), None)]
        assert not any(one.duplicate for one in again)
        assert [found.data for found in await all_of(ledger)] == [b"p:%d-%d" % (n, n) for n in range(5)]


async def test_cancelled_appends(ledgers: Ledgers) -> None:
    """An append cancelled before it was sent is not stored; one cancelled later may be. The others are stored."""
    async with ledgers.opened() as store:
        ledger = await store.create("a")
        async with ledgers.held() as hold:
            sent = await start_behind(hold, 1, ledger, entry("sent", 0))
            unsent, kept = start(ledger, entry("unsent", 0)), start(ledger, entry("kept", 0))
            await asyncio.sleep(0)
            for task in (sent, unsent):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await hold.let_go()
            await kept
        assert [found.data for found in await all_of(ledger)] == [b"sent:0-0", b"kept:0-0"]


async def test_value_that_is_refused_is_in_nobodys_way(ledgers: Ledgers) -> None:
    """Of calls sent together, only the one with a value that PostgreSQL rejects fails."""
    async with ledgers.opened() as store:
        ledger = await store.create("a")
        async with ledgers.held() as hold:
            await start_behind(hold, 1, ledger, entry("p", 0))
            appending = [start(ledger, entry(producer, 1)) for producer in ("p", "nul\0", "q")]
            await hold.let_go()
            answers = await asyncio.gather(*appending, return_exceptions=True)
        assert [type(answer) for answer in answers] == [tuple, InvalidInput, tuple]
        assert [found.data for found in await all_of(ledger)] == [b"p:0-0", b"p:1-1", b"q:1-1"]


async def test_copies_beyond_the_window_go(ledgers: Ledgers) -> None:
    """All sequences of a producer's window are found, and only few more are stored."""
    window, count = 160, 1_000
    async with ledgers.opened(deduplication_window_sequences=window) as store, ledgers.session() as session:
        ledger = await store.create("a")
        for first in range(0, count, 20):
            await ledger.append(tuple(entry("p", number) for number in range(first, first + 20)), None)
        assert await session.fetchval("SELECT count(*) FROM producer_copies") <= 2 * window
        assert await ledger.find_sequence("p", 0) is None
        for number in range(count - window, count):
            assert await ledger.find_sequence("p", number) is not None


async def test_read_ends_at_its_limit(ledgers: Ledgers) -> None:
    """A read returns entries up to its bytes, at least one, over the ledgers of its range."""
    async with ledgers.opened(ledger_entries_max=4) as store:
        ledger = await store.create("a")
        for number in range(10):
            await ledger.append((Append(bytes([number]) * 100_000),), None)
        upto = (await ledger.tail()).last_confirmed

        async def sizes(items: int, size: int) -> list[int]:
            found = await ledger.read(EntryRange(EARLIEST, upto), Limit(items, size))
            return [one.data[0] for one in found]

        assert await sizes(100, 1 << 30) == list(range(10))
        assert await sizes(100, 600_000) == list(range(6))
        assert await sizes(100, 599_999) == list(range(5))
        assert await sizes(7, 1 << 30) == list(range(7))
        assert await sizes(100, 1) == [0]


async def test_read_fetches_no_more_than_it_returns(ledgers: Ledgers) -> None:
    """Entries after the limit are not read, even if the server has no statistics about the table."""
    read = f"SELECT * FROM {READ_ENTRIES.name}(1, 0, -1, 1000000, 1000000, 1000000, 10000)"
    fetched = (
        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)"
        " FROM pg_stat_xact_user_tables WHERE relname = 'entries'"
    )

    async with ledgers.opened() as store, ledgers.session() as session:
        await session.execute("ALTER TABLE entries SET (autovacuum_enabled = off)")
        await session.execute(FOLLOW_THE_INDEX)
        ledger = await store.create("a")
        await ledger.append(tuple(Append(b"x" * 1_000) for _ in range(5_000)), None)
        async with session.transaction():
            assert len(await session.fetch(read)) == 10
            # The server looks ahead by as many rows as it fetches at a time.
            assert await session.fetchval(fetched) <= 100
