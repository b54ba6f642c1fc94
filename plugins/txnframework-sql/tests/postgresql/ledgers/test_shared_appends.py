"""Appends to several managed ledgers share a statement, with the effect of separate appends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest

from txnframework.errors import InvalidInput, LedgerClosed, LedgerNotFound, LedgerSealed, OutcomeUnknown
from txnframework.interfaces import IManagedLedger
from txnframework.model import (
    EARLIEST,
    Append,
    Appended,
    Branch,
    EntryRange,
    Limit,
    Position,
    ProducerSequence,
    TxnID,
)

if TYPE_CHECKING:
    from conftest import Ledgers

SEQUENCES = 60
UNKNOWN_ID = 1 << 30


class Call(NamedTuple):
    """One append: the number of its managed ledger, its entries, and the place of the named ledger among all."""

    number: int
    entries: tuple[Append, ...]
    ledger: int | None


class Side:
    """Managed ledgers of which the calls of one turn are made either together or one after the other."""

    def __init__(self, ledgers: Sequence[IManagedLedger], is_shared: bool) -> None:
        self.ledgers = ledgers
        self._is_shared = is_shared

    async def answers(self, calls: Sequence[Call]) -> list[object]:
        """Return the results of calls; a ledger's place stands for its id, because ids are given in any order."""
        ids = await self._ids()
        waiting = [self._append(call, ids[call.number]) for call in calls]
        if self._is_shared:
            found = await asyncio.gather(*waiting, return_exceptions=True)
        else:
            found = [answer for one in waiting for answer in await asyncio.gather(one, return_exceptions=True)]
        ids = await self._ids()
        return [
            type(answer) if isinstance(answer, BaseException) else [_placed(one, ids[call.number]) for one in answer]
            for call, answer in zip(calls, found, strict=True)
        ]

    async def state(self) -> list[object]:
        """Return the entries, the end and the window of each managed ledger."""
        found: list[object] = []
        for ledger, ids in zip(self.ledgers, await self._ids(), strict=True):
            if ids:
                tail = await ledger.tail()
                entries = await ledger.read(EntryRange(EARLIEST, tail.last_confirmed), Limit(1_000))
                found.append([(ids.index(one.position.ledger_id), one.position.entry_id, one.data) for one in entries])
                found.append((ids.index(tail.open_ledger_id), tail.sealed))
                copies = [await ledger.find_sequence(name, number) for name in "pq" for number in range(SEQUENCES)]
                found.append([copy and _placed(copy, ids) for copy in copies])
        return found

    async def _ids(self) -> list[list[int]]:
        """Return the ids of each managed ledger's ledgers, in order; nothing for a deleted one."""
        found: list[list[int]] = []
        for ledger in self.ledgers:
            try:
                await ledger.tail()
                found.append([one.ledger_id for one in await ledger.ledgers(0, 1_000)])
            except LedgerNotFound:
                found.append([])
        return found

    async def _append(self, call: Call, ids: Sequence[int]) -> tuple[Appended, ...]:
        named = None if call.ledger is None else [*ids[call.ledger : call.ledger + 1], UNKNOWN_ID][0]
        entries = tuple(
            one if one.replaces is None or not ids else msgspec.structs.replace(one, replaces=_unplaced(one, ids))
            for one in call.entries
        )
        return await self.ledgers[call.number].append(entries, named)


def _placed(one: Appended, ids: Sequence[int]) -> Appended:
    place = Position(ids.index(one.position.ledger_id), one.position.entry_id)
    return msgspec.structs.replace(one, position=place)


def _unplaced(entry: Append, ids: Sequence[int]) -> Position:
    assert entry.replaces is not None
    return Position(ids[entry.replaces.ledger_id % len(ids)], entry.replaces.entry_id)


def random_entry(rng: random.Random) -> Append:
    """Return an entry that may have an earlier copy, or replace one."""
    first = rng.randrange(SEQUENCES - 3)
    sequence = ProducerSequence(rng.choice("pq"), first, first + rng.choice((0, 0, 1, 2)))
    return Append(
        bytes(rng.randrange(5)),
        sequence.last - first + 1,
        rng.choice((None, Branch(TxnID(rng.randrange(2), rng.randrange(1, 20)), rng.randrange(2)))),
        rng.choice((None, sequence)),
        rng.choice((None, None, Position(rng.randrange(4), rng.randrange(7)))),
    )


def random_call(rng: random.Random, ledgers: int) -> Call:
    """Return a call that names a ledger or none; entries with a branch need one."""
    entries = tuple(random_entry(rng) for _ in range(rng.choice((0, 1, 1, 1, 2, 3))))
    is_named = any(entry.branch is not None for entry in entries)
    return Call(rng.randrange(ledgers), entries, rng.randrange(6) if is_named else None)


@pytest.mark.parametrize("seed", range(3))
async def test_same_effect_as_separate_appends(ledgers: Ledgers, seed: int) -> None:
    """Positions, copies, refusals and entries are those of the same calls one after the other."""
    rng = random.Random(seed)
    async with ledgers.opened(ledger_entries_max=7) as store:
        shared = Side([await store.create(f"shared{number}") for number in range(4)], True)
        separate = Side([await store.create(f"separate{number}") for number in range(4)], False)
        kinds: set[object] = set()
        for turn in range(14):
            calls = [random_call(rng, 4) for _ in range(rng.randrange(2, 12))]
            answers = await shared.answers(calls)
            assert answers == await separate.answers(calls)
            for answer in answers:
                kinds.update({one.duplicate for one in answer} if isinstance(answer, list) else {answer})
            if turn == 10:
                for side in (shared, separate):
                    await side.ledgers[2].seal()
                    await store.delete(side.ledgers[3].name, None)
        assert await shared.state() == await separate.state()
        assert kinds == {False, True, LedgerClosed, LedgerSealed, LedgerNotFound}


async def test_one_statement_for_many_ledgers(ledgers: Ledgers) -> None:
    """The appends of one turn are one commit; many are divided between two."""
    async with ledgers.opened() as store, ledgers.session() as looking:
        made = [await store.create(f"l{number}") for number in range(40)]
        commits = 0
        for count, statements in ((12, 1), (40, 2)):
            await asyncio.gather(*(ledger.append((Append(b"x"),), None) for ledger in made[:count]))
            before, commits = commits, await looking.fetchval("SELECT count(DISTINCT xmin::text) FROM entries")
            assert commits - before == statements


async def test_locked_ledgers_delay_no_others(ledgers: Ledgers) -> None:
    """Others are appended to while ledgers are locked, more of them than there are connections; order is kept."""
    locked = "SELECT FROM managed_ledgers WHERE name LIKE 'locked%' FOR UPDATE"
    async with ledgers.opened() as store:
        free = [await store.create(f"free{number}") for number in range(3)]
        waiting = [await store.create(f"locked{number}") for number in range(12)]
        async with ledgers.held(locked) as hold:
            late = [
                asyncio.create_task(ledger.append((Append(b"%d" % number),), None))
                for number in range(3)
                for ledger in waiting
            ]
            for _ in range(2):
                await asyncio.gather(*(ledger.append((Append(b"x"),), None) for ledger in free))
            await hold.waiting(1)
            assert not any(one.done() for one in late)
            await hold.let_go()
            await asyncio.gather(*late)
        for ledger in waiting:
            entries = await ledger.read(EntryRange(EARLIEST, (await ledger.tail()).last_confirmed), Limit(10))
            assert [one.data for one in entries] == [b"0", b"1", b"2"]


async def test_lost_connection(ledgers: Ledgers) -> None:
    """After a lost connection, the append to each ledger raises OutcomeUnknown; sent again, each is stored once."""
    async with ledgers.opened() as store:
        made = [await store.create(f"l{number}") for number in range(3)]
        entry = Append(b"x", sequence=ProducerSequence("p", 1, 1))
        async with ledgers.held("LOCK TABLE entries IN EXCLUSIVE MODE") as hold:
            sent = asyncio.gather(*(ledger.append((entry,), None) for ledger in made), return_exceptions=True)
            await hold.waiting(1)
            await hold.end_waiting()
            answers = await sent
        assert [type(answer) for answer in answers] == [OutcomeUnknown] * 3
        assert len({id(answer) for answer in answers}) == 3
        for (again,) in await asyncio.gather(*(ledger.append((entry,), None) for ledger in made)):
            assert again == Appended(again.position)


async def test_invalid_value_of_one_ledger(ledgers: Ledgers) -> None:
    """Of appends sent together, only the one with a value that PostgreSQL rejects fails."""
    async with ledgers.opened() as store:
        made = [await store.create(f"l{number}") for number in range(3)]
        names = ("p", "nul\0", "q")
        answers = await asyncio.gather(
            *(
                ledger.append((Append(b"x", sequence=ProducerSequence(name, 1, 1)),), None)
                for ledger, name in zip(made, names, strict=True)
            ),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [tuple, InvalidInput, tuple]
        assert [(await ledger.tail()).last_confirmed.entry_id for ledger in made] == [0, -1, 0]


async def test_copies_beyond_the_window_go(ledgers: Ledgers) -> None:
    """All sequences of each producer's window are found, and only few more are stored."""
    window, count = 160, 800
    async with ledgers.opened(deduplication_window_sequences=window) as store, ledgers.session() as session:
        made = [await store.create(f"l{number}") for number in range(2)]
        for first in range(0, count, 20):
            entries = tuple(
                Append(b"x", sequence=ProducerSequence("p", number, number)) for number in range(first, first + 20)
            )
            await asyncio.gather(*(ledger.append(entries, None) for ledger in made))
        assert await session.fetchval("SELECT count(*) FROM producer_copies") <= 2 * 2 * window
        for ledger in made:
            assert await ledger.find_sequence("p", 0) is None
            assert all([await ledger.find_sequence("p", number) for number in range(count - window, count)])
