"""Records under concurrent writers: locks, snapshots, shared statements, and the effects of a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import asyncpg
import pytest

from txnframework.errors import InvalidInput, OutcomeUnknown, VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model import Check, Delete, Expect, IndexEntry, IndexRange, Key, KeyRange, Put, PutSequential, Step

if TYPE_CHECKING:
    from conftest import Stores

    Raw = asyncpg.Connection[asyncpg.Record]

KEY = Key("/header", "t")
ALL = IndexRange("i", b"", b"\xff")


def entry(key: bytes) -> tuple[IndexEntry, ...]:
    """Return the only index entry of a record."""
    return (IndexEntry("i", key),)


@asynccontextmanager
async def connected(stores: Stores) -> AsyncIterator[Raw]:
    """Connect without the store, like another program within a transaction."""
    raw = await asyncpg.connect(stores.url)
    try:
        yield raw
    finally:
        await raw.close()


async def waiting_for_lock(raw: Raw) -> int:
    """Return the process id of a statement that waits for a lock, once there is one."""
    while (pid := await raw.fetchval("SELECT pid FROM pg_locks WHERE NOT granted LIMIT 1")) is None:
        pass
    return int(pid)


async def test_index_entries_written_while_it_waited_go(stores: Stores) -> None:
    """A put that waited for another one removes the index entries which that one has just created."""
    async with stores.metadata() as store, connected(stores) as raw:
        await store.put(Put(KEY, b"1", Expect.ANY, entry(b"1")))
        async with raw.transaction():
            await raw.execute("UPDATE index_entries SET key = '2'")
            await raw.execute("""UPDATE records SET indexes = '[["i","32"]]', version = version + 1""")
            put = asyncio.create_task(store.put(Put(KEY, b"3", Expect.ANY, entry(b"3"))))
            await waiting_for_lock(raw)
        await put
        assert [found["key"] for found in await raw.fetch("SELECT key FROM index_entries")] == [b"3"]
        assert [record.value for record in (await store.scan_index(ALL, 9)).records] == [b"3"]


@pytest.mark.parametrize("committed", [True, False])
async def test_two_make_one_record(stores: Stores, committed: bool) -> None:
    """A put that creates a record waits for another creation of it, and then sees its outcome."""
    async with stores.metadata() as store, connected(stores) as raw:
        transaction = raw.transaction()
        await transaction.start()
        await raw.execute("INSERT INTO records VALUES ('/header', 't', nextval('txnframework_numbers'), NULL, 'x')")
        puts = [
            asyncio.create_task(store.put(Put(KEY, b"absent", Expect.ABSENT))),
            asyncio.create_task(store.put(Put(KEY, b"any", Expect.ANY))),
        ]
        await waiting_for_lock(raw)
        await (transaction.commit() if committed else transaction.rollback())
        first, second = await asyncio.gather(*puts, return_exceptions=True)
        assert isinstance(first, VersionMismatch) or not committed
        assert isinstance(second, int)


@pytest.mark.parametrize("expected", ["present", "absent"])
@pytest.mark.parametrize("committed", [True, False])
async def test_checks_exclude(stores: Stores, expected: str, committed: bool) -> None:
    """A batch waits for changes and creations of the records that it checks; checks leave nothing behind."""
    async with stores.metadata() as store, connected(stores) as raw:
        version = await store.put(Put(KEY, b"1", Expect.ABSENT))
        absent = Key("/absent", "t")
        check = Check(KEY, version) if expected == "present" else Check(absent, Expect.ABSENT)
        transaction = raw.transaction()
        await transaction.start()
        if expected == "present":
            await raw.execute("UPDATE records SET version = nextval('txnframework_numbers')")
        else:
            await raw.execute("INSERT INTO records VALUES ('/absent', 't', nextval('txnframework_numbers'), NULL, '')")
        batch = asyncio.create_task(store.apply(Step((check,), (PutSequential(Key("/op", "t"), b""),))))
        await waiting_for_lock(raw)
        await (transaction.commit() if committed else transaction.rollback())
        if committed:
            with pytest.raises(VersionMismatch) as caught:
                await batch
            assert caught.value.key == check.key
        else:
            await batch
        assert len((await store.scan(KeyRange("/op/", "/op0"), 9)).records) == (not committed)
        assert (await store.get(absent) is not None) == (expected == "absent" and committed)


async def test_versions_grow_however_puts_meet(stores: Stores) -> None:
    """Each confirmed put of a record has a higher version than those confirmed before, from several clients."""
    async with stores.metadata() as one, stores.metadata() as other:
        seen = 0
        for round_ in range(20):
            puts = (store.put(Put(KEY, b"", Expect.ANY, entry(b"%d" % round_))) for store in (one, other) * 3)
            versions = await asyncio.gather(*puts)
            assert len(set(versions)) == 6
            assert min(versions) > seen
            seen = max(versions)
            record = await one.get(KEY)
            assert record is not None
            assert record.version == seen
        assert len((await one.scan_index(ALL, 9)).records) == 1


async def test_batches_that_take_records_in_any_order(stores: Stores) -> None:
    """Batches over the same records in opposite orders, from several clients, do not deadlock."""
    async with stores.metadata() as one, stores.metadata() as other:
        keys = [Key(f"/{number}", "t") for number in range(6)]
        for key in keys:
            await one.put(Put(key, b"", Expect.ABSENT))
        for _ in range(10):
            forth = Step(puts=tuple(Put(key, b"", Expect.ANY) for key in keys))
            back = Step((Check(keys[-1], Expect.ANY),), tuple(Put(key, b"", Expect.ANY) for key in reversed(keys[:-1])))
            await asyncio.gather(*(store.apply(batch) for store in (one, other) for batch in (forth, back)))
        deadlocks = stores.server.run(f"SELECT deadlocks FROM pg_stat_database WHERE datname = '{stores.database}'")
        assert deadlocks == "0"


async def test_records_made_in_opposite_orders(stores: Stores) -> None:
    """
    Absent records are locked in the order of their keys as well, so two batches never deadlock.

    Both batches wait in the middle for the creation of a third record, which is then rolled back. Without the order,
    each would by then have created the next record of the other.
    """

    def puts(*paths: str) -> Step:
        return Step((), tuple(Put(Key(path, "p"), path.encode(), Expect.ANY) for path in paths))

    async with stores.metadata(retries_max=0) as one, stores.metadata(retries_max=0) as other:
        async with connected(stores) as raw:
            held = raw.transaction()
            await held.start()
            await raw.execute("INSERT INTO records (path, partition, version, value) VALUES ('/m', 'p', 1, '')")
            both = [
                asyncio.ensure_future(one.apply(puts("/a", "/m", "/b"))),
                asyncio.ensure_future(other.apply(puts("/b", "/m", "/a"))),
            ]
            while await raw.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < 2:
                pass
            await held.rollback()
            await asyncio.gather(*both)
        page = await one.scan(KeyRange("/", "0"), 10)
        assert [(record.key.path, record.value) for record in page.records] == [
            ("/a", b"/a"),
            ("/b", b"/b"),
            ("/m", b"/m"),
        ]


async def test_what_was_only_locked_is_not_there(stores: Stores) -> None:
    """A record created only for its lock is gone after a refusal, and counts as absent within the batch."""
    async with stores.metadata() as store:
        a, b, c = (Key(path, "p") for path in ("/a", "/b", "/c"))
        with pytest.raises(VersionMismatch) as refused:
            await store.apply(Step((Check(a, Expect.ABSENT),), (Put(b, b"", Expect.ABSENT), Put(c, b"", 7))))
        assert refused.value.actual is None
        assert await store.get(a) is await store.get(b) is None
        await store.put(Put(c, b"", Expect.ABSENT))
        batches = [
            Step((Check(a, Expect.ABSENT),), (Put(b, b"1", Expect.ABSENT),)),
            Step((), (Put(b, b"2", Expect.ABSENT), Put(a, b"2", Expect.ABSENT))),
            Step((), (Put(a, b"3", 7),)),
            Step((), (Put(a, b"4", Expect.ABSENT), Put(c, b"4", Expect.ANY))),
        ]
        answers = await asyncio.gather(*map(store.apply, batches), return_exceptions=True)
        mismatches = [isinstance(answer, VersionMismatch) for answer in answers]
        assert mismatches.count(False) == 2
        assert not mismatches[0]
        assert mismatches[2]
        page = await store.scan(KeyRange("/", "0"), 10)
        assert [(record.key.path, record.value) for record in page.records] == [
            ("/a", b"4"),
            ("/b", b"1"),
            ("/c", b"4"),
        ]
        assert all(record.version > 0 for record in page.records)


async def test_refused_batch_leaves_nothing(stores: Stores) -> None:
    """A batch whose last step is refused has created and changed no record."""
    async with stores.metadata() as store:
        version = await store.put(Put(KEY, b"1", Expect.ABSENT, entry(b"1")))
        made, last = Key("/made", "t"), Key("/last", "t")
        puts = (
            Put(made, b"", Expect.ANY, entry(b"2")),
            Put(KEY, b"2", version),
            PutSequential(Key("/op", "t"), b""),
        )
        with pytest.raises(VersionMismatch):
            await store.apply(Step((Check(Key("/no", "t"), Expect.ABSENT),), puts, (Delete(last, 7),)))
        assert [record.key for record in (await store.scan(KeyRange("/", "0"), 9)).records] == [KEY]
        assert [record.version for record in (await store.scan_index(ALL, 9)).records] == [version]


async def test_statement_that_is_shared(stores: Stores) -> None:
    """Puts that wait together share a statement; a refused or invalid one does not affect the others."""
    async with stores.metadata() as store, connected(stores) as raw:
        async with held_up(store, raw):
            puts = [asyncio.create_task(store.put(Put(Key(f"/{n}"), b"", Expect.ABSENT))) for n in range(20)]
            puts.append(asyncio.create_task(store.put(Put(Key("/0"), b"", Expect.ABSENT))))
            puts.append(asyncio.create_task(store.put(Put(Key(long_text()), b"", Expect.ANY))))
            gone = asyncio.create_task(store.put(Put(Key("/gone"), b"", Expect.ANY)))
            await asyncio.sleep(0)
            gone.cancel()
        *written, refused, impossible = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(version) for version in written] == [int] * 20
        assert isinstance(refused, VersionMismatch)
        assert isinstance(impossible, InvalidInput)
        assert await store.get(Key("/gone")) is None


async def test_lost_connection_is_unknown_to_all(stores: Stores) -> None:
    """When the connection of a shared statement is lost, each of its calls raises OutcomeUnknown."""
    async with stores.metadata() as store, connected(stores) as raw, connected(stores) as other:
        await store.put(Put(KEY, b"1", Expect.ABSENT))
        async with other.transaction():
            await other.execute("SELECT FROM records WHERE path = '/header' FOR UPDATE")
            async with held_up(store, raw):
                puts = [asyncio.create_task(store.put(Put(Key(f"/{n}"), b"", Expect.ABSENT))) for n in range(3)]
                puts.append(asyncio.create_task(store.put(Put(KEY, b"2", Expect.ANY))))
                await asyncio.sleep(0)
            await raw.execute("SELECT pg_terminate_backend($1)", await waiting_for_lock(raw))
            outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {OutcomeUnknown}
        assert len((await store.scan(KeyRange("/", "0"), 9)).records) == 3


async def test_text_that_is_not_stored(stores: Stores) -> None:
    """
    A NUL in a key is refused with a clear error, and such a key is never found; ranges that begin with NUL continue a
    page.
    """
    async with stores.metadata() as store:
        with pytest.raises(InvalidInput, match="NUL"):
            await store.put(Put(Key("/a\0"), b"", Expect.ANY))
        assert await store.get(Key("/a\0")) is None
        for path in ("/a", "/a\1", "/aa", "/b"):
            await store.put(Put(Key(path), b"", Expect.ABSENT))
        page = await store.scan(KeyRange("/", "0"), 1)
        assert page.resume == KeyRange("/a\0", "0")
        rest = await store.scan(KeyRange("/a\0", "/b\0"), 9)
        assert [record.key.path for record in rest.records] == ["/a\1", "/aa", "/b"]


async def test_order_of_code_points(stores: Stores) -> None:
    """Paths are ordered by code points, whatever the locale of the database."""
    paths = sorted(["/Z", "/a", "/_", "/é", "/z", "/ä", "/\ue000", "/\U0001f600", "/A b", "/A-b"])
    async with stores.metadata() as store:
        for path in paths:
            await store.put(Put(Key(path), b"", Expect.ABSENT))
        assert [record.key.path for record in (await store.scan(KeyRange("/", "0"), 99)).records] == paths


def long_text() -> str:
    """Return a path that does not fit into an index of PostgreSQL, not even compressed."""
    return "/" + "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(4_000))


@asynccontextmanager
async def held_up(store: IMetadataStore, raw: Raw) -> AsyncIterator[None]:
    """Hold back the writes of a store, so that those made in the block are sent together after it."""
    keys = [Key(f"/held up/{number}") for number in range(2)]
    for key in keys:
        await store.put(Put(key, b"", Expect.ANY))
    async with raw.transaction():
        await raw.execute("SELECT FROM records WHERE path LIKE '/held up/%' FOR UPDATE")
        held = []
        for key in keys:
            held.append(asyncio.create_task(store.put(Put(key, b"", Expect.ANY))))
            await asyncio.sleep(0)
        await waiting_for_lock(raw)
        yield
    await asyncio.gather(*held)


async def test_reads_that_are_shared(stores: Stores) -> None:
    """Scans and reads that wait together each get their own records, pages and partitions."""
    async with stores.metadata() as store:
        keys = [Key(f"/{path}", partition) for path in "abc" for partition in ("s", "t")]
        for key in keys:
            await store.put(Put(key, key.path.encode(), Expect.ABSENT))
        ranges = [
            (KeyRange("/", "0"), 9),
            (KeyRange("/", "0", "t"), 2),
            (KeyRange("/b", "/c"), 1),
            (KeyRange("/x", "/y"), 1),
        ]
        alone = [await store.scan(*each) for each in ranges]
        assert [len(page.records) for page in alone] == [6, 2, 2, 0]
        assert await asyncio.gather(*(store.scan(*each) for each in ranges * 8)) == alone * 8
        found = await asyncio.gather(*(store.get(key) for key in [*keys, Key("/no")] * 4))
        assert [record and record.key for record in found] == [*keys, None] * 4


@pytest.mark.parametrize("kind", ["put", "delete"])
async def test_steps_of_a_batch_wait(stores: Stores, kind: str) -> None:
    """A put or deletion of a record that is being changed waits, and is refused because the version has changed."""
    async with stores.metadata() as store, connected(stores) as raw:
        version = await store.put(Put(KEY, b"1", Expect.ABSENT))
        changes: dict[str, Step] = {
            "put": Step((), (Put(KEY, b"2", version), Put(Key("/b", "t"), b"", Expect.ANY))),
            "delete": Step((), (Put(Key("/b", "t"), b"", Expect.ANY),), (Delete(KEY, version),)),
        }
        async with raw.transaction():
            await raw.execute("UPDATE records SET version = nextval('txnframework_numbers'), value = 'theirs'")
            batch = asyncio.create_task(store.apply(changes[kind]))
            await waiting_for_lock(raw)
        with pytest.raises(VersionMismatch):
            await batch
        (record,) = (await store.scan(KeyRange("/", "0"), 9)).records
        assert record.value == b"theirs"


async def test_contended_groups(stores: Stores) -> None:
    """Each call of a statement is applied or refused by itself, however often another client was faster."""
    keys, times = [Key(f"/{number}") for number in range(30)], 5

    async def count(store: IMetadataStore, key: Key) -> None:
        done = 0
        while done < times:
            record = await store.get(key)
            assert record is not None
            # A step with a check, which no statement of a single put makes.
            put = Put(key, b"%d" % (int(record.value) + 1), record.version)
            with suppress(VersionMismatch):
                await store.apply(Step((Check(KEY, Expect.ANY),) if done % 2 else (), (put,)))
                done += 1

    async with stores.metadata() as one, stores.metadata() as other:
        await asyncio.gather(*(one.put(Put(key, b"0", Expect.ABSENT)) for key in (KEY, *keys)))
        await asyncio.gather(*(count(store, key) for store in (one, other) for key in keys))
        for key in keys:
            record = await one.get(key)
            assert record is not None
            assert int(record.value) == 2 * times
