"""
The thread that uses a database, and the only bridge between it and asyncio.

Jobs that wait when the thread becomes free are executed together. The reads share one view; then the writes share one
transaction, with one commit and one fsync. A write is confirmed after that commit. A write that fails alone, such as by
a version mismatch, does not affect the others.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from typing import Any

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework_sql._database import Observer, copy_of
from txnframework_sql.sqlite._database import SqliteDatabase
from txnframework_sql.sqlite._errors import DATABASE_ERRORS, commit_lost, translated
from txnframework_sql.sqlite._jobs import Job, Outcome, attempt, deliver, failed


class DatabaseThread:
    """
    Opens a database in a thread of its own, executes jobs on it, and closes it there.

    ``started`` completes when the database is open, or with the error of the opening.
    """

    def __init__(self, connect: Callable[[], SqliteDatabase], group_max: int) -> None:
        self.started: ThreadFuture[None] = ThreadFuture()
        self.stopped: ThreadFuture[None] = ThreadFuture()
        for told in (self.started, self.stopped):
            # Several callers may wait for it: a cancelled one must not cancel it for the others and for the thread.
            told.set_running_or_notify_cancel()
        self.commits = 0
        self.asked = 0
        self._connect = connect
        self._group_max = group_max
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._observers: tuple[Observer, ...] = ()
        self._observers_lock = threading.Lock()
        # A job is either executed by the thread or refused: no job is added after the last read of the queue.
        self._end_lock = threading.Lock()
        self._is_dead = False
        # A commit failed, and it is not decided yet whether it took effect.
        self._is_unsettled = False
        # A program that forgets to close must still be able to exit.
        self._thread = threading.Thread(target=self._run, name="txnframework-sql", daemon=True)
        self._thread.start()

    # -- called from event loops --------------------------------------------------------------------

    def put(self, job: Job[Any]) -> None:
        """Queue a job; its future is set in its loop. Raise Unavailable if the thread has ended."""
        with self._end_lock:
            if self._is_dead:
                raise Unavailable("the connection to the database has broken down; open the store again")
            self.asked += 1
            self._jobs.put(job)

    @property
    def is_dead(self) -> bool:
        """Whether the thread has ended, or failed to open its database."""
        return self._is_dead

    def stop(self) -> None:
        """Close the database after the jobs queued before; ``stopped`` then completes."""
        self._jobs.put(None)

    def join(self) -> None:
        """Wait for the end of the thread, which follows ``stopped`` at once."""
        self._thread.join()

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` after every commit of this connection."""
        with self._observers_lock:
            self._observers = (*self._observers, observer)

    def ignore(self, observer: Observer) -> None:
        """Stop calling ``observer``."""
        with self._observers_lock:
            self._observers = tuple(known for known in self._observers if known != observer)

    # -- the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        # Only this frame holds the connection. After a fork the frame does not continue in the child and is never
        # cleaned up there. So a child cannot close, and thereby damage, its parent's connection.
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
        self, execute: Callable[[SqliteDatabase, list[Job[Any]]], None], database: SqliteDatabase, jobs: list[Job[Any]]
    ) -> None:
        """Execute a group; every job gets an outcome in any case, and only the end of the thread is raised."""
        try:
            execute(database, jobs)
        except BaseException as error:
            with suppress(Exception):
                database.rollback()
            self._is_unsettled = True
            text = f"{database.shown_url} failed unexpectedly: {type(error).__name__}"
            # Answered jobs keep their outcome; for the others a commit may have taken effect.
            deliver(
                [
                    Outcome(job, error=copy_of(OutcomeUnknown(text) if job.is_write else Unavailable(text), error))
                    for job in jobs
                ]
            )
            if not isinstance(error, Exception):
                raise

    def _fail_rest(self, shown_url: str) -> None:
        """Answer the remaining jobs at the end of the thread; there are some only if the thread failed."""
        with self._end_lock:
            self._is_dead = True
        while not self._jobs.empty():
            if (job := self._jobs.get()) is not None:
                deliver([Outcome(job, error=Unavailable(f"the connection to {shown_url} broke down"))])

    def _take(self) -> list[Job[Any] | None]:
        """Wait for a job, and take all waiting jobs with it; a None at the end requests the stop."""
        jobs = [self._jobs.get()]
        while jobs[-1] is not None and len(jobs) < self._group_max:
            try:
                jobs.append(self._jobs.get_nowait())
            except queue.Empty:
                break
        return jobs

    def _read(self, database: SqliteDatabase, jobs: list[Job[Any]]) -> None:
        """Execute reading jobs in one view, taken after all of them were queued."""
        if not jobs:
            return
        outcomes: list[Outcome] = []
        try:
            self._settle(database)
            database.begin_read()
            for job in jobs:
                # An error may end the transaction implicitly, and its view: the following jobs get another view.
                if not database.in_transaction:
                    database.begin_read()
                outcomes.append(attempt(database, job))
            database.rollback()
        except DATABASE_ERRORS as error:
            outcomes += failed(jobs[len(outcomes) :], translated(error, database.shown_url), error)
        deliver(outcomes)

    def _write(self, database: SqliteDatabase, jobs: list[Job[Any]]) -> None:
        """Execute writes with one commit; if one of them fails midway, commit each separately."""
        if not jobs:
            return
        outcomes = self._commit_together(database, jobs)
        if outcomes is None:
            outcomes = [outcome for job in jobs for outcome in self._commit_together(database, [job]) or ()]
        changes = tuple(change for outcome in outcomes for change in outcome.changes)
        if changes:
            for observer in self._observers:
                observer(changes)
        deliver(outcomes)

    def _commit_together(self, database: SqliteDatabase, jobs: list[Job[Any]]) -> list[Outcome] | None:
        """Return the outcome of each job; None, with nothing changed, if one of several failed after it had written."""
        try:
            self._settle(database)
            database.begin_write()
        except DATABASE_ERRORS as error:
            return failed(jobs, translated(error, database.shown_url), error)
        outcomes: list[Outcome] = []
        for job in jobs:
            before = database.writes
            outcome = attempt(database, job)
            if outcome.error is not None and (database.writes != before or not database.in_transaction):
                self._undo(database)
                return None if len(jobs) > 1 else [outcome]
            outcomes.append(outcome)
        return self._commit(database, outcomes)

    def _commit(self, database: SqliteDatabase, outcomes: list[Outcome]) -> list[Outcome]:
        """Commit; if that fails, every job that had succeeded fails with it."""
        try:
            database.commit()
            self.commits += 1
        except DATABASE_ERRORS as error:
            # Still in the transaction: COMMIT did not begin, and a rollback makes that certain. Otherwise the log may
            # hold the commit, and may or may not keep it through a crash.
            surely_undone = database.in_transaction and self._undo(database)
            told = translated(error, database.shown_url) if surely_undone else commit_lost(error, database.shown_url)
            for outcome in outcomes:
                if outcome.error is None:
                    # Its changes are kept: a possible change wakes watches as well.
                    outcome.error = copy_of(told, error)
            if not surely_undone:
                self._is_unsettled = True
                with suppress(*DATABASE_ERRORS):
                    self._settle(database)
        return outcomes

    def _settle(self, database: SqliteDatabase) -> None:
        """
        Decide permanently whether a lost commit took effect, before any job reads.

        Until then a read might not find the commit, although the recovery after a crash would restore it.
        """
        if self._is_unsettled:
            try:
                database.begin_write()
                database.overwrite_lost()
                database.commit()
            except DATABASE_ERRORS:
                self._undo(database)
                raise
            self._is_unsettled = False

    @staticmethod
    def _undo(database: SqliteDatabase) -> bool:
        """Roll back; return whether the rollback is certain."""
        try:
            database.rollback()
        except DATABASE_ERRORS:
            return False
        return True
