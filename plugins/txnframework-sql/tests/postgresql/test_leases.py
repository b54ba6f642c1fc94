"""Leases of processes that pause, and during other processes' pauses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import asyncpg
import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import LeaseHeld
from txnframework.interfaces import ILease, IMetadataStore
from txnframework.model import Append, Expect, Key, Put, Step
from txnframework.testing.servers.proxy import Proxy, Side, Tap
from txnframework_sql import LedgerOptions, MetadataOptions, open_ledger_store, open_metadata_store
from txnframework_sql.postgresql._connection import Connection
from txnframework_sql.postgresql._executor import _answer
from txnframework_sql.postgresql._pool import Pool
from txnframework_sql.postgresql._server import locate
from txnframework_sql.steps.leases import Granted, LeaseRequest, acquire_leases, clock_of
from txnframework_sql.steps.statements import NewNumber, RecordChange

if TYPE_CHECKING:
    from conftest import Stores

    Begin = Callable[[IMetadataStore, asyncpg.Connection[asyncpg.Record]], Awaitable[list[asyncio.Task[object]]]]

HOUR_MS = 3_600_000
HEARTBEAT = re.compile(rb"UPDATE \S*sessions\S* SET")
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


async def take_and_give_up(store: IMetadataStore) -> ILease:
    """Acquire the lease and release it."""
    lease = await store.acquire_lease("name", "other")
    await lease.release()
    return lease


async def until_done_or_waiting(connections: Pool, task: asyncio.Task[ILease]) -> None:
    """Return when a task has ended, or its statement waits for another transaction."""
    async with connections.lend() as connection:
        while not task.done() and not (await connection.read(WAITING))[0][0]:  # noqa: ASYNC110 - the server sets no event
            await asyncio.sleep(0.001)


async def perform(connections: Pool, connection: Connection, other: IMetadataStore) -> tuple[int, int]:
    """Acquire the lease, with a pause at the number while another session acquires it; return both numbers."""
    environment = SystemEnvironment()
    taking: asyncio.Task[ILease] | None = None
    request = LeaseRequest((("name", "one"),), "session-one", 60_000, False)
    steps = acquire_leases(request, clock_of(environment.now_ms))
    answer: object = None
    async with connection.transaction():
        try:
            while True:
                call = steps.send(answer)
                answer = None if isinstance(call, RecordChange) else await _answer(connection, call)  # type: ignore[arg-type]
                if isinstance(call, NewNumber):
                    taking = asyncio.create_task(take_and_give_up(other))
                    await until_done_or_waiting(connections, taking)
        except StopIteration as end:
            (granted,) = end.value
    assert isinstance(granted, Granted)
    assert taking is not None
    try:
        return granted.fencing, (await taking).fencing
    except LeaseHeld:
        return granted.fencing, 0


async def test_fencing_grows_over_a_pause(stores: Stores) -> None:
    """A session that pauses between its number and the lease never gets it after a holder with a higher number."""
    connections = Pool(locate(stores.url), SystemEnvironment(), MetadataOptions())
    async with stores.metadata() as other:
        async with connections.lend() as connection:
            later, earlier = await perform(connections, connection, other)
        assert later > earlier
    await connections.close()


async def renewed(raw: asyncpg.Connection[asyncpg.Record], times: int) -> None:
    """Return when the only session has been extended this many times."""
    expiries: set[int] = set()
    while len(expiries) <= times:
        expiries.add(await raw.fetchval("SELECT max(expires_ms) FROM sessions"))


async def test_kept_while_every_append_waits(stores: Stores) -> None:
    """Appends that wait for the locks of more ledgers than there are connections do not block heartbeats."""
    environment, shared = SystemEnvironment(), {"session_ttl_ms": 6_000, "connections_max": 4}
    patient = {"connections_max": 4, "lock_timeout_ms": HOUR_MS, "statement_timeout_ms": HOUR_MS}
    metadata = await open_metadata_store(stores.url, environment, MetadataOptions(**shared))  # type: ignore[arg-type]
    store = await open_ledger_store(stores.url, environment, LedgerOptions(**patient), None)
    ledgers = [await store.create(f"ledger-{number}") for number in range(5)]
    lease = await metadata.acquire_lease("name", "one")
    raw, other = await asyncpg.connect(stores.url), await asyncpg.connect(stores.url)
    async with raw.transaction():
        await raw.execute("SELECT FROM managed_ledgers FOR UPDATE")
        appends = [asyncio.create_task(ledger.append((Append(b"a"),), None)) for ledger in ledgers]
        lost = asyncio.create_task(lease.lost())
        held = asyncio.create_task(renewed(other, 2))
        await asyncio.wait((lost, held), return_when=asyncio.FIRST_COMPLETED)
        assert not lost.done()
        assert not any(append.done() for append in appends)
    await asyncio.gather(*appends)
    lost.cancel()
    await other.close()
    await raw.close()
    await store.close()
    await metadata.close()


async def fill_the_pool(store: IMetadataStore, _: asyncpg.Connection[asyncpg.Record]) -> list[asyncio.Task[object]]:
    """Start more writes than there are connections."""
    puts = [Put(Key(f"/{number}", f"{number}"), b"", Expect.ANY) for number in range(8)]
    return [asyncio.create_task(store.apply(Step((put,)))) for put in puts]


async def acquire_another(store: IMetadataStore, _: asyncpg.Connection[asyncpg.Record]) -> list[asyncio.Task[object]]:
    """Start another acquisition of the same session."""
    return [asyncio.create_task(store.acquire_lease("another", "one"))]


async def leave_an_expired_session(
    store: IMetadataStore, raw: asyncpg.Connection[asyncpg.Record]
) -> list[asyncio.Task[object]]:
    """Leave a session that has expired with a lease, and start an acquisition of that lease."""
    await raw.execute("INSERT INTO sessions (session, expires_ms) VALUES ('dead', 0)")
    await raw.execute("INSERT INTO leases (name, session, holder, fencing) VALUES ('left', 'dead', 'dead', 1)")
    return [asyncio.create_task(store.acquire_lease("left", "one"))]


@pytest.mark.parametrize("begin", [fill_the_pool, acquire_another, leave_an_expired_session])
async def test_kept_while_records_are_locked(stores: Stores, begin: Begin) -> None:
    """Heartbeats wait neither for a free connection, nor for tables and rows that other steps wait for or hold."""
    raw, other = await asyncpg.connect(stores.url), await asyncpg.connect(stores.url)
    async with stores.metadata(
        session_ttl_ms=3_000, connections_max=2, lock_timeout_ms=HOUR_MS, statement_timeout_ms=HOUR_MS
    ) as store:
        lease = await store.acquire_lease("name", "one")
        async with raw.transaction():
            await raw.execute("LOCK TABLE records, entries IN ACCESS EXCLUSIVE MODE")
            working = await begin(store, other)
            while not await other.fetchval(WAITING):
                pass
            lost, held = asyncio.create_task(lease.lost()), asyncio.create_task(renewed(other, 3))
            await asyncio.wait((lost, held), return_when=asyncio.FIRST_COMPLETED)
            assert not lost.done()
            assert not any(work.done() for work in working)
        await asyncio.gather(*working)
        assert not lost.done()
        lost.cancel()
    await other.close()
    await raw.close()


class HeartbeatTap(Tap):
    """A connection that no reply passes after its first heartbeat, if it was the first one of ``seen``."""

    def __init__(self, seen: list[HeartbeatTap], beats: asyncio.Event) -> None:
        self._seen = seen
        self._beats = beats

    def passes(self, sender: Side, data: bytes) -> bytes:
        if sender is Side.CLIENT and HEARTBEAT.search(data) and self not in self._seen:
            self._seen.append(self)
            if len(self._seen) > 1:
                self._beats.set()
        return b"" if self in self._seen[:1] else data


async def test_a_heartbeat_connection_that_hangs(stores: Stores) -> None:
    """Heartbeats go on over another connection within the time of a session, whatever a statement may take."""
    seen: list[HeartbeatTap] = []
    beats = asyncio.Event()
    async with Proxy(("127.0.0.1", stores.server.port), lambda: HeartbeatTap(seen, beats)) as proxy:
        url = stores.server.url_of(stores.database, proxy.address[1])
        async with stores.metadata(url, session_ttl_ms=1_500, statement_timeout_ms=HOUR_MS) as store:
            going_on = asyncio.create_task(beats.wait())
            while not going_on.done():
                lease = await store.acquire_lease("name", "one")
                lost = asyncio.create_task(lease.lost())
                await asyncio.wait((lost, going_on), return_when=asyncio.FIRST_COMPLETED)
                lost.cancel()
