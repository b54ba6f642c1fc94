"""First appends beside locks, ends of transactions and lost replies."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from first_appends import (
    Announced,
    Both,
    announce,
    entries_of,
    header_key,
    kinds,
    opened,
    outcomes,
    request,
)
from msgspec.structs import replace

from txnframework.errors import LedgerSealed, OutcomeUnknown, VersionMismatch
from txnframework.model import (
    Append,
    Check,
    Expect,
    Key,
    ProducerSequence,
    Put,
    Step,
)
from txnframework_sql.testing.postgresql import PostgresLedgerHarness

if TYPE_CHECKING:
    from conftest import Ledgers


async def test_a_locked_header_delays_no_others(ledgers: Ledgers) -> None:
    """A call waits for its own header only: others continue meanwhile, also for the same ledger."""
    async with opened(ledgers) as both:
        made = await both.create("a", "b")
        one, two = await both.begin(1, 2)
        async with ledgers.held("SELECT FROM records WHERE path = '/txn/0001' FOR UPDATE") as hold:
            late = [asyncio.create_task(announce(ledger, request(1, one, ledger))) for ledger in made]
            await hold.waiting(2)
            for _ in range(2):
                await asyncio.gather(*(announce(ledger, request(2, two, ledger)) for ledger in made))
                await asyncio.gather(*(ledger.append((Append(b"y"),), None) for ledger in made))
            assert not any(task.done() for task in late)
            await hold.let_go()
            await asyncio.gather(*late)
        assert [len(await entries_of(ledger)) for ledger in made] == [5, 5]


async def test_other_expectations(ledgers: Ledgers) -> None:
    """A header that is expected to be absent, or in any version, is waited for like one with an expected version."""
    async with opened(ledgers) as both:
        made = await both.create("a", "b")
        (version,) = await both.begin(1)
        for expected, answer in ((Expect.ABSENT, VersionMismatch), (Expect.ANY, Announced)):
            changed = [
                replace(request(1, version, ledger), checks=(Check(header_key(1), expected),)) for ledger in made
            ]
            async with ledgers.held("SELECT FROM records WHERE path = '/txn/0001' FOR UPDATE") as hold:
                calls = [asyncio.create_task(announce(ledger, one)) for ledger, one in zip(made, changed, strict=True)]
                await hold.waiting(2)
                await hold.let_go()
                assert kinds(await outcomes(*calls)) == [answer] * 2


async def test_a_checked_header_is_kept(ledgers: Ledgers) -> None:
    """While a call is executed, its header cannot change: the end of a transaction waits for the commit."""
    async with opened(ledgers) as both, opened(ledgers) as other:
        (ledger,) = await both.create("a")
        (version,) = await both.begin(1)
        async with ledgers.held("LOCK TABLE entries IN EXCLUSIVE MODE") as hold:
            sending = asyncio.create_task(announce(ledger, request(1, version, ledger)))
            await hold.waiting(1)
            ending = asyncio.create_task(other.records.put(Put(header_key(1), b"ended", version)))
            waiting = asyncio.create_task(hold.waiting(2))
            await asyncio.wait((waiting, ending), return_when=asyncio.FIRST_COMPLETED)
            assert not ending.done()
            await waiting
            await hold.let_go()
            await sending
        await ending


async def test_a_locked_ledger_is_waited_for(ledgers: Ledgers) -> None:
    """A call waits for the lock of its ledger; the position in its operation is read after the wait."""
    async with opened(ledgers) as both:
        (ledger,) = await both.create("a")
        (version,) = await both.begin(1)
        await ledger.append((Append(b"1"),), None)
        async with ledgers.held() as hold:
            calls = [asyncio.create_task(announce(ledger, request(1, version, ledger)))]
            await hold.waiting(1)
            await hold.holding.execute("UPDATE managed_ledgers SET sealed = 1; COMMIT")
            assert kinds(await outcomes(*calls)) == [LedgerSealed]
        assert await both.operations() == []


async def test_lost_connection(ledgers: Ledgers) -> None:
    """After a lost connection, each call raises OutcomeUnknown; nothing of them is stored, or all."""
    async with opened(ledgers) as both:
        made = await both.create("a", "b", "c")
        versions = await both.begin(0, 1, 2)
        entry = Append(b"x", sequence=ProducerSequence("p", 1, 1))
        calls = [(number, version, made[number], entry) for number, version in enumerate(versions)]
        async with ledgers.held("LOCK TABLE entries IN EXCLUSIVE MODE") as hold:
            sent = asyncio.gather(*(announce(one[2], request(*one)) for one in calls), return_exceptions=True)
            await hold.waiting(1)
            await hold.end_waiting()
            answers = await sent
        assert kinds(answers) == [OutcomeUnknown] * 3
        assert len({id(answer) for answer in answers}) == 3
        assert await both.operations() == []
        done = await asyncio.gather(*(announce(one[2], request(*one)) for one in calls))
        assert not any(one.appended[0].duplicate for one in done)
        assert [await entries_of(ledger) for ledger in made] == [[b"x"]] * 3


async def test_lost_reply(tmp_path: Path) -> None:
    """After a commit whose reply is lost, each call raises OutcomeUnknown, and has written both its parts."""
    harness = PostgresLedgerHarness(tmp_path)
    try:
        async with harness.open_with_records() as (store, records):
            both = Both(store, records)
            made = await both.create("a", "b")
            versions = await both.begin(0, 1)
            await asyncio.gather(*(announce(one, request(at, versions[at], one)) for at, one in enumerate(made)))
            entry = Append(b"again", sequence=ProducerSequence("p", 1, 1))
            calls = [(at, versions[at], ledger, entry) for at, ledger in enumerate(made)]
            await harness.cut(store)
            answers = await outcomes(*(announce(one[2], request(*one)) for one in calls))
            assert kinds(answers) == [OutcomeUnknown] * 2
            await harness.restore(store)
            assert [await entries_of(ledger) for ledger in made] == [[b"x", b"again"]] * 2
            assert len(await both.operations()) == 4
            for done in await asyncio.gather(*(announce(one[2], request(*one)) for one in calls)):
                assert done.appended[0].duplicate
            assert len(await both.operations()) == 6
    finally:
        await harness.destroy()


@pytest.mark.parametrize("seed", range(2))
async def test_no_deadlock_with_the_ends_of_transactions(ledgers: Ledgers, seed: int) -> None:
    """Two clients send in the same transactions to the same ledgers, while others end these transactions.

    No deadlock occurs, every entry has its operation, and none was written after an end.
    """
    rng = random.Random(seed)
    txns = range(6)
    async with opened(ledgers) as one, opened(ledgers) as two:
        handles = [await both.create(*(f"l{number}" for number in range(8))) for both in (one, two)]
        versions = await one.begin(*txns)
        await one.records.put(Put(Key("/cursor/a"), b"", Expect.ABSENT))
        ended: dict[int, int] = {}
        written: list[Announced] = []

        async def send(both: Both, number: int) -> None:
            made = handles[number]
            for turn in range(12):
                calls = [
                    announce(
                        made[at],
                        request(txn, versions[txn], made[at], Append(b"%d:%d:%d:%d" % (txn, at, number, turn))),
                    )
                    for at in rng.sample(range(8), 8)
                    for txn in rng.sample(txns, 2)
                ]
                ends = [end(both, number + turn % 5 * 2)] if turn % 5 < 2 and turn > 2 else []
                for answer in await outcomes(*calls, *ends):
                    assert isinstance(answer, Announced | VersionMismatch | None), answer
                    if isinstance(answer, Announced):
                        written.append(answer)

        async def end(both: Both, txn: int) -> None:
            if txn in ended:
                return
            cursor = Put(Key("/cursor/a"), b"%d" % txn, Expect.ANY)
            header = Put(header_key(txn), b"ended", versions[txn])
            found = await both.records.apply(Step(puts=(header, cursor)))
            ended[txn] = found.records[0].version

        await asyncio.gather(send(one, 0), send(two, 1))
        assert sorted(ended) == [*txns[:4]]
        assert {done.record for done in written} == set(await one.operations())
        for done in written:
            txn = int(done.record.key.partition)
            assert done.record.version < ended.get(txn, 1 << 62)
        assert sum([len(await entries_of(ledger)) for ledger in handles[0]]) == len(written)
        async with ledgers.session() as session:
            deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            assert await session.fetchval(deadlocks) == 0
