"""Write operations and their entries are one statement in PostgreSQL, for many ledgers together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from first_appends import (
    EVERYTHING,
    Announced,
    Both,
    announce,
    entries_of,
    header_key,
    kinds,
    opened,
    outcomes,
    prefix_of,
    request,
)

from txnframework.errors import InvalidInput, LedgerSealed, VersionMismatch
from txnframework.interfaces import IManagedLedger
from txnframework.model import (
    Append,
    Appended,
    Branch,
    IndexEntry,
    Key,
    KeyRange,
    Position,
    ProducerSequence,
    Put,
    TxnID,
)
from txnframework.model.records import WriteOperation, decode_operation, encode
from txnframework_sql.postgresql._intent_columns import split_document

if TYPE_CHECKING:
    from conftest import Ledgers


class Call(NamedTuple):
    """One call: the number of its ledger, the transaction of its operation or None, and its entries."""

    number: int
    txn: int | None
    entries: tuple[Append, ...]


def random_step(rng: random.Random) -> Call:
    """Return a call whose entries may have earlier copies."""
    txn = rng.choice((None, 1, 1, 2, 3))
    branch = None if txn is None else Branch(TxnID(1, txn), 0)
    entries: list[Append] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        first = rng.randrange(40)
        sequence = rng.choice((None, None, ProducerSequence(rng.choice("pq"), first, first)))
        entries.append(Append(bytes(rng.randrange(5)), 1, branch, sequence))
    return Call(rng.randrange(3), txn, tuple(entries) if rng.randrange(12) else ())


async def performed(both: Both, made: Sequence[IManagedLedger], versions: dict[int, int], step: Call) -> object:
    """Perform a call; return its result, with the places of ledgers for their ids, or the type of its error."""
    ledger = made[step.number]
    try:
        if step.txn is None:
            return await _placed(ledger, await ledger.append(step.entries, None))
        done = await announce(ledger, request(step.txn, versions[step.txn], ledger, *step.entries))
    except (VersionMismatch, LedgerSealed) as error:
        return type(error)
    assert await both.records.get(done.record.key) == done.record
    ids = [one.ledger_id for one in await ledger.ledgers(0, 1_000)]
    after = Position.parse(done.operation.after)
    place = ids.index(done.operation.ledger), ids.index(after.ledger_id), after.entry_id
    return await _placed(ledger, done.appended), place, done.operation.branch, done.operation.segment


async def _placed(ledger: IManagedLedger, appended: Sequence[Appended]) -> list[object]:
    ids = [one.ledger_id for one in await ledger.ledgers(0, 1_000)]
    return [(ids.index(one.position.ledger_id), one.position.entry_id, one.duplicate, one.branch) for one in appended]


@pytest.mark.parametrize("seed", range(3))
async def test_same_effect_as_separate_calls_in_sqlite(ledgers: Ledgers, seed: int, tmp_path: Path) -> None:
    """Calls of one turn have the results of the same calls one after the other, performed by steps in SQLite."""
    rng = random.Random(seed)
    sqlite = type(ledgers)(f"sqlite:///{tmp_path / 'txn.db'}")
    seen: set[object] = set()
    async with (
        opened(ledgers, ledger_entries_max=7) as shared,
        opened(sqlite, ledger_entries_max=7, is_shared=True) as separate,
    ):
        sides = [(both, await both.create("a", "b", "c"), dict[int, int]()) for both in (shared, separate)]
        for both, _, versions in sides:
            versions.update(zip((1, 2, 3), await both.begin(1, 2, 3), strict=True))
        for turn in range(16):
            steps = [random_step(rng) for _ in range(rng.randrange(2, 12))]
            results = await asyncio.gather(*(performed(*sides[0], step) for step in steps))
            assert results == [await performed(*sides[1], step) for step in steps]
            seen |= {one if isinstance(one, type) else type(one) for one in results}
            for both, made, versions in sides:
                if turn == 6:
                    await both.records.put(Put(header_key(2), b"ended", versions[2]))
                if turn == 12:
                    await made[1].seal()
        assert seen == {list, tuple, VersionMismatch, LedgerSealed}
        for number in range(3):
            assert await entries_of(sides[0][1][number]) == await entries_of(sides[1][1][number])
        assert len(await shared.operations()) == len(await separate.operations())


async def test_one_commit_for_many_ledgers(ledgers: Ledgers) -> None:
    """The operations and entries of one turn are one commit."""
    async with opened(ledgers) as both, ledgers.session() as looking:
        made = await both.create(*(f"l{number}" for number in range(12)))
        versions = await both.begin(*range(3))
        numbers = "SELECT count(DISTINCT xmin::text) FROM {} WHERE {}"
        calls = (
            announce(ledger, request(number % 3, versions[number % 3], ledger)) for number, ledger in enumerate(made)
        )
        done = await asyncio.gather(*calls)
        assert await looking.fetchval(numbers.format("records", "path LIKE '/txn-op/%'")) == 1
        assert await looking.fetchval(numbers.format("entries", "true")) == 1
        assert {one.record for one in done} == set(await both.operations())


async def test_calls_for_one_ledger(ledgers: Ledgers) -> None:
    """Calls for one ledger are appended in order, each with the position before it; a plain append fits between."""
    async with opened(ledgers) as both:
        (ledger,) = await both.create("a")
        one, two = await both.begin(1, 2)
        first, second, plain, third = await asyncio.gather(
            announce(ledger, request(1, one, ledger, Append(b"1"), Append(b"2"))),
            announce(ledger, request(2, two, ledger, Append(b"3"))),
            ledger.append((Append(b"4"),), None),
            announce(ledger, request(1, one, ledger, Append(b"5"))),
        )
        assert await entries_of(ledger) == [b"1", b"2", b"3", b"4", b"5"]
        id_ = plain[0].position.ledger_id
        afters = [Position.parse(done.operation.after) for done in (first, second, third)]
        assert afters[1:] == [Position(id_, 1), Position(id_, 3)]
        assert afters[0] < Position(id_, 0)
        for done in (first, second, third):
            assert decode_operation(done.record) == done.operation
            assert await both.records.get(done.record.key) == done.record
            assert encode(done.operation) == done.record.value


async def test_only_calls_of_changed_headers_are_refused(ledgers: Ledgers) -> None:
    """If one header is not as expected, its call is refused; others, also for the same ledger, are performed."""
    async with opened(ledgers) as both:
        shared, free = await both.create("shared", "free")
        one, two = await both.begin(1, 2)
        ended = await both.records.put(Put(header_key(2), b"ended", two))
        answers = await outcomes(
            announce(shared, request(1, one, shared, Append(b"1"))),
            announce(shared, request(2, two, shared, Append(b"2"))),
            announce(free, request(1, one, free, Append(b"3"))),
            announce(shared, request(1, one, shared, Append(b"4"))),
            announce(free, request(3, 1, free, Append(b"5"))),
        )
        done, refused = Announced, VersionMismatch
        assert kinds(answers) == [done, refused, done, done, refused]
        assert [(answers[at].key, answers[at].actual) for at in (1, 4)] == [
            (header_key(2), ended),
            (header_key(3), None),
        ]
        assert await entries_of(shared) == [b"1", b"4"]
        assert await entries_of(free) == [b"3"]
        assert len(await both.operations()) == 3


async def test_a_full_ledger(ledgers: Ledgers) -> None:
    """Operations name the ledger of their entries, also when a call fills it and the next opens."""
    async with opened(ledgers, ledger_entries_max=3) as both:
        (ledger,) = await both.create("a")
        (version,) = await both.begin(1)
        calls = (announce(ledger, request(1, version, ledger, Append(b"%d" % at))) for at in range(8))
        done = await asyncio.gather(*calls)
        assert await entries_of(ledger) == [b"%d" % at for at in range(8)]
        assert [one.appended[0].position.entry_id for one in done] == [0, 1, 2, 0, 1, 2, 0, 1]
        assert [one.operation.ledger for one in done] == [one.appended[0].position.ledger_id for one in done]
        before = [one.appended[0].position for one in done[:-1]]
        assert [Position.parse(one.operation.after) for one in done[1:]] == before


async def test_a_number_in_use(ledgers: Ledgers) -> None:
    """A record that was written with its whole key keeps its key, and the operation gets a later number."""
    async with opened(ledgers) as both:
        (ledger,) = await both.create("a")
        (version,) = await both.begin(1)
        last = int(await _number(ledgers))
        taken = [Key(f"{prefix_of(1).path}/{last + more:020d}", prefix_of(1).partition) for more in (1, 2, 3)]
        async with ledgers.session() as session:
            for key in taken:
                await session.execute(
                    "INSERT INTO records (path, partition, version, value) VALUES ($1, $2, 1, 'mine')",
                    key.path,
                    key.partition,
                )
        done = await announce(ledger, request(1, version, ledger))
        assert done.record.key not in taken
        for key in taken:
            found = await both.records.get(key)
            assert found is not None
            assert found.value == b"mine"
        assert await both.operations() == [done.record]


async def _number(ledgers: Ledgers) -> int:
    async with ledgers.session() as session:
        return int(await session.fetchval("SELECT last_value FROM txnframework_numbers"))


async def test_invalid_value_of_one_call(ledgers: Ledgers) -> None:
    """Of calls sent together, only the one with a value that PostgreSQL rejects fails."""
    async with opened(ledgers) as both:
        made = await both.create("a", "b", "c")
        (version,) = await both.begin(1)
        indexes: list[tuple[IndexEntry, ...]] = [(), (IndexEntry("nul\0", b"k"),), ()]
        answers = await outcomes(
            *(
                announce(ledger, request(1, version, ledger, indexes=more))
                for ledger, more in zip(made, indexes, strict=True)
            )
        )
        assert kinds(answers) == [Announced, InvalidInput, Announced]
        assert [len(await entries_of(ledger)) for ledger in made] == [1, 0, 1]
        assert len(await both.operations()) == 2


async def test_watches_of_other_clients(ledgers: Ledgers) -> None:
    """Another client is notified of each record, and of everything if the names are too long for that."""
    async with opened(ledgers) as both, opened(ledgers) as other:
        (ledger,) = await both.create("a")
        (version,) = await both.begin(1)
        for more in ([], [IndexEntry("long", b"k" * 1_000)] * 1, [IndexEntry("l" * 7_990, b"k")]):
            by_key = KeyRange(f"{prefix_of(1).path}/", f"{prefix_of(1).path}0")
            watches = [await other.records.watch(target) for target in (EVERYTHING, by_key)]
            await announce(ledger, request(1, version, ledger, indexes=more))
            await asyncio.gather(*(watch.changed() for watch in watches))


def test_parts_of_a_document() -> None:
    """The parts around ledger and position give the document, whatever the segment's name is."""
    for segment in ("a", '"ledger":0', '"after":""', '\\"ledger\\":0', '","ledger":0,"after":"', "\0é"):
        operation = WriteOperation(branch=3, segment=segment, ledger=5, after="4:17")
        head, middle, tail = split_document(operation)
        assert head + "5" + middle + "4:17" + tail == encode(operation).decode()
