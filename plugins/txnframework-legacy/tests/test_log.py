"""A log that is written one by one or in batches, in virtual time over a ledger in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from txnframework.errors import (
    Closed,
    CorruptEntry,
    EntryTrimmed,
    OutcomeUnknown,
    TxnFrameworkError,
    Unavailable,
    UnknownFormat,
)
from txnframework.interfaces import IManagedLedger
from txnframework.model import EARLIEST, Append, EntryRange, LedgerEntry, Limit, Position
from txnframework.testing import VirtualEnvironment
from txnframework.testing.clock import run_ready
from txnframework.testing.connection import StoreConnection, intercept_calls
from txnframework_legacy.coordinator.state import LiveRecords
from txnframework_legacy.log import (
    BatchedLogWriter,
    Batching,
    FlushMetrics,
    FlushReason,
    LogRecord,
    RecordPosition,
    read_records,
)
from txnframework_memory.space import MemorySpace

OFF = Batching()
SMALL = Batching(enabled=True, records_max=4, bytes_max=1_000, delay_ms=5)


@dataclass(eq=False)
class Log:
    ledger: IManagedLedger
    writer: BatchedLogWriter
    environment: VirtualEnvironment
    connection: StoreConnection
    flushes: list[FlushMetrics]

    async def begin(self, *records: bytes) -> list[asyncio.Task[RecordPosition]]:
        """Add records at the same time, and let everything run that does not wait for time."""
        tasks = [asyncio.ensure_future(self.writer.add(record)) for record in records]
        await run_ready()
        return tasks

    async def add(self, *records: bytes) -> list[RecordPosition]:
        """Add records at the same time, and let the delay pass."""
        tasks = await self.begin(*records)
        await self.environment.advance(SMALL.delay_ms)
        return list(await asyncio.gather(*tasks))

    async def replayed(self, after: Position = EARLIEST) -> list[LogRecord]:
        upto = (await self.ledger.tail()).last_confirmed
        return [record async for page in read_records(self.ledger, after, upto) for record in page]

    async def entries(self) -> int:
        return len(await self.entries_read())

    async def entries_read(self) -> tuple[LedgerEntry, ...]:
        upto = (await self.ledger.tail()).last_confirmed
        return await self.ledger.read(EntryRange(EARLIEST, upto), Limit(1_000))


def in_log(batching: Batching) -> Callable[[Callable[[Log], Awaitable[None]]], Callable[[], None]]:
    """Run a test with a log of its own."""

    def mark(test: Callable[[Log], Awaitable[None]]) -> Callable[[], None]:
        async def with_log() -> None:
            async with opened(batching) as log, asyncio.timeout(60):
                await test(log)

        def run() -> None:
            asyncio.run(with_log())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return mark


@asynccontextmanager
async def opened(batching: Batching) -> AsyncIterator[Log]:
    environment, connection, flushes = VirtualEnvironment(), StoreConnection(), list[FlushMetrics]()
    ledgers = await MemorySpace(environment).open_ledgers()
    ledger = intercept_calls(await ledgers.create("log"), connection)
    log = Log(ledger, BatchedLogWriter(ledger, environment, batching, flushes.append), environment, connection, flushes)
    yield log
    connection.restore()
    await log.writer.close()
    await ledgers.close()


def records(count: int, size: int = 10) -> list[bytes]:
    return [str(number).encode().ljust(size, b".") for number in range(count)]


# -- one by one ---------------------------------------------------------------------------------------


@in_log(OFF)
async def test_without_batching_each_record_is_an_entry(log: Log) -> None:
    """By default each record is written at once, alone, in the order of the calls; no timer runs."""
    positions = [await task for task in await log.begin(*records(5))]
    assert [(position.index, position.size) for position in positions] == [(0, 1)] * 5
    assert positions == sorted(positions)
    assert [record.position for record in await log.replayed()] == positions
    assert [record.data for record in await log.replayed()] == records(5)
    assert log.flushes == []


# -- thresholds ---------------------------------------------------------------------------------------


@in_log(SMALL)
async def test_places_are_true(log: Log) -> None:
    """Each caller gets the entry, the index in the batch and the batch size; reading returns equal records."""
    positions = await log.add(*records(11))
    assert [(position.index, position.size) for position in positions] == [
        *[(number, 4) for number in range(4)] * 2,
        *[(number, 3) for number in range(3)],
    ]
    assert positions == sorted(positions)
    assert [(record.position, record.data) for record in await log.replayed()] == [
        *zip(positions, records(11), strict=True)
    ]


@in_log(SMALL)
async def test_flush_by_count(log: Log) -> None:
    """A full batch is written at once, without waiting for the delay."""
    tasks = await log.begin(*records(4))
    assert all(task.done() for task in tasks)
    assert [flush.reason for flush in log.flushes] == [FlushReason.RECORDS]


@in_log(SMALL)
async def test_flush_by_size(log: Log) -> None:
    """A record that does not fit goes into the next entry."""
    tasks = await log.begin(*records(3, size=400))
    assert [task.done() for task in tasks] == [True, True, False]
    assert [(flush.reason, flush.records) for flush in log.flushes] == [(FlushReason.BYTES, 2)]
    await log.environment.advance(SMALL.delay_ms)
    assert [(await task).size for task in tasks] == [2, 2, 1]


@in_log(SMALL)
async def test_flush_by_delay_and_not_before(log: Log) -> None:
    """A record waits for others exactly as long as is configured, counted from the oldest of its entry."""
    (first,) = await log.begin(b"first")
    await log.environment.advance(SMALL.delay_ms - 1)
    (second,) = await log.begin(b"second")
    assert not first.done()
    await log.environment.advance(1)
    assert (await first).entry == (await second).entry
    assert [(flush.reason, flush.records, flush.waited_ms) for flush in log.flushes] == [
        (FlushReason.DELAY, 2, SMALL.delay_ms)
    ]


@in_log(SMALL)
async def test_each_entry_has_a_delay_of_its_own(log: Log) -> None:
    """A batch that is full early does not shorten the delay of the next one."""
    await log.begin(b"a")
    await log.environment.advance(SMALL.delay_ms - 1)
    await log.begin(b"b", b"c", b"d")
    (late,) = await log.begin(b"late")
    await log.environment.advance(SMALL.delay_ms - 1)
    assert not late.done()
    await log.environment.advance(1)
    assert late.done()


@in_log(SMALL)
async def test_a_large_record_is_alone(log: Log) -> None:
    """Waiting records are flushed before a record as large as an entry, which is written alone."""
    small, other, large = await log.begin(b"small", b"other", b"x" * 5_000)
    assert [task.done() for task in (small, other, large)] == [True] * 3
    assert (await small).entry == (await other).entry < (await large).entry
    assert ((await large).index, (await large).size) == (0, 1)
    assert [flush.reason for flush in log.flushes] == [FlushReason.LARGE] * 2
    assert [record.data for record in await log.replayed()] == [b"small", b"other", b"x" * 5_000]


@in_log(Batching(enabled=True))
async def test_the_defaults(log: Log) -> None:
    """Batching that is only switched on gathers up to 512 records for 1 ms."""
    tasks = await log.begin(*records(513))
    assert [task.done() for task in tasks] == [True] * 512 + [False]
    await log.environment.advance(1)
    assert await log.entries() == 2
    assert (await tasks[-1]).size == 1


# -- a slow ledger, and one that fails ----------------------------------------------------------------


@in_log(SMALL)
async def test_a_slow_ledger_piles_nothing_up(log: Log) -> None:
    """During a slow append, there is at most one timer and one append; order and positions are correct."""
    held = log.connection.hold(1)
    tasks = await log.begin(*records(4))
    await held.reached.wait()
    before = len(asyncio.all_tasks())
    for number in range(20):
        tasks += await log.begin(f"late {number}".encode())
        await log.environment.advance(2 * SMALL.delay_ms)
    assert len(asyncio.all_tasks()) - before <= 20 + 1
    assert log.environment.next_ms() is None
    assert not any(task.done() for task in tasks)
    log.connection.restore()
    positions = await asyncio.gather(*tasks)
    assert positions == sorted(positions)
    assert [record.position for record in await log.replayed()] == positions


@in_log(SMALL)
async def test_what_is_due_gathers_on_while_the_ledger_is_busy(log: Log) -> None:
    """An entry that cannot be written yet accepts further records until it is sent."""
    held = log.connection.hold(1)
    tasks = await log.begin(*records(4))
    await held.reached.wait()
    for number in range(3):
        tasks += await log.begin(f"late {number}".encode())
        await log.environment.advance(2 * SMALL.delay_ms)
    log.connection.restore()
    assert [(await task).size for task in tasks] == [4, 4, 4, 4, 3, 3, 3]
    assert [flush.reason for flush in log.flushes] == [FlushReason.RECORDS, FlushReason.DELAY]
    assert log.flushes[1].waited_ms == 6 * SMALL.delay_ms


@in_log(Batching(enabled=True, records_max=2, waiting_records_max=6))
async def test_what_waits_is_bounded(log: Log) -> None:
    """Beyond the limit of waiting records, callers wait, and are accepted in order."""
    held = log.connection.hold(1)
    tasks = await log.begin(*records(20))
    await held.reached.wait()
    log.connection.restore()
    positions = await asyncio.gather(*tasks)
    assert positions == sorted(positions)
    assert [record.data for record in await log.replayed()] == records(20)


@in_log(SMALL)
async def test_each_caller_learns_what_failed(log: Log) -> None:
    """Every caller of a failed entry gets the ledger's error; the next entry is unaffected."""
    for order, kind in ((log.connection.refuse, Unavailable), (log.connection.lose, OutcomeUnknown)):
        order(1)
        tasks = await log.begin(*records(8))
        for task in tasks[:4]:
            with pytest.raises(kind):
                await task
        assert [(await task).index for task in tasks[4:]] == [0, 1, 2, 3]
    # The lost reply was only a reply: what was refused is the one entry that is missing.
    assert await log.entries() == 3


@in_log(OFF)
async def test_a_plain_record_learns_what_failed(log: Log) -> None:
    """Without batching, each caller gets the error of its own record."""
    for order, kind in ((log.connection.refuse, Unavailable), (log.connection.lose, OutcomeUnknown)):
        order(1)
        failed, fine = await log.begin(b"failed", b"fine")
        with pytest.raises(kind):
            await failed
        await fine


@in_log(SMALL)
async def test_a_caller_that_gives_up_disturbs_nobody(log: Log) -> None:
    """A cancelled call stops neither its entry nor other calls."""
    first, second = await log.begin(b"first", b"second")
    first.cancel()
    await log.environment.advance(SMALL.delay_ms)
    assert ((await second).index, (await second).size) == (1, 2)
    assert [record.data for record in await log.replayed()] == [b"first", b"second"]


# -- switching and replaying --------------------------------------------------------------------------


@in_log(OFF)
async def test_switching_at_run_time(log: Log) -> None:
    """Batching is enabled and disabled at run time: no record is lost, and the order of the records is kept."""
    tasks = await log.begin(*records(3))
    log.writer.switch(batching=True)
    tasks += await log.begin(b"gathered", b"with it")
    assert not tasks[-1].done()
    log.writer.switch(batching=False)
    tasks += await log.begin(b"plain")
    log.writer.switch(batching=True)
    tasks += await log.begin(b"last")
    await log.environment.advance(1)
    positions = await asyncio.gather(*tasks)
    assert positions == sorted(positions)
    assert [position.size for position in positions] == [1, 1, 1, 2, 2, 1, 1]
    assert [record.data for record in await log.replayed()] == [*records(3), b"gathered", b"with it", b"plain", b"last"]


@in_log(SMALL)
async def test_replay_begins_anywhere(log: Log) -> None:
    """A replay after an entry returns the later ones, also over closed ledgers."""
    first = await log.add(*records(6))
    await log.ledger.roll()
    second = await log.add(b"next")
    assert [record.data for record in await log.replayed(first[0].entry)] == [*records(6)[4:], b"next"]
    await log.ledger.trim(second[0].entry.ledger_id, frozenset())
    assert [record.data for record in await log.replayed(Position(second[0].entry.ledger_id, -1))] == [b"next"]
    with pytest.raises(EntryTrimmed):
        await log.replayed(first[0].entry)


@in_log(SMALL)
async def test_replay_stops_at_what_it_does_not_know(log: Log) -> None:
    """An entry of another version, or of no log at all, ends the replay with an error that names it."""
    for data, kind in ((b"\x0e\x01\x00\x09?", UnknownFormat), (b"not a log", CorruptEntry)):
        (appended,) = await log.ledger.append((Append(data),), None)
        await log.add(b"behind it")
        with pytest.raises(kind, match=f"entry {appended.position} of"):
            await log.replayed(Position(appended.position.ledger_id, -1))
        await log.ledger.roll()


# -- closing ------------------------------------------------------------------------------------------


@in_log(SMALL)
async def test_closing(log: Log) -> None:
    """Begun writes get their results, gathered ones fail, later adds fail; closing may be repeated."""
    held = log.connection.hold(1)
    begun = await log.begin(*records(4))
    gathered = await log.begin(b"gathered")
    await held.reached.wait()
    closing = [asyncio.ensure_future(log.writer.close()) for _ in range(2)]
    await run_ready()
    with pytest.raises(Closed):
        await gathered[0]
    with pytest.raises(Closed):
        await log.writer.add(b"too late")
    assert not any(one.done() for one in (*begun, *closing))
    log.connection.restore()
    await asyncio.gather(*closing)
    assert [(await task).index for task in begun] == [0, 1, 2, 3]
    assert [record.data for record in await log.replayed()] == records(4)
    await log.writer.close()


@in_log(SMALL)
async def test_closing_tells_of_failures(log: Log) -> None:
    """An entry that fails during the close fails for its callers; the close succeeds."""
    log.connection.lose(1)
    tasks = await log.begin(*records(4))
    await log.writer.close()
    results: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, OutcomeUnknown) for one in results)
    assert all(isinstance(one, TxnFrameworkError) for one in results)


# -- what is needed -----------------------------------------------------------------------------------


def test_an_entry_goes_with_its_last_record() -> None:
    """An entry is needed until all of its records are done; ledgers before the first needed entry can go."""
    live = LiveRecords()
    batch = [RecordPosition(Position(1, 0), index, 3) for index in range(3)]
    later = RecordPosition(Position(4, 2))
    for position in (*batch, later, later):
        live.add(position)
    for position in (batch[1], batch[0], batch[1]):
        live.discard(position)
        assert (len(live), live.first_ledger()) == (2, 1)
    live.discard(batch[2])
    assert (len(live), live.first_ledger()) == (1, 4)
    live.discard(later)
    assert (len(live), live.first_ledger()) == (0, None)
    live.discard(later)
