"""The heartbeats of sessions wait neither for jobs of the database thread nor for a busy event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.model import Expect, Key, Put
from txnframework.testing import VirtualEnvironment, run_ready
from txnframework_sql import MetadataOptions, SqlMetadataStore, open_metadata_store
from txnframework_sql.schema import sessions
from txnframework_sql.sqlite import locate
from txnframework_sql.sqlite._database import SqliteDatabase
from txnframework_sql.sqlite._jobs import RepeatedWrite
from txnframework_sql.sqlite._leases import renews_alone
from txnframework_sql.steps.record_writes import put_record
from txnframework_sql.steps.records import get_record
from txnframework_sql.steps.statements import Steps, new_number, rows
from txnframework_sql.testing import SESSION_TTL_MS, SqlMetadataHarness

JOBS = 20
PATIENCE_S = 60


class Holding:
    """Steps that hold the database thread until the test releases it, and the order in which steps were performed."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self._held, self._go_on = threading.Event(), threading.Event()

    def hold(self, name: str) -> Callable[[], Steps[None]]:
        """Return steps that hold the thread."""

        def wait() -> Steps[None]:
            yield from self.note(name)()
            self._held.set()
            self._go_on.wait()

        return wait

    def note(self, name: str) -> Callable[[], Steps[None]]:
        """Return steps that note that they are performed, and change nothing."""

        def noting() -> Steps[None]:
            self.order.append(name)
            yield from ()

        return noting

    async def until_held(self) -> None:
        """Return when the thread is held."""
        await asyncio.to_thread(self._held.wait)

    def release(self) -> None:
        """Let the thread continue."""
        self._go_on.set()


async def opened(url: str, options: MetadataOptions | None = None) -> SqliteDatabase:
    """Open the database."""
    return await SqliteDatabase.open(locate(url), options or MetadataOptions(), "identity")


async def test_before_all_jobs_that_wait(url: str) -> None:
    """An urgent write is performed before writes that wait in the thread's queue, and before those that wait for it."""
    database, holding = await opened(url, MetadataOptions(queue_max=JOBS)), Holding()
    running = [asyncio.ensure_future(database.read(holding.hold("held")))]
    await holding.until_held()
    # The held read has one of the places in the queue, so the last of these waits for a place.
    running += [asyncio.ensure_future(database.write(holding.note("waits"))) for _ in range(JOBS)]
    await run_ready()
    commits = database.commits
    running.append(asyncio.ensure_future(database.write_urgently(holding.note("urgent"))))
    await run_ready()
    holding.release()
    await asyncio.gather(*running)
    assert holding.order == ["held", "urgent", *["waits"] * JOBS]
    assert database.commits - commits >= 2
    await database.close()


@pytest.mark.parametrize("is_write", [True, False])
async def test_ends_a_group_that_runs(url: str, is_write: bool) -> None:
    """An urgent write waits for one job of a running group; the rest of the group follows it, and has its results."""
    database, holding = await opened(url), Holding()
    run = database.write if is_write else database.read
    works = [holding.note("first"), holding.hold("held"), *[holding.note("follows")] * 3]
    running = [asyncio.ensure_future(run(work)) for work in works]
    await holding.until_held()
    urgent = asyncio.ensure_future(database.write_urgently(holding.note("urgent")))
    await run_ready()
    commits = database.commits
    holding.release()
    await asyncio.gather(urgent, *running)
    assert holding.order == ["first", "held", "urgent", "follows", "follows", "follows"]
    assert database.commits - commits == (3 if is_write else 1)
    await database.close()


async def test_between_writes_that_are_committed_apart(url: str) -> None:
    """The writes of a group that are committed one by one, because one failed midway, let an urgent write go first."""
    database, holding = await opened(url), Holding()
    attempts: list[None] = []

    def hold_again() -> Steps[None]:
        attempts.append(None)
        yield from holding.note("together")() if len(attempts) == 1 else holding.hold("apart")()

    def fail() -> Steps[None]:
        yield from put_record(Put(Key("/half"), b"", Expect.ABSENT))
        raise ZeroDivisionError

    running = [asyncio.ensure_future(database.write(work)) for work in (hold_again, fail, holding.note("follows"))]
    await holding.until_held()
    urgent = asyncio.ensure_future(database.write_urgently(holding.note("urgent")))
    await run_ready()
    holding.release()
    assert [type(one) for one in await asyncio.gather(*running, return_exceptions=True)] == [
        type(None),
        ZeroDivisionError,
        type(None),
    ]
    await urgent
    assert holding.order == ["together", "apart", "urgent", "follows"]
    await database.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_end_of_the_thread(url: str) -> None:
    """An urgent write that waits when the thread ends is answered, and a later one is refused."""
    database, holding = await opened(url), Holding()

    def end() -> Steps[None]:
        yield from holding.hold("held")()
        raise GeneratorExit

    ending = asyncio.ensure_future(database.write(end))
    await holding.until_held()
    urgent = asyncio.ensure_future(database.write_urgently(holding.note("urgent")))
    await run_ready()
    holding.release()
    answers = await asyncio.gather(ending, urgent, return_exceptions=True)
    assert [type(one) for one in answers] == [OutcomeUnknown, Unavailable]
    with pytest.raises(Unavailable):
        await database.write_urgently(holding.note("later"))
    assert holding.order == ["held"]
    await database.close()


async def test_heartbeat_goes_first(tmp_path: Path) -> None:
    """A heartbeat extends its session before jobs that wait, also while an acquisition waits among them."""
    harness, holding = SqlMetadataHarness(tmp_path), Holding()
    async with harness.open() as one:
        assert isinstance(one, SqlMetadataStore)
        await one.acquire_lease("name", "one")
        acquired_ms = harness.environment.now_ms()
        held = asyncio.ensure_future(one.database.read(holding.hold("held")))
        await holding.until_held()
        expiry = asyncio.ensure_future(one.database.read(lambda: rows(select(sessions.c.expires_ms))))
        acquiring = [asyncio.ensure_future(one.acquire_lease(f"other-{n}", "one")) for n in range(JOBS)]
        await run_ready()
        await harness.environment.advance(SESSION_TTL_MS // 3)
        await run_ready()
        holding.release()
        assert await expiry == [(acquired_ms + SESSION_TTL_MS // 3 + SESSION_TTL_MS,)]
        await asyncio.gather(held, *acquiring)


async def test_repeated_write_needs_no_event_loop(url: str) -> None:
    """A repeated write is performed while the event loop of its owner runs nothing else, until it is dropped."""
    database = await opened(url)
    results: list[int] = []
    performed = threading.Event()

    def done(result: int) -> None:
        results.append(result)
        performed.set()

    drop = database.repeat(RepeatedWrite(0.001, lambda: (new_number, done)))
    for _ in range(3):
        performed.clear()
        assert performed.wait(PATIENCE_S)  # on purpose: the event loop does not run meanwhile
    drop()
    last = await database.write(new_number)
    assert sorted(results) == results == list(range(results[0], last))
    assert await database.write(new_number) == last + 1
    await database.close()


async def test_repeated_write_that_fails_or_is_not_due(url: str) -> None:
    """A repeated write that fails or is not due does not disturb jobs, and is tried again."""
    database, asked, failed = await opened(url), threading.Event(), threading.Event()

    def idle() -> None:
        asked.set()

    def fail() -> Steps[None]:
        if failed.is_set():
            asked.set()
        failed.set()
        yield from put_record(Put(Key("/half"), b"", Expect.ABSENT))
        raise ZeroDivisionError

    for due in (idle, lambda: (fail, print)):
        asked.clear()
        drop = database.repeat(RepeatedWrite(0.001, due))
        assert asked.wait(PATIENCE_S)
        drop()
    assert await database.read(lambda: get_record(Key("/half"))) is None
    await database.close()


class SleepingEnvironment(VirtualEnvironment):
    """An environment in which nothing that sleeps wakes up, as in an event loop that is busy."""

    async def sleep_until(self, at_ms: int) -> None:
        """Sleep without end."""
        await asyncio.get_running_loop().create_future()

    async def sleep(self, duration_ms: int) -> None:
        """Sleep without end."""
        await asyncio.get_running_loop().create_future()


async def test_busy_event_loop_keeps_its_session(url: str) -> None:
    """A session whose heartbeat does not come is renewed on the thread of the database."""
    environment = SleepingEnvironment()
    store = await open_metadata_store(url, environment, MetadataOptions(session_ttl_ms=60))
    lease = await store.acquire_lease("name", "one")
    lost = asyncio.ensure_future(lease.lost())
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(5):
            await environment.advance(40)
            expires_ms = environment.now_ms() + 60
            while await store.database.read(lambda: rows(select(sessions.c.expires_ms))) != [(expires_ms,)]:
                pass
    assert not lost.done()
    lost.cancel()
    await store.close()


@pytest.mark.parametrize(
    ("now_ms", "expected"), [(1_499, False), (1_500, True), (2_000, True), (11_000, True), (11_001, False)]
)
def test_renewal_alone(now_ms: int, expected: bool) -> None:
    """The thread renews a session when the loop is late by a third of its lifetime, and for ten lifetimes at most."""
    assert renews_alone(now_ms, valid_until_ms=1_833, heard_ms=1_000, ttl_ms=1_000) is expected
