"""The executor of a SQLite file, the operations on records, and the registry of this process's database threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from txnframework.environment import Environment
from txnframework.errors import Closed, Unavailable
from txnframework.model import Delete, IndexRange, Key, KeyRange, Put, Record, RecordPage, Step
from txnframework.model.diagnoses import Diagnosis
from txnframework.runtime.call_groups import copy_error
from txnframework_sql._database import Joins, Records
from txnframework_sql._leases import LeaseSession
from txnframework_sql._options import DatabaseOptions, LedgerOptions, MetadataOptions, ledger_options_of
from txnframework_sql._watch import Watches
from txnframework_sql.application._sqlite import SqliteJoins
from txnframework_sql.sqlite._connection import SqliteConnection
from txnframework_sql.sqlite._entries import SharingExecutor, SqliteEntries
from txnframework_sql.sqlite._errors import DATABASE_ERRORS, translated
from txnframework_sql.sqlite._jobs import IJob, Job, RepeatedWrite, SharedJob, SharedWork, Work
from txnframework_sql.sqlite._leases import SqliteLeaseSession
from txnframework_sql.sqlite._location import Location
from txnframework_sql.sqlite._poller import Poller
from txnframework_sql.sqlite._schema import ensure_current
from txnframework_sql.sqlite._thread import DatabaseThread
from txnframework_sql.steps import records
from txnframework_sql.steps.leases import Clock, clock_of
from txnframework_sql.steps.statements import Observer


class SqliteRecords:
    """Operations on records; the writes of one turn of the event loop share their steps."""

    def __init__(self, executor: SharingExecutor, options: MetadataOptions) -> None:
        self._executor = executor
        self._entries = SqliteEntries(executor, ledger_options_of(options))

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        return await self._executor.read(lambda: records.get_record(key))

    async def put(self, write: Put) -> int:
        """Write a record and its index entries; return its new version."""
        return (await self.apply(Step(puts=(write,))))[0].version

    async def delete(self, part: Delete) -> None:
        """Delete a record and its index entries."""
        await self.apply(Step(deletes=(part,)))

    async def apply(self, step: Step) -> tuple[Record, ...]:
        """Make a step of records."""
        return (await self._entries.apply(step, 0)).records

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        return await self._executor.read(lambda: records.scan_records(keys, items_max))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        return await self._executor.read(lambda: records.scan_index_entries(entries, items_max))

    async def close(self) -> None:
        """Return immediately: the executor waits for its own running operations."""


C = TypeVar("C")
T = TypeVar("T")

Kind = type[SqliteConnection]
"""The class that opens files; tests pass one that injects faults."""


@dataclass(slots=True)
class _SharedThread:
    thread: DatabaseThread
    users: int = 0


@dataclass(slots=True)
class OpenThreads:
    """
    The threads of this process by database; each lives as long as a store uses it.

    Two connections of one process to one file would wait for each other's locks. Stores that share one connection share
    its commits instead.
    """

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _shared: dict[Hashable, _SharedThread] = field(default_factory=dict)
    _left_to_parent: list[_SharedThread] = field(default_factory=list)

    def take(self, location: Location, options: DatabaseOptions, new_identity: str, kind: Kind) -> DatabaseThread:
        """Return the thread of a database, started if there is none; the caller must return it with ``give_back``."""

        def connect() -> SqliteConnection:
            return _connect(location, options, new_identity, kind)

        if not options.share_connection:
            return DatabaseThread(connect, options.group_max)
        key = (location.path, options.lock_timeout_ms, options.group_max, kind)
        with self._lock:
            shared = self._shared.get(key)
            if shared is None or shared.thread.is_dead:
                shared = self._shared[key] = _SharedThread(DatabaseThread(connect, options.group_max))
            shared.users += 1
            return shared.thread

    def give_back(self, thread: DatabaseThread) -> bool:
        """Release a thread, and stop it after its last user; return whether it is stopping."""
        with self._lock:
            for key, shared in self._shared.items():
                if shared.thread is thread:
                    shared.users -= 1
                    if shared.users:
                        return False
                    del self._shared[key]
                    break
        thread.stop()
        return True

    def forget(self) -> None:
        """
        Start empty in a child process: it does not inherit the threads, and their connections belong to the parent.
        """
        self._left_to_parent.extend(self._shared.values())
        self._shared = {}
        self._lock = threading.Lock()


# Shared by all openings in a process.
_open_threads = OpenThreads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_threads.forget)


class SqliteDatabase:
    """
    The executor of a SQLite file: work runs on its thread, and the caller waits for it.

    :raises Closed: it was closed, this process was forked from the one that opened it, or this is another event loop.
    """

    def __init__(self, thread: DatabaseThread, location: Location, options: DatabaseOptions) -> None:
        self.shown_url = location.shown_url
        self._location = location
        self._thread = thread
        self._poll_ms = options.poll_ms
        self._slots = asyncio.Semaphore(options.queue_max)
        # Jobs of this turn of the loop: one wake-up of the thread for all of them, and one group.
        self._gathered: list[IJob] = []
        self._gathered_shared: dict[SharedWork[Any, Any], SharedJob[Any, Any]] = {}
        self._group_max = options.group_max
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._is_closed = False

    @classmethod
    async def open(
        cls, location: Location, options: DatabaseOptions, new_identity: str, kind: Kind = SqliteConnection
    ) -> SqliteDatabase:
        """Open the database; create it, with ``new_identity``, if it does not exist."""
        thread = _open_threads.take(location, options, new_identity, kind)
        try:
            await asyncio.wrap_future(thread.started)
        except BaseException:
            _open_threads.give_back(thread)
            raise
        return cls(thread, location, options)

    has_one_writer = True

    async def diagnose(self, _: int) -> tuple[Diagnosis, ...]:
        """Return nothing: a file has no sessions that could be asked."""
        return ()

    @property
    def location(self) -> object:
        """What stores share whose steps can be one: the thread of the file's connection."""
        return self._thread

    @property
    def commits(self) -> int:
        """The number of commits of the connection, for all its users."""
        return self._thread.commits

    @property
    def jobs_received(self) -> int:
        """The number of jobs that the connection received, from all its users."""
        return self._thread.jobs_received

    @property
    def is_idle(self) -> bool:
        """Whether the connection has nothing to do for any of its users."""
        return self._thread.is_idle

    async def read(self, work: Work[T]) -> T:
        """Return the result of steps that read one view; the view holds every write confirmed before this call."""
        return await self._run(work, is_write=False)

    async def write(self, work: Work[T]) -> T:
        """
        Return the result of the steps once their writes are durable.

        Steps raise before they write, or all their writes are rolled back.
        """
        return await self._run(work, is_write=True)

    async def write_urgently(self, work: Work[T]) -> T:
        """Return the result of the steps as ``write`` does, without a turn in the queues of the loop and the thread."""
        self.require_open()
        future: asyncio.Future[T] = self._loop.create_future()
        self._thread.put([Job(work, True, self._loop, future)], is_urgent=True)
        return await future

    async def share(self, work: SharedWork[C, T], call: C, is_write: bool) -> T:
        """
        Return the result of a call, or raise its error; calls of one turn of the loop with equal ``work`` share steps.

        They read one view, or are durable with one commit. Each caller of ``work`` passes the same ``is_write``.
        """
        if self._slots.locked():
            self.require_open()
        async with self._slots:
            self.require_open()
            future: asyncio.Future[T] = self._loop.create_future()
            job = self._gathered_shared.get(work)
            if job is None or len(job.calls) >= self._group_max:
                job = self._gathered_shared[work] = SharedJob(work, is_write, self._loop, [])
                self._gather(job)
            job.calls.append((call, future))
            return await future

    def observe(self, observer: Observer) -> None:
        """Call ``observer``, on the database's thread, after every commit of this connection."""
        self._thread.observe(observer)

    def ignore(self, observer: Observer) -> None:
        """Stop calling ``observer``."""
        self._thread.ignore(observer)

    def repeat(self, write: RepeatedWrite) -> Callable[[], None]:
        """Perform ``write`` on the database's thread until the returned function is called."""
        self._thread.repeat(write)
        return lambda: self._thread.drop(write)

    def records(self, options: MetadataOptions) -> Records:
        """Return the operations on records, performed as steps."""
        return SqliteRecords(self, options)

    def clock(self, environment: Environment) -> Clock:
        """Return the clock of the machine, which all users of the file share."""
        return clock_of(environment.now_ms)

    def lease_session(self, environment: Environment, name: str, ttl_ms: int, clock: Clock) -> LeaseSession:
        """Return a new session, which the thread renews while the event loop is busy."""
        return SqliteLeaseSession(self, environment, name, ttl_ms, clock)

    def wake_ups(self, watches: Watches, environment: Environment) -> Poller:
        """Return the wake-ups, which poll for commits of other processes."""
        return Poller(watches, self, environment, self._poll_ms)

    def joins(self, _: Environment, __: MetadataOptions) -> Joins:
        """Return what joins the transactions of applications in this file."""
        return SqliteJoins(self._location, self._thread.changed)

    async def close(self) -> None:
        """Finish the running operations and release the database; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._process != os.getpid():
            return
        self._put_gathered()
        if _open_threads.give_back(self._thread):
            await asyncio.wrap_future(self._thread.stopped)
            self._thread.join()

    def entries(self, options: LedgerOptions) -> SqliteEntries:
        """Return the operations that append and read entries, performed as steps."""
        return SqliteEntries(self, options)

    def require_open(self) -> None:
        """Raise Closed if this can no longer be used, or belongs to another process or event loop."""
        if self._is_closed:
            raise Closed(f"the store {self.shown_url} was closed")
        if self._process != os.getpid():
            raise Closed(
                f"the store {self.shown_url} was opened before this process was forked, and belongs to its parent"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise Closed(
                f"the store {self.shown_url} belongs to the event loop that opened it; open it again in this one"
            )

    async def _run(self, work: Work[T], is_write: bool) -> T:
        if self._slots.locked():
            self.require_open()
        async with self._slots:
            self.require_open()
            future: asyncio.Future[T] = self._loop.create_future()
            self._gather(Job(work, is_write, self._loop, future))
            return await future

    def _gather(self, job: IJob) -> None:
        if not self._gathered:
            self._loop.call_soon(self._put_gathered)
        self._gathered.append(job)

    def _put_gathered(self) -> None:
        """Pass the jobs of this turn of the loop to the thread."""
        jobs, self._gathered = self._gathered, []
        self._gathered_shared.clear()
        if not jobs:
            return
        try:
            self._thread.put(jobs)
        except Unavailable as error:
            for job in jobs:
                job.answer(None, copy_error(error, None))


def _connect(location: Location, options: DatabaseOptions, new_identity: str, kind: Kind) -> SqliteConnection:
    """Open the file on the calling thread, and ensure that it has the schema of this release."""
    try:
        database = kind(location, options.lock_timeout_ms)
        try:
            ensure_current(database, new_identity)
            database.use_write_ahead_log()
        except BaseException:
            database.close()
            raise
    except DATABASE_ERRORS as error:
        raise translated(error, location.shown_url) from error
    return database
