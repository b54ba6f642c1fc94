"""Writes to records of one turn of the event loop share their steps in SQLite, with the effect of separate writes."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass

import pytest

from txnframework.errors import CorruptRecord, VersionMismatch
from txnframework.model import (
    Applied,
    Check,
    Delete,
    Expect,
    Expected,
    IndexEntry,
    IndexRange,
    Key,
    Put,
    PutSequential,
    Step,
)
from txnframework.testing import VirtualEnvironment
from txnframework_sql import MetadataOptions, SqlMetadataStore, open_metadata_store
from txnframework_sql.schema import index_entries, records
from txnframework_sql.sqlite._database import SqliteDatabase
from txnframework_sql.steps.statements import Row, Steps, rows, write

KEYS = tuple(Key(f"/{name}", partition) for partition in ("", "p") for name in "abcd")
PREFIX = Key("/numbered", "p")
INDEXES = tuple(IndexEntry(name, key) for name in ("i", "j") for key in (b"\0", b"k"))
SURROGATE = "\ud800"


async def opened(url: str) -> SqlMetadataStore:
    """Open a store."""
    return await open_metadata_store(url, VirtualEnvironment(), MetadataOptions())


@dataclass(frozen=True)
class Expecting:
    """What a step expects of a record: a constant, or the version that it has before the turn."""

    key: Key
    kind: str

    def given(self, versions: dict[Key, int | None]) -> Expected:
        """Return it for a store with these versions."""
        version = versions[self.key]
        if self.kind == "current" and version is not None:
            return version
        if self.kind == "wrong":
            return 1 << 40
        return Expect.ANY if self.kind == "any" else Expect.ABSENT


@dataclass(frozen=True)
class Planned:
    """A batch, for stores with different versions."""

    checks: tuple[Expecting, ...]
    puts: tuple[tuple[Expecting | None, bytes, tuple[IndexEntry, ...]], ...]
    deletes: tuple[Expecting, ...]

    def given(self, versions: dict[Key, int | None]) -> Step:
        """Return it for a store with these versions."""
        return Step(
            tuple(Check(one.key, one.given(versions)) for one in self.checks),
            tuple(
                PutSequential(PREFIX, value, indexes)
                if one is None
                else Put(one.key, value, one.given(versions), indexes)
                for one, value, indexes in self.puts
            ),
            tuple(Delete(one.key, one.given(versions)) for one in self.deletes),
        )


def planned(rng: random.Random) -> Planned:
    """Return a batch with one step for each of some keys."""
    steps = [Expecting(key, rng.choice(("any", "current", "current", "current", "absent", "wrong"))) for key in KEYS]
    rng.shuffle(steps)
    checks, puts, deletes = (tuple(steps.pop() for _ in range(rng.choice((0, 0, 1, 2)))) for _ in range(3))
    named: list[Expecting | None] = [*puts, *[None] * rng.choice((0, 0, 1, 2))]
    rng.shuffle(named)
    return Planned(
        checks,
        tuple((one, bytes([rng.randrange(9)]), tuple(rng.sample(INDEXES, rng.randrange(4)))) for one in named),
        deletes,
    )


def plain(text: str) -> str:
    """Return a path without its number, which depends on the order in which numbers are given."""
    return re.sub(r"/\d{20}$", "/N", text)


async def stored(store: SqlMetadataStore) -> list[list[tuple[object, ...]]]:
    """Return all records without their versions, and all index entries."""

    def read() -> Steps[tuple[list[Row], list[Row]]]:
        found = yield from rows(records.select())
        return found, (yield from rows(index_entries.select()))

    found, entries = await store.database.read(read)
    return [
        sorted(((plain(path), partition, indexes, value) for path, partition, _, indexes, value in found), key=repr),
        sorted(((name, key, plain(path), partition) for name, key, path, partition in entries), key=repr),
    ]


async def versions_of(store: SqlMetadataStore) -> dict[Key, int | None]:
    """Return the version of each record."""
    found = {key: await store.get(key) for key in KEYS}
    return {key: None if record is None else record.version for key, record in found.items()}


@pytest.mark.parametrize("seed", range(8))
async def test_same_effect_as_separate_writes(url: str, seed: int) -> None:
    """Refusals, written records, rows and index entries are those of the same batches one after the other."""
    rng = random.Random(seed)
    together, apart = await opened(url), await opened(url.replace("txn.db", "apart.db"))
    kinds: set[type] = set()
    for _ in range(25):
        turn = [planned(rng) for _ in range(rng.randrange(1, 9))]
        shared, single = await versions_of(together), await versions_of(apart)
        answers = await asyncio.gather(*(together.apply(one.given(shared)) for one in turn), return_exceptions=True)
        expected: list[object] = []
        for one in turn:
            expected += await asyncio.gather(apart.apply(one.given(single)), return_exceptions=True)
        for plan, answer, other in zip(turn, answers, expected, strict=True):
            assert type(answer) is type(other)
            kinds.add(type(answer))
            if isinstance(answer, VersionMismatch):
                assert isinstance(other, VersionMismatch)
                assert answer.key == other.key
            else:
                assert isinstance(answer, Applied)
                assert isinstance(other, Applied)
                assert [(plain(one.key.path), one.value) for one in answer.records] == [
                    (plain(one.key.path), one.value) for one in other.records
                ]
                assert [one.value for one in answer.records] == [value for _, value, _ in plan.puts]
                found = [await together.get(one.key) for one in answer.records if one.key.path.startswith("/numbered")]
                assert found == [one for one in answer.records if one.key.path.startswith("/numbered")]
        assert await stored(together) == await stored(apart)
    assert kinds == {Applied, VersionMismatch}
    await together.close()
    await apart.close()


async def test_one_job_and_few_statements(url: str) -> None:
    """A turn of the loop costs one job and one commit, whatever the number of writes."""
    store = await opened(url)
    assert isinstance(store.database, SqliteDatabase)
    jobs, commits = store.database.jobs_received, store.database.commits
    versions = await asyncio.gather(*(store.put(Put(Key(f"/{number}"), b"", Expect.ABSENT)) for number in range(200)))
    await asyncio.gather(
        *(store.put(Put(Key(f"/{number}"), b"", version)) for number, version in enumerate(versions[:100])),
        *(store.delete(Key(f"/{number}"), versions[number]) for number in range(100, 200)),
        *(store.apply(Step(puts=(PutSequential(PREFIX, b""),))) for _ in range(100)),
    )
    assert store.database.jobs_received - jobs == 2
    assert store.database.commits - commits == 2
    await store.close()


async def test_invalid_value_of_one_write(url: str) -> None:
    """A record that the database cannot store fails alone."""
    store = await opened(url)
    answers = await asyncio.gather(
        *(store.put(Put(Key("/a"), b"", Expect.ABSENT, (IndexEntry(name, b""),))) for name in ("i", SURROGATE)),
        store.put(Put(Key("/b"), b"", Expect.ABSENT)),
        return_exceptions=True,
    )
    assert [isinstance(answer, int) for answer in answers] == [True, False, True]
    await store.close()


async def test_damaged_record_of_one_write(url: str) -> None:
    """A record with damaged index entries refuses its own write, and no other."""
    store = await opened(url)
    for path in ("/a", "/b"):
        await store.put(Put(Key(path), b"", Expect.ABSENT, (IndexEntry("i", b"k"),)))
    await store.database.write(lambda: write(records.update().where(records.c.path == "/a").values(indexes="damaged")))
    answers = await asyncio.gather(
        *(store.put(Put(Key(path), b"new", Expect.ANY)) for path in ("/a", "/b")), return_exceptions=True
    )
    assert isinstance(answers[0], CorruptRecord)
    assert isinstance(answers[1], int)
    page = await store.scan_index(IndexRange("i", b"", b"z"), 10)
    assert [record.key.path for record in page.records] == ["/a"]
    await store.close()
