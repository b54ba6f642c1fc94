"""Leases under a clock that only tests advance."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import select

from txnframework.errors import Closed, LeaseHeld, OutcomeUnknown
from txnframework.interfaces import IMetadataStore
from txnframework.model import KeyRange
from txnframework.model.paths import lease_key
from txnframework.testing import run_ready
from txnframework_sql import SqlMetadataStore
from txnframework_sql.schema import leases, sessions
from txnframework_sql.sqlite._database import SqliteDatabase
from txnframework_sql.steps.statements import Steps, rows
from txnframework_sql.testing import SESSION_TTL_MS, SqlMetadataHarness

STEP_MS = 200


async def pass_time(harness: SqlMetadataHarness, by_ms: int) -> None:
    """Advance the clock in steps that are short compared to a session's lifetime, and run everything that is due."""
    for _ in range(by_ms // STEP_MS):
        await harness.pass_time(STEP_MS)
        await harness.settle()


def sql(store: IMetadataStore) -> SqlMetadataStore:
    """Return the store with its own type."""
    assert isinstance(store, SqlMetadataStore)
    return store


@contextmanager
def busy(store: SqlMetadataStore) -> Iterator[None]:
    """Block the store's database thread within the block."""
    gate = threading.Event()

    def wait() -> Steps[None]:
        gate.wait()
        yield from ()

    task = asyncio.ensure_future(store.database.read(wait))
    try:
        yield
        assert not task.done()
    finally:
        gate.set()


async def test_heartbeat_keeps_a_lease(tmp_path: Path) -> None:
    """A lease outlives its session's lifetime many times while its holder runs."""
    harness = SqlMetadataHarness(tmp_path)
    async with harness.open() as one, harness.open() as two:
        lease = await one.acquire_lease("name", "one")
        lost = asyncio.create_task(lease.lost())
        await pass_time(harness, 5 * SESSION_TTL_MS)
        assert not lost.done()
        with pytest.raises(LeaseHeld):
            await two.acquire_lease("name", "two")
        lost.cancel()


async def test_expired_lease_goes_to_another(tmp_path: Path) -> None:
    """
    Without heartbeats, a lease can be acquired after its session's lifetime, not before, with a higher fencing number.
    """
    harness = SqlMetadataHarness(tmp_path)
    async with harness.open() as one, harness.open() as two:
        lease = await one.acquire_lease("name", "one")
        await sql(one).abandon()
        await harness.environment.advance(SESSION_TTL_MS - 1)
        with pytest.raises(LeaseHeld):
            await two.acquire_lease("name", "two")
        await harness.environment.advance(1)
        following = await two.acquire_lease("name", "two")
        assert following.fencing > lease.fencing


async def test_lost_before_it_is_granted_to_another(tmp_path: Path) -> None:
    """A holder whose heartbeats fail learns of its loss before another session can acquire the lease."""
    harness = SqlMetadataHarness(tmp_path)
    async with harness.open() as one, harness.open() as two:
        lease = await one.acquire_lease("name", "one")
        lost = asyncio.create_task(lease.lost())
        await harness.cut(one)
        while not lost.done():
            with pytest.raises(LeaseHeld):
                await two.acquire_lease("name", "two")
            await harness.pass_time(STEP_MS)
            await harness.settle()
        await harness.restore(one)
        await pass_time(harness, SESSION_TTL_MS)
        assert (await two.acquire_lease("name", "two")).fencing > lease.fencing


async def test_a_clock_that_is_set_back_does_not_prolong_a_lease(tmp_path: Path) -> None:
    """A holder that cannot renew its lease relies on it for the lifetime of its session, and not for an hour more."""
    harness = SqlMetadataHarness(tmp_path)
    async with harness.open() as one:
        lease = await one.acquire_lease("name", "one")
        lost = asyncio.create_task(lease.lost())
        await harness.cut(one)
        harness.environment.set_clock(-3_600_000)
        await pass_time(harness, SESSION_TTL_MS)
        assert lost.done()
        await harness.restore(one)


async def test_lapsed_lease_does_not_come_back(tmp_path: Path) -> None:
    """A session that continues after it has lapsed does not keep the leases that it lost."""
    harness = SqlMetadataHarness(tmp_path)
    async with harness.open() as one, harness.open() as two:
        lease = await one.acquire_lease("name", "one")
        await harness.cut(one)
        # Long enough to lapse here, not long enough to expire in the database after the last heartbeat.
        lost = asyncio.create_task(lease.lost())
        while not lost.done():
            await harness.pass_time(STEP_MS)
            await harness.settle()
        await harness.restore(one)
        await one.acquire_lease("other", "one")
        assert (await two.acquire_lease("name", "two")).fencing > lease.fencing
        with pytest.raises(LeaseHeld):
            await two.acquire_lease("other", "two")


async def test_nothing_is_left_of_a_session(tmp_path: Path) -> None:
    """No record and no row remains after sessions end, by a close or by expiry."""
    harness = SqlMetadataHarness(tmp_path)
    async with harness.open() as two:
        async with harness.open() as one:
            await one.acquire_lease("a", "one")
            lease = await one.acquire_lease("b", "one")
            await lease.release()
            await harness.crash(one)
        await two.acquire_lease("a", "two")
    async with harness.open() as store:
        page = await store.scan(KeyRange("/", "0"), 10)
        assert page.records == ()
        assert await sql(store).database.read(lambda: rows(select(leases))) == []
        assert await sql(store).database.read(lambda: rows(select(sessions))) == []


async def test_lapse_during_an_acquisition(tmp_path: Path) -> None:
    """Leases that lapse during an acquisition go to others, and the acquired lease is lost from the start."""
    harness = SqlMetadataHarness(tmp_path)
    async with harness.open() as one, harness.open() as two:
        lease = await one.acquire_lease("name", "one")
        lost = asyncio.create_task(lease.lost())
        # Before the first heartbeat, and late enough to be relied on for longer than the first lease.
        await harness.environment.advance(SESSION_TTL_MS // 4)
        with busy(sql(one)):
            acquiring = asyncio.create_task(one.acquire_lease("other", "one"))
            while not lost.done():
                await harness.environment.advance(STEP_MS)
        other = await acquiring
        async with asyncio.timeout(60):
            await other.lost()
        await pass_time(harness, SESSION_TTL_MS)
        for lapsed in (lease, other):
            assert (await two.acquire_lease(lapsed.name, "two")).fencing > lapsed.fencing
        await one.acquire_lease("another", "one")
        with pytest.raises(LeaseHeld):
            await two.acquire_lease("another", "two")


@pytest.mark.parametrize("end", ["lapse", "release", "lost reply"])
async def test_session_that_holds_nothing_writes_nothing(tmp_path: Path, end: str) -> None:
    """A session without leases ends with its next heartbeat, and can start again."""
    harness = SqlMetadataHarness(tmp_path)
    async with harness.open() as one, harness.open() as two:
        if end == "lost reply":
            await harness.cut(one)
            with pytest.raises(OutcomeUnknown):
                await one.acquire_lease("name", "one")
            await harness.restore(one)
        else:
            lease = await one.acquire_lease("name", "one")
        if end == "release":
            await lease.release()
        elif end == "lapse":
            with busy(sql(one)):
                await harness.environment.advance(SESSION_TTL_MS)
        await pass_time(harness, SESSION_TTL_MS)
        assert await sql(two).database.read(lambda: rows(select(sessions))) == []
        before = sql(one).database.commits
        await pass_time(harness, 3 * SESSION_TTL_MS)
        assert sql(one).database.commits == before
        await one.acquire_lease("name", "one")
        await pass_time(harness, 3 * SESSION_TTL_MS)
        with pytest.raises(LeaseHeld):
            await two.acquire_lease("name", "two")


async def test_refused_acquisition_writes_nothing(tmp_path: Path) -> None:
    """A refused acquisition creates no session."""
    harness = SqlMetadataHarness(tmp_path)
    async with harness.open() as one, harness.open() as two:
        await one.acquire_lease("name", "one")
        with pytest.raises(LeaseHeld):
            await two.acquire_lease("name", "two")
        found = await sql(two).database.read(lambda: rows(select(sessions.c.session)))
        assert found == [(one.session,)]


async def test_acquisition_during_close(tmp_path: Path) -> None:
    """An acquisition before or during a close is refused, and leaves nothing behind."""
    harness = SqlMetadataHarness(tmp_path)
    async with harness.open() as one, harness.open() as two:
        with busy(sql(one)):
            acquiring = [asyncio.create_task(one.acquire_lease("a", "one"))]
            await run_ready()
            closing = asyncio.create_task(one.close())
            await run_ready()
            acquiring += [asyncio.create_task(one.acquire_lease("b", "one"))]
            await run_ready()
        await closing
        outcomes = await asyncio.gather(*acquiring, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Closed, Closed]
        assert len(asyncio.all_tasks()) == 1
        assert await sql(two).database.read(lambda: rows(select(sessions))) == []
        assert await sql(two).database.read(lambda: rows(select(leases))) == []


async def test_watch_during_close(tmp_path: Path) -> None:
    """A watch requested before or during a close is refused, because nothing would wake it."""
    harness = SqlMetadataHarness(tmp_path)
    async with harness.open() as one:
        lease = await one.acquire_lease("name", "one")
        with busy(sql(one)):
            watching = [asyncio.create_task(one.watch(lease.key))]
            await run_ready()
            closing = asyncio.create_task(one.close())
            await run_ready()
            watching += [asyncio.create_task(one.watch(lease.key))]
            await run_ready()
        await closing
        outcomes = await asyncio.gather(*watching, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Closed, Closed]


async def test_many_acquisitions_share_a_step(tmp_path: Path) -> None:
    """
    What is acquired at the same time takes one commit, and each caller gets its own lease or refusal; so do releases.

    A cancelled caller holds nothing, and the others get their leases.
    """
    harness = SqlMetadataHarness(tmp_path)
    async with harness.open() as one, harness.open() as two:
        taken = await two.acquire_lease("n03", "two")
        database = sql(one).database
        assert isinstance(database, SqliteDatabase)
        before = database.commits
        with busy(sql(one)):
            acquiring = [asyncio.create_task(one.acquire_lease(f"n{number:02}", "one")) for number in range(20)]
            acquiring.append(asyncio.create_task(one.acquire_lease("n05", "someone else here")))
            await run_ready()
            acquiring[7].cancel()
            await run_ready()
        found = await asyncio.gather(*acquiring, return_exceptions=True)
        assert database.commits - before == 1
        assert isinstance(found[7], asyncio.CancelledError)
        refusals = [error for error in found if isinstance(error, LeaseHeld)]
        assert [(error.name, error.holder) for error in refusals] == [("n03", "two"), ("n05", "one")]
        leases_held = [lease for lease in found if not isinstance(lease, BaseException)]
        assert [lease.key for lease in leases_held] == [
            lease_key(f"n{number:02}") for number in range(20) if number not in (3, 7)
        ]
        fencing = [lease.fencing for lease in leases_held]
        assert len({*fencing}) == len(fencing)
        assert min(fencing) > taken.fencing
        for lease in leases_held:
            record = await two.get(lease.key)
            assert record is not None
            assert record.version == lease.version
        jobs = database.jobs_received
        await asyncio.gather(*(lease.release() for lease in leases_held))
        assert database.jobs_received == jobs + 1
        assert [await two.get(lease.key) for lease in leases_held] == [None] * len(leases_held)
        # Without a caller, the lease ends with the session, as after a lost reply.
        await pass_time(harness, SESSION_TTL_MS)
        await two.acquire_lease("n07", "two")
