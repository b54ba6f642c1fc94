"""A PostgreSQL database: its opening, the pools that its stores share, and its operations."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Hashable

from sqlalchemy import text

from txnframework.environment import Environment
from txnframework.model.diagnoses import Diagnosis
from txnframework_sql._database import Joins, Records
from txnframework_sql._leases import LeaseSession
from txnframework_sql._options import DatabaseOptions, LedgerOptions, MetadataOptions, PostgresqlOptions
from txnframework_sql._watch import Watches
from txnframework_sql.application._postgresql import PostgresqlJoins
from txnframework_sql.postgresql._diagnoses import diagnose
from txnframework_sql.postgresql._entries import PostgresqlEntries
from txnframework_sql.postgresql._executor import PostgresqlExecutor
from txnframework_sql.postgresql._leases import PostgresqlLeaseSession, reply_timeout_s
from txnframework_sql.postgresql._listener import ListenerWakeUps
from txnframework_sql.postgresql._pool import Pool
from txnframework_sql.postgresql._records import PostgresqlRecords
from txnframework_sql.postgresql._schema import ensure_current, ensure_functions, stored_channel
from txnframework_sql.postgresql._server import Server, locate
from txnframework_sql.steps.leases import Clock
from txnframework_sql.steps.statements import Steps, row

_NOW = text("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")


class OpenPools:
    """
    Pools by event loop and database; each lives as long as a store uses it.

    An event loop accesses only its own pools, so threads do not share any.
    """

    def __init__(self) -> None:
        self._shared: dict[Hashable, Pool] = {}
        self._left_to_parent: list[Pool] = []

    def take(self, server: Server, environment: Environment, options: PostgresqlOptions, *, is_shared: bool) -> Pool:
        """Return this loop's pool of a database; the caller must return it with ``give_back``."""
        if not is_shared:
            return Pool(server, environment, options)
        wanted = tuple(getattr(options, name) for name in PostgresqlOptions.__struct_fields__)
        key = (asyncio.get_running_loop(), server, id(environment), wanted)
        if key not in self._shared:
            self._shared[key] = Pool(server, environment, options)
        self._shared[key].stores += 1
        return self._shared[key]

    async def give_back(self, pool: Pool) -> None:
        """Release a pool; the last user closes it."""
        pool.stores -= 1
        if pool.stores > 0:
            return
        for key, shared in tuple(self._shared.items()):
            if shared is pool:
                del self._shared[key]
        await pool.close()

    def forget(self) -> None:
        """Start empty in a child process: the parent's sockets must not be touched, not even closed."""
        self._left_to_parent.extend(self._shared.values())
        self._shared = {}


# Shared by all openings in a process.
open_pools = OpenPools()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=open_pools.forget)


class PostgresqlDatabase(PostgresqlExecutor):
    """
    A database that stores were opened on.

    Frequent operations do not use steps: each is one statement, usually a function in the database.
    """

    has_one_writer = False

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        # The pools of single connections that serve one purpose only.
        self._apart: list[Pool] = []

    @classmethod
    async def open(
        cls, url: str, environment: Environment, options: DatabaseOptions, new_identity: str
    ) -> PostgresqlDatabase:
        """Connect to a database; create the tables of an empty one, with ``new_identity``."""
        pool = open_pools.take(locate(url), environment, options, is_shared=options.share_connection)
        try:
            async with pool.lend() as connection:
                await ensure_current(connection, new_identity, pool.shown_url)
                await ensure_functions(connection, pool.shown_url)
                pool.notify_on(await stored_channel(connection, pool.shown_url))
        except BaseException:
            await open_pools.give_back(pool)
            raise
        return cls(pool)

    def records(self, options: MetadataOptions) -> Records:
        """Return the operations on records, each of which is one statement."""
        return PostgresqlRecords(self, options)

    @property
    def location(self) -> object:
        """The schema on its server, which every connection of this login can change."""
        return self.pool.server, self.pool.schema

    def entries(self, options: LedgerOptions) -> PostgresqlEntries:
        """Return the operations that append and read entries, by one statement each."""
        return PostgresqlEntries(self, options)

    def clock(self, _: Environment) -> Clock:
        """Return the database's clock: its users run on several machines."""
        return _clock

    def lease_session(self, environment: Environment, name: str, ttl_ms: int, clock: Clock) -> LeaseSession:
        """Return a new session, which the event loop renews over a connection of its own."""
        heartbeats = PostgresqlExecutor(self.pool.apart(reply_timeout_s(ttl_ms)))
        self._apart.append(heartbeats.pool)
        return PostgresqlLeaseSession(self, heartbeats, environment, name, ttl_ms, clock)

    def wake_ups(self, watches: Watches, _: Environment) -> ListenerWakeUps:
        """Return the wake-ups by notifications of other processes' commits."""
        return ListenerWakeUps(self.pool.listener, watches)

    def joins(self, environment: Environment, options: MetadataOptions) -> Joins:
        """Return what joins the transactions of applications in this database."""
        return PostgresqlJoins(self, environment, options.commit_pause_max_ms)

    async def diagnose(self, age_ms_min: int) -> tuple[Diagnosis, ...]:
        """Return the sessions that keep the server from removing old versions of rows."""
        return await diagnose(self.pool, age_ms_min)

    async def close(self) -> None:
        """Finish the running operations and release the database; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            try:
                for pool in self._apart:
                    await pool.close()
            finally:
                await open_pools.give_back(self.pool)


def _clock() -> Steps[int]:
    found = yield from row(_NOW)
    assert found is not None
    return int(found[0])
