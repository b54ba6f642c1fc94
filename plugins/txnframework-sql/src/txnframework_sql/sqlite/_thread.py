"""
The thread that drives a database, and the only bridge between it and asyncio.

Whatever waits when the thread is free is executed together: the reads in one view, then the writes in one transaction
with one commit, which is one fsync for all of them. A write is confirmed after that commit. A write that fails alone
(such as by a version that differs) leaves the others as they are.
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

    ``started`` is done when the database is open, or has the error with which that failed.
    """

    def __init__(self, connect: Callable[[], SqliteDatabase], group_max: int) -> None:
        self.started: ThreadFuture[None] = ThreadFuture()
        self.stopped: ThreadFuture[None] = ThreadFuture()
        for told in (self.started, self.stopped):
            # Several may wait for it: one that is cancelled must not cancel it for the others and for the thread.
            told.set_running_or_notify_cancel()
        self.commits = 0
        self.asked = 0
        self._connect = connect
        self._group_max = group_max
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._observers: tuple[Observer, ...] = ()
        self._observers_lock = threading.Lock()
        # A job is either taken by the thread, or refused: none is put after the last look at the queue.
        self._end_lock = threading.Lock()
        self._is_dead = False
        # A commit was lost, and it is not decided yet whether it happened.
        self._is_unsettled = False
        # A program that forgets to close must still be able to end.
        self._thread = threading.Thread(target=self._run, name="txnframework-sql", daemon=True)
        self._thread.start()

    # -- called from event loops --------------------------------------------------------------------

    def put(self, job: Job[Any]) -> None:
        """Let a job be executed; its future is set in its loop. Raises Unavailable if the thread has ended."""
        with self._end_lock:
            if self._is_dead:
                raise Unavailable("the connection to the database has broken down; open the store again")
            self.asked += 1
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
        self, execute: Callable[[SqliteDatabase, list[Job[Any]]], None], database: SqliteDatabase, jobs: list[Job[Any]]
    ) -> None:
        """Execute a group; whatever happens, everybody in it gets an answer, and only the end of the thread ends it."""
        try:
            execute(database, jobs)
        except BaseException as error:
            with suppress(Exception):
                database.rollback()
            self._is_unsettled = True
            text = f"{database.shown_url} failed unexpectedly: {type(error).__name__}"
            # Those that were answered keep their answer; for the others a commit may have been made.
            deliver(
                [
                    Outcome(job, error=copy_of(OutcomeUnknown(text) if job.is_write else Unavailable(text), error))
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
                deliver([Outcome(job, error=Unavailable(f"the connection to {shown_url} broke down"))])

    def _take(self) -> list[Job[Any] | None]:
        """Wait for a job, and take all that wait with it; a last None says to stop."""
        jobs = [self._jobs.get()]
        while jobs[-1] is not None and len(jobs) < self._group_max:
            try:
                jobs.append(self._jobs.get_nowait())
            except queue.Empty:
                break
        return jobs

    def _read(self, database: SqliteDatabase, jobs: list[Job[Any]]) -> None:
        """Execute jobs that change nothing in one view, taken after all of them were asked for."""
        if not jobs:
            return
        outcomes: list[Outcome] = []
        try:
            self._settle(database)
            database.begin_read()
            for job in jobs:
                # An error may end the transaction by itself, and the view with it: those behind it get another one.
                if not database.in_transaction:
                    database.begin_read()
                outcomes.append(attempt(database, job))
            database.rollback()
        except DATABASE_ERRORS as error:
            outcomes += failed(jobs[len(outcomes) :], translated(error, database.shown_url), error)
        deliver(outcomes)

    def _write(self, database: SqliteDatabase, jobs: list[Job[Any]]) -> None:
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
        deliver(outcomes)

    def _commit_together(self, database: SqliteDatabase, jobs: list[Job[Any]]) -> list[Outcome] | None:
        """Return what became of each job; None, and nothing changed, if one of several failed after it had written."""
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
            # Still in the transaction: COMMIT did not begin, and undoing makes that sure. Otherwise the log may hold
            # the commit, and may or may not keep it through a crash.
            surely_undone = database.in_transaction and self._undo(database)
            told = translated(error, database.shown_url) if surely_undone else commit_lost(error, database.shown_url)
            for outcome in outcomes:
                if outcome.error is None:
                    # What it changed is kept: watches wake for what may have happened, too.
                    outcome.error = copy_of(told, error)
            if not surely_undone:
                self._is_unsettled = True
                with suppress(*DATABASE_ERRORS):
                    self._settle(database)
        return outcomes

    def _settle(self, database: SqliteDatabase) -> None:
        """
        Decide for ever whether a lost commit happened, before anybody looks.

        Until then a read may say no, and the recovery after a crash yes.
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
        """Roll back; return whether that is sure."""
        try:
            database.rollback()
        except DATABASE_ERRORS:
            return False
        return True
