"""
The thread that drives a database, and the only bridge between it and asyncio.

Whatever waits when the thread is free is executed together: the reads in one view, then the writes in one transaction
with one commit, which is one fsync for all of them. A write is confirmed after that commit. A write that fails alone
(such as by a version that differs) leaves the others as they are.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from txnframework.errors import OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework_sql._changes import Change
from txnframework_sql._database import Database
from txnframework_sql._errors import DATABASE_ERRORS, commit_lost, translated

T = TypeVar("T")

Work = Callable[[Database], T]
"""What is done on the thread. It may be called again, if the group it was in had to be undone."""

Observer = Callable[[tuple[Change, ...]], None]
"""Called on the thread after a commit with what it changed; must be quick and not raise."""


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """One piece of work and who waits for it."""

    work: Work[T]
    is_write: bool
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]


@dataclass(slots=True)
class _Outcome:
    job: Job[Any]
    value: Any = None
    error: BaseException | None = None
    changes: tuple[Change, ...] = ()


class DatabaseThread:
    """
    Opens a database in a thread of its own, executes jobs on it, and closes it there.

    ``started`` is done when the database is open, or has the error with which that failed.
    """

    def __init__(self, connect: Callable[[], Database], group_max: int) -> None:
        self.started: ThreadFuture[None] = ThreadFuture()
        self.stopped: ThreadFuture[None] = ThreadFuture()
        self.commits = 0
        self._connect = connect
        self._group_max = group_max
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._observers: tuple[Observer, ...] = ()
        self._observers_lock = threading.Lock()
        # A job is either taken by the thread, or refused: none is put after the last look at the queue.
        self._end_lock = threading.Lock()
        self._is_dead = False
        # A program that forgets to close must still be able to end.
        self._thread = threading.Thread(target=self._run, name="txnframework-sql", daemon=True)
        self._thread.start()

    # -- called from event loops --------------------------------------------------------------------

    def put(self, job: Job[Any]) -> None:
        """Let a job be executed; its future is set in its loop. Raises Unavailable if the thread has ended."""
        with self._end_lock:
            if self._is_dead:
                raise Unavailable("the connection to the database has broken down; open the store again")
            self._jobs.put(job)

    @property
    def is_dead(self) -> bool:
        """Whether it has ended, or never opened its database."""
        return self._is_dead

    def stop(self) -> None:
        """Close the database after the jobs that were put before; ``stopped`` is then done."""
        self._jobs.put(None)

    def join(self) -> None:
        """Wait for the end of the thread, which comes at once after ``stopped``."""
        self._thread.join()

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` after every commit of this connection."""
        with self._observers_lock:
            self._observers = (*self._observers, observer)

    def ignore(self, observer: Observer) -> None:
        """Do not call ``observer`` any more."""
        with self._observers_lock:
            self._observers = tuple(known for known in self._observers if known != observer)

    # -- the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        # The connection is held by this frame alone. After a fork the frame does not go on in the child and is never
        # cleaned up there, so a child cannot close, and thereby damage, what belongs to its parent.
        try:
            database = self._connect()
        except BaseException as error:
            self._is_dead = True
            self.started.set_exception(error)
            self.stopped.set_result(None)
            return
        self.started.set_result(None)
        try:
            while jobs := self._take():
                live = [job for job in jobs if job is not None and not job.future.cancelled()]
                self._answer(self._read, database, [job for job in live if not job.is_write])
                self._answer(self._write, database, [job for job in live if job.is_write])
                if jobs[-1] is None:
                    break
        finally:
            try:
                database.close()
            finally:
                self._fail_rest(database.shown_url)
                self.stopped.set_result(None)

    def _answer(
        self, execute: Callable[[Database, list[Job[Any]]], None], database: Database, jobs: list[Job[Any]]
    ) -> None:
        """Execute a group; whatever happens, everybody in it gets an answer, and only the end of the thread ends it."""
        try:
            execute(database, jobs)
        except BaseException as error:
            with suppress(Exception):
                database.rollback()
            text = f"{database.shown_url} failed unexpectedly: {type(error).__name__}"
            # Those that were answered keep their answer; for the others a commit may have been made.
            _deliver(
                [
                    _Outcome(job, error=_own(OutcomeUnknown(text) if job.is_write else Unavailable(text), error))
                    for job in jobs
                ]
            )
            if not isinstance(error, Exception):
                raise

    def _fail_rest(self, shown_url: str) -> None:
        """Answer what nobody will execute any more, which is something only if this thread broke down."""
        with self._end_lock:
            self._is_dead = True
        while not self._jobs.empty():
            if (job := self._jobs.get()) is not None:
                _deliver([_Outcome(job, error=Unavailable(f"the connection to {shown_url} broke down"))])

    def _take(self) -> list[Job[Any] | None]:
        """Wait for a job, and take all that wait with it; a last None says to stop."""
        jobs = [self._jobs.get()]
        while jobs[-1] is not None and len(jobs) < self._group_max:
            try:
                jobs.append(self._jobs.get_nowait())
            except queue.Empty:
                break
        return jobs

    def _read(self, database: Database, jobs: list[Job[Any]]) -> None:
        """Execute jobs that change nothing in one view, taken after all of them were asked for."""
        if not jobs:
            return
        try:
            database.begin_read()
            outcomes = [_attempt(database, job) for job in jobs]
            database.rollback()
        except DATABASE_ERRORS as error:
            outcomes = _failed(jobs, translated(error, database.shown_url), error)
        _deliver(outcomes)

    def _write(self, database: Database, jobs: list[Job[Any]]) -> None:
        """Execute writes with one commit; if one of them fails half way, each with a commit of its own."""
        if not jobs:
            return
        outcomes = self._commit_together(database, jobs)
        if outcomes is None:
            outcomes = [outcome for job in jobs for outcome in self._commit_together(database, [job]) or ()]
        changes = tuple(change for outcome in outcomes for change in outcome.changes)
        if changes:
            for observer in self._observers:
                observer(changes)
        _deliver(outcomes)

    def _commit_together(self, database: Database, jobs: list[Job[Any]]) -> list[_Outcome] | None:
        """Return what became of each job; None, and nothing changed, if one of several failed after it had written."""
        try:
            database.begin_write()
        except DATABASE_ERRORS as error:
            return _failed(jobs, translated(error, database.shown_url), error)
        outcomes: list[_Outcome] = []
        for job in jobs:
            before = database.writes
            outcome = _attempt(database, job)
            if outcome.error is not None and (database.writes != before or not database.in_transaction):
                self._undo(database)
                return None if len(jobs) > 1 else [outcome]
            outcomes.append(outcome)
        return self._commit(database, outcomes)

    def _commit(self, database: Database, outcomes: list[_Outcome]) -> list[_Outcome]:
        """Commit; if that fails, every job that had succeeded fails with it."""
        try:
            database.commit()
            self.commits += 1
        except DATABASE_ERRORS as error:
            # Still in the transaction: COMMIT did not begin, and undoing makes that sure. Otherwise the log may hold
            # the commit, and may or may not keep it through a crash.
            surely_undone = database.in_transaction and self._undo(database)
            told = translated(error, database.shown_url) if surely_undone else commit_lost(error, database.shown_url)
            for outcome in outcomes:
                if outcome.error is None:
                    # What it changed is kept: watches wake for what may have happened, too.
                    outcome.error = _own(told, error)
        return outcomes

    @staticmethod
    def _undo(database: Database) -> bool:
        """Roll back; return whether that is sure."""
        try:
            database.rollback()
        except DATABASE_ERRORS:
            return False
        return True


def _attempt(database: Database, job: Job[Any]) -> _Outcome:
    """Execute one job within a transaction."""
    database.changes = []
    try:
        value = job.work(database)
    except DATABASE_ERRORS as error:
        return _failed([job], translated(error, database.shown_url), error)[0]
    except Exception as error:  # Whoever asked is told; the thread goes on.
        return _Outcome(job, error=error)
    return _Outcome(job, value, changes=tuple(database.changes))


def _failed(jobs: Iterable[Job[Any]], error: TxnFrameworkError, cause: BaseException) -> list[_Outcome]:
    return [_Outcome(job, error=_own(error, cause)) for job in jobs]


def _own(error: TxnFrameworkError, cause: BaseException) -> TxnFrameworkError:
    """Return an exception for one caller: raising one object in several tasks would mix up their tracebacks."""
    own = type(error)(*error.args)
    own.__cause__ = cause
    return own


def _deliver(outcomes: list[_Outcome]) -> None:
    """Set the futures, with one call into each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome.job.loop, []).append(outcome)
    for loop, own in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_all, own)
        except RuntimeError:
            # The loop was closed; nobody waits in it any more.
            continue


def _set_all(outcomes: list[_Outcome]) -> None:
    for outcome in outcomes:
        future = outcome.job.future
        if future.done():
            continue
        if outcome.error is not None:
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome.value)
