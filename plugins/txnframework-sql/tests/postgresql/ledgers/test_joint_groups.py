"""Joint appends that share a statement are decided separately, and never wait for each other in a circle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from txnframework.errors import LedgerNotFound, LedgerSealed, OutcomeUnknown, VersionMismatch
from txnframework.interfaces import ICoCommitStore, ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.model import (
    EARLIEST,
    Append,
    Applied,
    Branch,
    Check,
    Delete,
    EntryRange,
    Expect,
    IndexEntry,
    IndexRange,
    Key,
    LedgerAppend,
    Limit,
    Position,
    Put,
    Reach,
    Step,
    TxnID,
    require_valid,
)

if TYPE_CHECKING:
    from conftest import Ledgers

ROUNDS = 20


class Both:
    """The records and ledgers of one client."""

    def __init__(self, store: ILedgerStore, records: IMetadataStore, ledgers: Sequence[IManagedLedger]) -> None:
        self.store = store
        self.records = records
        self.ledgers = ledgers

    async def append(self, number: int, *at: int, records: Step | None = None) -> Applied:
        """Append one entry to each of the ledgers, with the header of a transaction or with other records."""
        branch = Branch(TxnID(1, number), 0)
        entry = Append(b"%d" % number, 1, branch)
        appends = tuple(LedgerAppend(self.ledgers[place].reference, (entry,)) for place in at)
        return await self.step(replace(records or Step(puts=(header(number),)), appends=appends))

    async def step(self, step: Step) -> Applied:
        """Make a step by the connections of the ledger store."""
        reference: Any = self.ledgers[0].reference
        require_valid(step, Reach.DATABASE)
        applied: Applied = await reference.operations.apply(step, 0)
        return applied

    async def entries(self, at: int) -> list[tuple[Position, bytes]]:
        """Return the entries of a ledger."""
        upto = (await self.ledgers[at].tail()).last_confirmed
        found = await self.ledgers[at].read(EntryRange(EARLIEST, upto), Limit(1_000))
        return [(one.position, bytes(one.data)) for one in found]


@asynccontextmanager
async def opened(ledgers: Ledgers, count: int, **options: object) -> AsyncIterator[Both]:
    """Open ledgers with the numbers 0 to ``count`` - 1."""
    async with ledgers.opened(**options) as store, ledgers.records() as records:
        made = []
        for number in range(count):
            ledger = await store.create(f"ledger-{number}")
            made.append(ledger)
        yield Both(store, records, made)


def header(number: int) -> Put:
    return Put(Key(f"/txn/{number:03d}"), b"h", Expect.ABSENT, (IndexEntry("state", b"%03d" % number),))


async def test_refused_calls_do_not_fail_others(ledgers: Ledgers) -> None:
    """Of the calls of one statement, each refused one writes nothing, and all others are one commit."""
    async with opened(ledgers, 4) as both, ledgers.session() as session:
        # After two calls of one turn, the next calls share a statement.
        await asyncio.gather(both.append(90, 0, 1), both.append(91))
        await both.records.put(Put(Key("/kept"), b"", Expect.ABSENT))
        await both.ledgers[2].seal()
        await both.store.delete("ledger-3", None)
        calls = [
            both.append(1, 0, 1),
            both.append(90, 0),  # its header is stored
            both.append(2, 0),
            both.append(3, 1, 2),
            both.append(4, 3),
            both.append(6, 0, 1, records=Step((Check(Key("/kept"), Expect.ABSENT),), (header(6),))),
            both.append(7, 1, 0),
            both.append(8, records=Step(puts=(header(8),))),
        ]
        done = await asyncio.gather(*calls, return_exceptions=True)
        refused = {number: type(one) for number, one in enumerate(done) if isinstance(one, Exception)}
        assert refused == {
            1: VersionMismatch,
            3: LedgerSealed,
            4: LedgerNotFound,
            5: VersionMismatch,
        }
        first, second = await both.entries(0), await both.entries(1)
        assert [data for _, data in first] == [b"90", b"1", b"2", b"7"]
        assert [data for _, data in second] == [b"90", b"1", b"7"]
        stored = [one for one in done if isinstance(one, Applied)]
        assert [tuple(tuple(at.position for at in some) for some in one.appended) for one in stored] == [
            ((first[1][0],), (second[1][0],)),
            ((first[2][0],),),
            ((second[2][0],), (first[3][0],)),
            (),
        ]
        page = await both.records.scan_index(IndexRange("state", b"", b"\xff"), 100)
        assert [record.key.path for record in page.records] == [f"/txn/{at:03d}" for at in (1, 2, 7, 8, 90, 91)]
        assert {one.records[0] for one in stored} < set(page.records)
        assert await session.fetchval("SELECT count(DISTINCT xmin::text) FROM entries") == 2


async def test_every_kind_of_step(ledgers: Ledgers) -> None:
    """A statement for several calls creates, replaces and deletes records, and their index entries follow."""
    async with opened(ledgers, 1) as both:
        old = IndexEntry("state", b"old")
        keys = [Key(f"/kept/{number}") for number in range(4)]
        versions = [await both.records.put(Put(key, b"", Expect.ABSENT, (old,))) for key in keys]
        new = (IndexEntry("state", b"new"),)
        replaced = Step((Check(keys[3], versions[3]),), (Put(keys[0], b"1", versions[0], new),))
        deleted = Step(
            (Check(keys[3], versions[3]), Check(Key("/none"), Expect.ABSENT)),
            (Put(Key("/created"), b"2", Expect.ABSENT, new), Put(keys[1], b"3", Expect.ANY)),
            (Delete(keys[2], versions[2]), Delete(Key("/gone"), Expect.ANY)),
        )
        one, two = await asyncio.gather(both.append(1, 0, records=replaced), both.append(2, 0, records=deleted))
        found = [await both.records.get(key) for key in (keys[0], Key("/created"), keys[1])]
        assert found == [*one.records, *two.records]
        assert [record.value for record in (*one.records, *two.records)] == [b"1", b"2", b"3"]
        assert await both.records.get(keys[2]) is None
        assert await both.records.get(Key("/none")) is None
        indexed = await both.records.scan_index(IndexRange("state", b"", b"\xff"), 100)
        assert [record.key for record in indexed.records] == [Key("/created"), keys[0], keys[3]]


async def test_calls_of_one_record(ledgers: Ledgers) -> None:
    """Calls of one turn that put the same record are applied one after the other, each by its own expectation."""
    async with opened(ledgers, 1) as both:
        puts = [Put(Key("/last"), b"%d" % number, Expect.ANY) for number in range(6)]
        puts += [Put(Key("/first"), b"%d" % number, Expect.ABSENT) for number in range(6)]
        calls = [both.append(number, 0, records=Step(puts=(put,))) for number, put in enumerate(puts)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        stored = [one for one in done if isinstance(one, Applied)]
        assert [type(one) for one in done if isinstance(one, Exception)] == [VersionMismatch] * 5
        assert len({one.records[0].version for one in stored}) == 7
        assert len(await both.entries(0)) == 7


async def test_full_ledgers(ledgers: Ledgers) -> None:
    """Calls of one turn that fill their ledgers go on in the next ones, in the order of the calls."""
    async with opened(ledgers, 2, ledger_entries_max=5) as both:
        done = [
            await asyncio.gather(*(both.append(4 * turn + number, 0, 1) for number in range(4))) for turn in range(3)
        ]
        for at in range(2):
            positions = [one.appended[at][0].position for turn in done for one in turn]
            assert [position for position, _ in await both.entries(at)] == positions
            assert positions == sorted(set(positions))
            assert len({one.ledger_id for one in positions}) == 3


async def test_a_locked_ledger_delays_no_others(ledgers: Ledgers) -> None:
    """A call waits for the lock of its ledger: others of its turn, and later ones, do not wait with it."""
    async with opened(ledgers, 2) as both:
        async with ledgers.held("SELECT FROM managed_ledgers WHERE name = 'ledger-0' FOR UPDATE") as hold:
            late = asyncio.create_task(both.append(1, 0))
            await asyncio.gather(both.append(2, 1), both.append(3, 1))
            await both.append(4, 1)
            assert not late.done()
            await hold.let_go()
            await late
        assert [len(await both.entries(at)) for at in range(2)] == [1, 3]


async def test_no_deadlocks(ledgers: Ledgers) -> None:
    """Clients whose calls name records and ledgers in opposite orders never wait for each other in a circle."""
    async with AsyncExitStack() as stack, ledgers.session() as session:
        clients = [await stack.enter_async_context(opened(ledgers, 3)) for _ in range(2)]

        async def write(both: Both, client: int, caller: int) -> None:
            for turn in range(ROUNDS):
                puts = [Put(Key(f"/shared/{number}"), b"", Expect.ANY) for number in range(3)]
                puts.append(Put(Key(f"/own/{client}/{caller}/{turn}"), b"", Expect.ABSENT))
                ascends = (client + caller) % 2 == 0
                batch = Step(puts=tuple(puts if ascends else reversed(puts)))
                number = 1 + client * 1_000 + caller * 100 + turn
                await both.append(number, *(range(3) if ascends else (2, 1, 0)), records=batch)

        await asyncio.gather(*(write(both, at, caller) for at, both in enumerate(clients) for caller in range(4)))
        for at in range(3):
            assert len(await clients[0].entries(at)) == 2 * 4 * ROUNDS
        # Backends report it before their session ends.
    async with ledgers.session() as session:
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert await session.fetchval(deadlocks) == 0


async def test_a_cut_connection(ledgers: Ledgers) -> None:
    """If its session ends at any lock of a statement, nothing of its calls is stored, and each can be repeated."""
    locks = (
        "SELECT FROM records FOR UPDATE",
        "LOCK TABLE index_entries IN EXCLUSIVE MODE",
        "SELECT FROM managed_ledgers FOR UPDATE",
        "LOCK TABLE entries IN EXCLUSIVE MODE",
        "SELECT FROM ledger_segments FOR UPDATE",
        "SELECT FROM highest_txn_numbers FOR UPDATE",
    )
    async with opened(ledgers, 2) as both:
        await both.records.put(Put(Key("/cursor"), b"", Expect.ABSENT))
        # After two calls of one turn, the next calls share a statement.
        await asyncio.gather(both.append(1, 0), both.append(2, 1))
        for round_, lock in enumerate(locks, 1):
            cursor = await both.records.get(Key("/cursor"))
            assert cursor is not None
            before = [await both.entries(at) for at in range(2)]
            moved = Step(puts=(header(10 * round_), Put(cursor.key, b"%d" % round_, cursor.version)))

            def calls(number: int = 10 * round_, moved: Step = moved) -> list[asyncio.Task[Applied]]:
                work = (both.append(number, 0, 1, records=moved), both.append(number + 1, 1))
                return [asyncio.create_task(one) for one in work]

            async with ledgers.held(lock) as hold:
                sending = calls()
                await hold.waiting(1)
                await hold.end_waiting()
                done = await asyncio.gather(*sending, return_exceptions=True)
            assert {type(one) for one in done} == {OutcomeUnknown}, lock
            assert [await both.entries(at) for at in range(2)] == before
            assert await both.records.get(cursor.key) == cursor
            page = await both.records.scan_index(IndexRange("state", b"%03d" % (10 * round_), b"999"), 10)
            assert page.records == ()
            await asyncio.gather(*calls())
            assert [len(await both.entries(at)) for at in range(2)] == [len(before[0]) + 1, len(before[1]) + 2]


async def test_rows_on_other_ledgers_do_not_wait(ledgers: Ledgers) -> None:
    """
    Two connections of an application append to two ledgers, in transactions of one coordinator, before one commits.

    The highest number of the coordinator is that of both, whichever commits first, also after a ledger is deleted.
    """
    async with opened(ledgers, 2) as both, ledgers.session() as one, ledgers.session() as other:
        await asyncio.gather(both.append(1, 0), both.append(2, 1))
        records = ICoCommitStore(both.records)
        joined = [await records.join(connection) for connection in (one, other)]
        for at, transaction in enumerate(joined):
            number = 10 + at
            append = LedgerAppend(both.ledgers[at].reference, (Append(b"", 1, Branch(TxnID(1, number), 0)),))
            async with asyncio.timeout(60):  # it would wait for the other one's COMMIT
                await records.apply(Step(puts=(header(number),), appends=(append,)), transaction)
        await joined[1].commit()
        assert await both.store.highest_txn_numbers() == {1: 11}
        await joined[0].commit()
        assert await both.store.highest_txn_numbers() == {1: 11}
        await both.store.delete("ledger-1", None)
        assert await both.store.highest_txn_numbers() == {1: 11}
        assert [len(await both.entries(0))] == [2]
