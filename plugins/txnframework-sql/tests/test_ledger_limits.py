"""What keeps ledgers bounded: rolling, trimming, and forgetting producers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import func, select

from txnframework.errors import LedgerClosed
from txnframework.model import EARLIEST, Append, Appended, EntryRange, Limit, Position, ProducerSequence
from txnframework.testing import VirtualEnvironment
from txnframework_sql import LedgerOptions, SqlLedgerStore, SqlManagedLedger, open_ledger_store
from txnframework_sql.schema import metadata
from txnframework_sql.steps.statements import Steps, row

DAY_MS = 24 * 3_600_000


@asynccontextmanager
async def opened(
    url: str, options: LedgerOptions, environment: VirtualEnvironment
) -> AsyncIterator[tuple[SqlLedgerStore, SqlManagedLedger]]:
    """Open a store with one ledger in it."""
    store = await open_ledger_store(url, environment, options, None)
    ledger = await store.create("a")
    assert isinstance(ledger, SqlManagedLedger)
    try:
        yield store, ledger
    finally:
        await store.close()


async def rows_in(store: SqlLedgerStore, table: str) -> int:
    """Return the number of rows of a table."""

    def count() -> Steps[int]:
        found = yield from row(select(func.count()).select_from(metadata.tables[table]))
        assert found is not None
        return int(found[0])

    return await store.database.read(count)


def sent(producer: str, first: int, last: int | None = None) -> Append:
    """Return an entry with these sequences."""
    return Append(b"x", sequence=ProducerSequence(producer, first, first if last is None else last))


async def send(ledger: SqlManagedLedger, *entries: Append) -> tuple[Appended, ...]:
    """Append to the open ledger."""
    return await ledger.append(entries, None)


async def test_full_ledger_is_closed_by_the_append_that_fills_it(url: str) -> None:
    """
    After the append that reaches a limit, the tail names a new open ledger, and the full one accepts no more entries.
    """
    for options in (LedgerOptions(ledger_entries_max=3), LedgerOptions(ledger_bytes_max=30)):
        async with opened(url, options, VirtualEnvironment()) as (store, ledger):
            first = (await ledger.tail()).open_ledger_id
            await send(ledger, Append(b"x" * 10), Append(b"x" * 10))
            assert (await ledger.tail()).open_ledger_id == first
            await send(ledger, Append(b"x" * 10))
            tail = await ledger.tail()
            assert tail.open_ledger_id > first
            assert tail.last_confirmed == Position(first, 2)
            with pytest.raises(LedgerClosed):
                await ledger.append((Append(b""),), first)
            await store.delete("a", None)


@pytest.mark.parametrize(("entries_max", "bounds"), [(4, (0, 1, 4, 9, 100)), (1, (7, 100))])
def test_count_over_many_ledgers(url: str, entries_max: int, bounds: tuple[int, ...]) -> None:
    """
    Counting agrees with adding up, for every range and every bound, with messages of several sizes.

    This includes more ledgers than a count reads at once.
    """
    sizes = [1, 3, 2, 5, 1, 1, 4, 2, 2, 7, 1] * (1 if entries_max > 1 else 2)

    async def main() -> None:
        async with opened(url, LedgerOptions(ledger_entries_max=entries_max), VirtualEnvironment()) as (_, ledger):
            positions = [EARLIEST]
            for size in sizes:
                positions += [one.position for one in await send(ledger, Append(b"", size))]
            for first in range(len(positions)):
                for last in range(len(positions)):
                    for most in bounds:
                        counted = await ledger.count(EntryRange(positions[first], positions[last]), most)
                        assert (counted.upto, counted.messages) == added_up(positions, first, last, most)

    def added_up(positions: list[Position], first: int, last: int, most: int) -> tuple[Position, int]:
        upto, total = first, 0
        for number in range(first + 1, last + 1):
            if upto > first and total + sizes[number - 1] > most:
                break
            upto, total = number, total + sizes[number - 1]
        return positions[upto], total

    asyncio.run(main())


async def test_window_is_bounded(url: str) -> None:
    """A producer's last sequences are remembered, older ones are forgotten, and rows do not accumulate."""
    async with opened(url, LedgerOptions(deduplication_window_sequences=100), VirtualEnvironment()) as (
        store,
        ledger,
    ):
        await asyncio.gather(*(send(ledger, sent("p", number)) for number in range(1_000)))
        for number in range(900, 1_000):
            assert await ledger.find_sequence("p", number) is not None
        assert await ledger.find_sequence("p", 0) is None
        assert await rows_in(store, "producer_copies") <= 100 + 2 * 64


async def test_window_counts_sequences_not_their_distance(url: str) -> None:
    """A producer whose sequences are far apart, such as times, has as many remembered as any other."""
    async with opened(url, LedgerOptions(deduplication_window_sequences=100), VirtualEnvironment()) as (_, ledger):
        await asyncio.gather(*(send(ledger, sent("p", number * 10**9)) for number in range(400)))
        for number in range(300, 400):
            (again,) = await send(ledger, sent("p", number * 10**9))
            assert again.duplicate


async def test_trim_forgets_silent_producers(url: str) -> None:
    """Trimming forgets producers that were silent for long, and no others."""
    environment = VirtualEnvironment()
    async with opened(url, LedgerOptions(producer_idle_ms=DAY_MS), environment) as (_, ledger):
        await send(ledger, sent("silent", 1), sent("talking", 1))
        await ledger.roll()
        await environment.advance(DAY_MS + 1)
        await send(ledger, sent("talking", 2))
        await ledger.trim((await ledger.tail()).open_ledger_id, frozenset())
        assert await ledger.find_sequence("silent", 1) is None
        assert await ledger.find_sequence("talking", 1) is not None


async def test_trim_in_steps(url: str) -> None:
    """One trim stops after its limit; repeated, it removes everything below the given ledger."""
    options = LedgerOptions(ledger_entries_max=10, trim_entries_max=20)
    async with opened(url, options, VirtualEnvironment()) as (store, ledger):
        await send(ledger, *(Append(b"x") for _ in range(10)))
        for _ in range(4):
            await send(ledger, *(Append(b"x") for _ in range(10)))
        tail = await ledger.tail()
        steps = 0
        while await ledger.trim(tail.open_ledger_id, frozenset()) < tail.open_ledger_id:
            steps += 1
        assert steps == 2
        assert await rows_in(store, "entries") == 0
        assert await rows_in(store, "ledger_segments") == 1
        assert (await ledger.tail()).last_confirmed == tail.last_confirmed


async def test_interrupted_trim_is_finished_by_the_next(url: str) -> None:
    """Entries of a trimmed ledger that a crash left behind are never seen, and are removed by the next trim."""
    from txnframework_sql.steps import retention

    async with opened(url, LedgerOptions(ledger_entries_max=2_500), VirtualEnvironment()) as (store, ledger):
        await send(ledger, *(Append(b"x") for _ in range(2_500)))
        managed = ledger.managed
        open_id = (await ledger.tail()).open_ledger_id
        await store.database.write(lambda: retention.hide_oldest(managed, open_id))
        await store.database.write(lambda: retention.remove_hidden(managed.id))
        assert await rows_in(store, "entries") == 1_500
        (position,) = [one.position for one in await send(ledger, Append(b"new"))]
        (entry,) = await ledger.read(EntryRange(Position(open_id, -1), position), Limit(10))
        assert entry.data == b"new"
        assert await ledger.trim(open_id, frozenset()) == open_id
        assert await rows_in(store, "entries") == 1


async def test_deleted_ledger_leaves_nothing(url: str) -> None:
    """Deleting removes every row, including those of an interrupted delete of another ledger."""
    from txnframework_sql.steps import ledgers

    async with opened(url, LedgerOptions(ledger_entries_max=10), VirtualEnvironment()) as (store, ledger):
        other = await store.create("b")
        await asyncio.gather(*(send(ledger, sent(f"p{number}", number)) for number in range(25)))
        await other.append(tuple(sent("p", number) for number in range(25)), None)
        await store.database.write(lambda: ledgers.forget_name("b", None))
        await store.delete("a", None)
        for table in ("entries", "ledger_segments", "managed_ledgers", "producer_copies"):
            assert await rows_in(store, table) == 0


async def test_clock_of_a_ledger_never_goes_back(url: str) -> None:
    """Entries are found by time, also if the clock was set back between appends."""
    environment = VirtualEnvironment()
    async with opened(url, LedgerOptions(ledger_entries_max=2), environment) as (_, ledger):
        start_ms = environment.now_ms()
        await environment.advance(1_000)
        (first,) = await send(ledger, Append(b""))
        earlier = await open_ledger_store(url, VirtualEnvironment(now_ms=start_ms), LedgerOptions(), None)
        behind = await earlier.open("a")
        (second,) = await behind.append((Append(b""),), None)
        await earlier.close()
        before = Position(first.position.ledger_id, -1)
        assert await ledger.find_time(start_ms) == before
        assert await ledger.find_time(start_ms + 1_000) == before
        assert await ledger.find_time(start_ms + 1_001) == second.position
