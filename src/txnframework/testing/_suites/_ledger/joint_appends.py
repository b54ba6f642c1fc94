"""Rules of steps: what one with entries of many ledgers and records writes."""

from __future__ import annotations

import asyncio
from itertools import chain, cycle, permutations

import pytest

from txnframework.errors import LedgerSealed, OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model import (
    Append,
    Applied,
    Check,
    Delete,
    EntryRange,
    Expect,
    Key,
    LedgerAppend,
    Position,
    Put,
    Step,
)
from txnframework.testing._suites._ledger._case import branch, read_all
from txnframework.testing._suites._ledger._joint_case import (
    ACKS,
    CALLS,
    CURSOR,
    HEADER,
    MANY,
    OLD,
    TAKEN,
    JointRules,
    LedgersAndRecords,
    joint,
    positions_of,
)
from txnframework.testing.capabilities import requires
from txnframework.testing.harness import Colocated, Disconnecting

WORKERS = 5
STEPS = 20

NEVER = Key("/txn-op/joint/2", "joint")
"""A record that does not exist, and that a step requires not to."""


class JointAppendRules(JointRules):
    """A store that appends to many ledgers and writes records in one step."""

    @requires(Colocated)
    async def test_entries_of_many_ledgers_and_records(self) -> None:
        """The positions and the records are returned in the order of the request, as they are stored."""
        async with self._ledgers_and_records() as opened:
            first, second, third = opened.ledgers
            await first.append((Append(b"before"),), None)
            await second.append((Append(b"rolled"),), None)
            rolled = await second.roll()
            await opened.records.put(Put(OLD, b"old", Expect.ABSENT))
            request = joint(
                (
                    LedgerAppend(third.reference, (Append(b"c0"),)),
                    LedgerAppend(first.reference, (Append(b"a1"), Append(b"a2"))),
                    LedgerAppend(second.reference, (Append(b"b0"),)),
                ),
                Step(
                    checks=(Check(CURSOR, opened.cursor),),
                    puts=(Put(HEADER, b"committed", Expect.ABSENT, (TAKEN,)),),
                    deletes=(Delete(OLD, Expect.ANY), Delete(NEVER, Expect.ABSENT)),
                ),
            )
            done = await opened.make(request)
            assert [[one.entry_id for one in some] for some in positions_of(done)] == [[0], [1, 2], [0]]
            assert positions_of(done)[2][0].ledger_id == rolled.open_ledger_id
            assert [(await ledger.tail()).last_confirmed for ledger in (third, first, second)] == [
                some[-1] for some in positions_of(done)
            ]
            assert await read_all(first) == [b"before", b"a1", b"a2"]
            assert await read_all(second) == [b"rolled", b"b0"]
            assert await read_all(third) == [b"c0"]
            assert done.records == (await opened.records.get(HEADER),)
            assert (await opened.records.scan_index(ACKS, 10)).records == done.records
            assert await opened.records.get(OLD) is None
            assert await opened.records.get(NEVER) is None

    @requires(Colocated)
    async def test_entries_alone_and_records_alone(self) -> None:
        """Each part of a request may be empty."""
        async with self._ledgers_and_records() as opened:
            done = await opened.make(joint(opened.appends(Append(b"a"))))
            assert done.records == ()
            done = await opened.make(joint((), opened.puts()))
            assert positions_of(done) == ()
            assert [one.key for one in done.records] == [HEADER, CURSOR]
            assert [await read_all(ledger) for ledger in opened.ledgers] == [[b"a"]] * 3

    @requires(Colocated)
    async def test_it_is_as_an_append(self) -> None:
        """
        Times and counts are as after ``append``, and so are the highest transaction numbers.
        """
        async with self._ledgers_and_records() as opened:
            ledger = opened.ledgers[0]
            entry = Append(b"three", 3, branch(0, txn=41))
            await self.data.pass_time(1000)
            ((position,), *_) = positions_of(await opened.make(joint(opened.appends(entry))))
            counted = await ledger.count(EntryRange(Position(position.ledger_id, -1), position), 100)
            assert (counted.upto, counted.messages, counted.appended_ms) == (position, 3, self.data.now_ms())
            assert await ledger.find_time(self.data.now_ms()) < position
            assert await ledger.find_time(self.data.now_ms() + 1) == position
            (summary,) = await ledger.ledgers(-1, 10)
            assert (summary.entries, summary.messages, summary.bytes) == (1, 3, len(entry.data))
            assert (await opened.store.highest_txn_numbers()).get(1) == 41

    @requires(Colocated)
    async def test_every_watch_wakes(self) -> None:
        """A watch on each tail, on each record and on an index wakes."""
        async with self._ledgers_and_records() as opened:
            watches = [await ledger.watch() for ledger in opened.ledgers]
            watches += [await opened.records.watch(key) for key in (HEADER, CURSOR)]
            watches.append(await opened.records.watch(ACKS))
            puts = (Put(HEADER, b"h", Expect.ABSENT, (TAKEN,)), Put(CURSOR, b"c", opened.cursor))
            batch = Step(puts=puts)
            await opened.make(joint(opened.appends(Append(b"a")), batch))
            for watch in watches:
                await self.soon(watch.changed())
                await watch.close()

    @requires(Colocated)
    async def test_concurrent_steps(self) -> None:
        """
        No process sees a part of any of many concurrent steps.

        A reader that finds a number of steps in one ledger, or in the records, finds as many in every other place. If
        this fails, check that the entries and the records are one transaction, and become visible together.
        """
        async with self._ledgers_and_records() as opened:
            steps = asyncio.gather(*(_steps(opened, worker) for worker in range(WORKERS)))
            parts = await self._parts_seen(opened)
            done = list(chain.from_iterable(await steps))
            assert parts == []
            for at in range(len(opened.ledgers)):
                assert sorted(positions_of(one)[at][0].entry_id for one in done) == list(range(WORKERS * STEPS))

    @requires(Colocated)
    async def test_a_cancelled_step(self) -> None:
        """A cancelled step is applied as a whole or not at all; the header shows which."""
        async with self._ledgers_and_records() as opened:
            for number in range(CALLS):
                header = Key(f"/txn/cancelled/{number}")
                batch = Step(puts=(Put(header, b"h", Expect.ABSENT),))
                entry = Append(b"%d" % number)
                step = asyncio.create_task(opened.make(joint(opened.appends(entry), batch)))
                for _ in range(number):
                    await asyncio.sleep(0)
                step.cancel()
                await asyncio.gather(step, return_exceptions=True)
                applied = not await _is_fenced(opened.records, header)
                for ledger in opened.ledgers:
                    assert (entry.data in await read_all(ledger)) == applied

    @requires(Colocated, Disconnecting)
    async def test_a_lost_reply(self) -> None:
        """After a lost reply everything is stored, or nothing; the same step again is refused if it is."""
        assert isinstance(self.data, Disconnecting)
        async with self._ledgers_and_records() as opened:
            step = joint(opened.appends(Append(b"a")), opened.puts())
            await self.data.cut(opened.store)
            with pytest.raises(OutcomeUnknown):
                await opened.make(step)
            await self.data.restore(opened.store)
            stored = [await read_all(ledger) for ledger in opened.ledgers]
            assert stored in ([[]] * 3, [[b"a"]] * 3)
            if not stored[0]:
                await opened.make(step)
            with pytest.raises(VersionMismatch):
                await opened.make(step)
            assert [await read_all(ledger) for ledger in opened.ledgers] == [[b"a"]] * 3

    @requires(Colocated)
    async def test_many_ledgers(self) -> None:
        """A step over hundreds of ledgers is one step; a single one that is sealed refuses all."""
        async with self._ledgers_and_records(MANY) as opened:
            done = await opened.make(joint(opened.appends(Append(b"a"), Append(b"b")), opened.puts()))
            assert [[one.entry_id for one in some] for some in positions_of(done)] == [[0, 1]] * MANY
            await opened.ledgers[MANY // 2].seal()
            with pytest.raises(LedgerSealed):
                await opened.make(joint(opened.appends(Append(b"c"))))
            for ledger in (opened.ledgers[0], opened.ledgers[MANY // 2], opened.ledgers[-1]):
                assert await read_all(ledger) == [b"a", b"b"]

    async def _parts_seen(self, opened: LedgersAndRecords) -> list[str]:
        """Count the steps in two places, one after the other, until all are there; return what the second lacked."""
        missing: list[str] = []
        places: list[IManagedLedger | None] = [*opened.ledgers, None]
        for first, second in cycle(permutations(places, 2)):
            steps = await _steps_seen(opened, first)
            later = await _steps_seen(opened, second)
            if later < steps:
                missing.append(f"{steps - later} steps in {'the records' if second is None else second.name}")
            if steps == WORKERS * STEPS:
                break
        return missing


async def _is_fenced(records: IMetadataStore, header: Key) -> bool:
    """Put the header of a step in the place of the step; return False if the step has put it."""
    while True:
        try:
            # From here on, a step that is still on its way can no longer be applied.
            await records.put(Put(header, b"aborted", Expect.ABSENT))
        except Unavailable:
            continue  # a store may have to wait until the cancelled step has ended
        except VersionMismatch:
            return False
        return True


async def _steps(opened: LedgersAndRecords, worker: int) -> list[Applied]:
    """Apply one step after the other; each worker begins at another turn of the loop."""
    for _ in range(worker):
        await asyncio.sleep(0)
    done = []
    for number in range(STEPS):
        entry = Append(b"%d-%d" % (worker, number))
        put = Put(Key(f"/txn/{worker}-{number}"), entry.data, Expect.ABSENT, (TAKEN,))
        done.append(await opened.make(joint(opened.appends(entry), Step(puts=(put,)))))
    return done


async def _steps_seen(opened: LedgersAndRecords, ledger: IManagedLedger | None) -> int:
    """Return the number of steps that a ledger has entries of, or, with None, of those that have a record."""
    if ledger is not None:
        return (await ledger.tail()).last_confirmed.entry_id + 1
    return len((await opened.records.scan_index(ACKS, 1000)).records)
