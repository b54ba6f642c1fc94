"""
The thread that uses a connection, and the only bridge between it and asyncio.

Jobs that wait when the thread becomes free are executed together. The reads share one view; then the writes share one
transaction, with one commit and one fsync. A write is confirmed after that commit. A write that fails alone, such as by
a version mismatch, does not affect the others.

While a writing transaction waits for the lock of another connection, the reads that arrive are executed. They need no
lock, and the holder of the lock may wait for them.

Urgent jobs and repeated writes go before all others. They wait for at most one reading job, one writing job and its
commit: what is left of a group then follows them. A repeated write needs no event loop, which may be busy for seconds
in one turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.runtime.call_groups import copy_error
from txnframework_sql.sqlite._connection import SqliteConnection
from txnframework_sql.sqlite._errors import DATABASE_ERRORS, commit_lost, is_full, translated
from txnframework_sql.sqlite._jobs import IJob, Outcome, RepeatedJob, RepeatedWrite, attempt, deliver, failed
from txnframework_sql.sqlite._queue import JobQueue
from txnframework_sql.steps.statements import Change, Observer


class DatabaseThread:
    """
    Opens a database in a thread of its own, executes jobs on it, and closes it there.

    ``started`` completes when the database is open, or with the error of the opening.
    """

    def __init__(self, connect: Callable[[], SqliteConnection], group_max: int) -> None:
        self.started: ThreadFuture[None] = ThreadFuture()
        self.stopped: ThreadFuture[None] = ThreadFuture()
        for future in (self.started, self.stopped):
            # Several callers may wait for it: a cancelled one must not cancel it for the others and for the thread.
            future.set_running_or_notify_cancel()
        self.commits = 0
        self._connect = connect
        self._jobs = JobQueue(group_max)
        self._observers: tuple[Observer, ...] = ()
        self._repeated: tuple[RepeatedWrite, ...] = ()
        self._period_s = inf
        # When the thread last asked what is due.
        self._repeated_s = 0.0
        # Of the observers and of the repeated writes.
        self._lock = threading.Lock()
        # A job is either executed by the thread or refused: no job is added after the last read of the queue.
        self._end_lock = threading.Lock()
        self._is_dead = False
        # A commit failed, and it is not decided yet whether it took effect.
        self._is_unsettled = False
        # A program that forgets to close must still be able to exit.
        self._thread = threading.Thread(target=self._run, name="txnframework-sql", daemon=True)
        self._thread.start()

    # -- called from event loops --------------------------------------------------------------------

    def put(self, jobs: Sequence[IJob], is_urgent: bool = False) -> None:
        """
        Queue jobs; the future of each is set in its loop. Raise Unavailable if the thread has ended.

        Urgent ones go before all that wait, and are no part of their commits.
        """
        with self._end_lock:
            if self._is_dead:
                raise Unavailable("the connection to the database has broken down; open the store again")
            self._jobs.put(jobs, is_urgent)

    @property
    def jobs_received(self) -> int:
        """The number of jobs that were queued."""
        return self._jobs.received

    @property
    def is_idle(self) -> bool:
        """Whether no job is queued or being executed."""
        return self._jobs.ended == self._jobs.received

    @property
    def is_dead(self) -> bool:
        """Whether the thread has ended, or failed to open its connection."""
        return self._is_dead

    def stop(self) -> None:
        """Close the database after the jobs queued before; ``stopped`` then completes."""
        self._jobs.end()

    def join(self) -> None:
        """Wait for the end of the thread, which follows ``stopped`` immediately."""
        self._thread.join()

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` after every commit of this connection."""
        with self._lock:
            self._observers = (*self._observers, observer)

    def ignore(self, observer: Observer) -> None:
        """Stop calling ``observer``."""
        with self._lock:
            self._observers = tuple(known for known in self._observers if known != observer)

    def repeat(self, write: RepeatedWrite) -> None:
        """Perform ``write``, before all jobs."""
        self._set_repeated(lambda known: (*known, write))
        # A thread that waits without a time limit must begin to count the time.
        self._jobs.wake()

    def drop(self, write: RepeatedWrite) -> None:
        """Stop performing ``write``."""
        self._set_repeated(lambda known: tuple(one for one in known if one is not write))

    def changed(self, changes: tuple[Change, ...]) -> None:
        """Report changes of another connection of this process to the observers."""
        if changes:
            for observer in self._observers:
                observer(changes)

    def _set_repeated(self, change: Callable[[tuple[RepeatedWrite, ...]], tuple[RepeatedWrite, ...]]) -> None:
        with self._lock:
            self._repeated = change(self._repeated)
            self._period_s = min((write.period_s for write in self._repeated), default=inf)

    # -- the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        # Only this frame holds the connection. After a fork the frame does not continue in the child and is never
        # cleaned up there. So a child cannot close, and thereby damage, its parent's connection.
        try:
            connection = self._connect()
        except BaseException as error:
            self._is_dead = True
            self.started.set_exception(error)
            self.stopped.set_result(None)
            return
        self.started.set_result(None)
        try:
            while (jobs := self._jobs.take(self._left_s)) is not None:
                live = [job for job in jobs if not job.is_abandoned]
                left = [
                    *self._answer(self._read, connection, [job for job in live if not job.is_write]),
                    *self._answer(self._write, connection, [job for job in live if job.is_write]),
                ]
                if left:
                    self._jobs.give_back(left)
                self._repeat(connection)
        finally:
            try:
                connection.close()
            finally:
                self._fail_rest(connection.shown_url)
                self.stopped.set_result(None)

    def _answer(
        self,
        execute: Callable[[SqliteConnection, list[IJob]], Sequence[IJob]],
        connection: SqliteConnection,
        jobs: list[IJob],
    ) -> Sequence[IJob]:
        """
        Execute a group, and return what is left of it, because it had to pause.

        Every other job gets an outcome in any case, and only the end of the thread is raised.
        """
        if not jobs:
            return ()
        try:
            return execute(connection, jobs)
        except BaseException as error:
            with suppress(Exception):
                connection.rollback()
            self._is_unsettled = True
            text = f"{connection.shown_url} failed unexpectedly: {type(error).__name__}"
            # Answered jobs keep their outcome; for the others a commit may have taken effect.
            deliver(
                [
                    Outcome(job, error=copy_error(OutcomeUnknown(text) if job.is_write else Unavailable(text), error))
                    for job in jobs
                ]
            )
            if not isinstance(error, Exception):
                raise
            return ()

    def _fail_rest(self, shown_url: str) -> None:
        """Answer the remaining jobs at the end of the thread; there are some only if the thread failed."""
        with self._end_lock:
            self._is_dead = True
        for job in self._jobs.take_all():
            deliver([Outcome(job, error=Unavailable(f"the connection to {shown_url} broke down"))])

    def _repeat(self, connection: SqliteConnection) -> None:
        """Perform the repeated writes that are due."""
        if self._left_s() > 0:
            return
        self._repeated_s = monotonic()
        for write in self._repeated:
            if (due := write.due()) is not None:
                self._answer(self._write, connection, [RepeatedJob(*due)])

    def _left_s(self) -> float:
        """Return how long the thread may wait before it asks the repeated writes."""
        return self._repeated_s + self._period_s - monotonic()

    def _must_pause(self) -> bool:
        """Return whether a group leaves its other jobs for later."""
        return self._jobs.has_urgent or self._left_s() <= 0

    def _read_meanwhile(self, connection: SqliteConnection, wait_s: float) -> None:
        """
        Execute the reads that wait or arrive, between two attempts to acquire the lock of the writer.

        At least one job is executed, and none begins after ``wait_s``: neither reads nor the write wait for all others.
        """
        until_s = monotonic() + wait_s
        jobs = [job for job in self._jobs.take_reads(wait_s) if not job.is_abandoned]
        self._jobs.give_back(self._answer(partial(self._read, until_s=until_s), connection, jobs))

    def _read(self, connection: SqliteConnection, jobs: list[IJob], until_s: float | None = None) -> Sequence[IJob]:
        """
        Execute reading jobs in one view, taken after all of them were queued; return those that are left.

        :param until_s: when no further job begins.
        """
        outcomes: list[Outcome] = []
        try:
            self._settle(connection)
            connection.begin_read()
            for job in jobs:
                # An error may end the transaction implicitly, and its view: the following jobs get another view.
                if not connection.in_transaction:
                    connection.begin_read()
                outcomes.append(attempt(connection, job))
                if self._must_pause() or (until_s is not None and monotonic() >= until_s):
                    break
            connection.rollback()
        except DATABASE_ERRORS as error:
            outcomes += failed(jobs[len(outcomes) :], translated(error, connection.shown_url), error)
        deliver(outcomes)
        return jobs[len(outcomes) :]

    def _write(self, connection: SqliteConnection, jobs: list[IJob]) -> Sequence[IJob]:
        """
        Execute writes with one commit; if one of them fails midway, commit each of their parts separately.

        Return the jobs and parts that are left.
        """
        outcomes = self._commit_together(connection, jobs)
        if outcomes is None:
            jobs = [part for job in jobs for part in job.parts() if not part.is_abandoned]
            outcomes = []
            for part in jobs:
                outcomes += self._commit_together(connection, [part]) or ()
                if self._must_pause():
                    break
        changes = tuple(change for outcome in outcomes for change in outcome.changes)
        self.changed(changes)
        deliver(outcomes)
        return jobs[len(outcomes) :]

    def _commit_together(self, connection: SqliteConnection, jobs: list[IJob]) -> list[Outcome] | None:
        """
        Return the outcome of each job, or of the first ones if the group must pause.

        If one of several jobs or parts of jobs failed after it had written, undo all changes and return None. The same
        if a job of several parts failed at all: its parts may succeed separately.
        """
        try:
            self._settle(connection)
            connection.begin_write(partial(self._read_meanwhile, connection))
        except DATABASE_ERRORS as error:
            return failed(jobs, translated(error, connection.shown_url), error)
        outcomes: list[Outcome] = []
        for job in jobs:
            before = connection.writes
            outcome = attempt(connection, job)
            if outcome.error is not None:
                is_divisible = len(job.parts()) > 1
                if is_divisible or connection.writes != before or not connection.in_transaction:
                    self._undo(connection)
                    return None if is_divisible or len(jobs) > 1 else [outcome]
            outcomes.append(outcome)
            if self._must_pause():
                break
        return self._commit(connection, outcomes)

    def _commit(self, connection: SqliteConnection, outcomes: list[Outcome]) -> list[Outcome]:
        """Commit; if that fails, every job that had succeeded fails with it."""
        try:
            connection.commit()
            self.commits += 1
        except DATABASE_ERRORS as error:
            # Still in the transaction: COMMIT did not begin, and a rollback makes that certain. On a full disk, the
            # commit is not in the log, because it is in the last frame. Otherwise the log may hold the commit, and may
            # or may not keep it through a crash.
            surely_undone = (connection.in_transaction or is_full(error)) and self._undo(connection)
            raised = (
                translated(error, connection.shown_url) if surely_undone else commit_lost(error, connection.shown_url)
            )
            for outcome in outcomes:
                if outcome.error is None:
                    # Its changes are kept: a possible change wakes watches as well.
                    outcome.error = copy_error(raised, error)
            if not surely_undone:
                self._is_unsettled = True
                with suppress(*DATABASE_ERRORS):
                    self._settle(connection)
        return outcomes

    def _settle(self, connection: SqliteConnection) -> None:
        """
        Decide permanently whether a lost commit took effect, before any job reads.

        Until then a read might not find the commit, although the recovery after a crash would restore it.
        """
        if self._is_unsettled:
            try:
                connection.begin_write()
                connection.overwrite_lost()
                connection.commit()
            except DATABASE_ERRORS:
                self._undo(connection)
                raise
            self._is_unsettled = False

    @staticmethod
    def _undo(connection: SqliteConnection) -> bool:
        """Roll back; return whether the rollback is certain."""
        try:
            connection.rollback()
        except DATABASE_ERRORS:
            return False
        return True
