"""
The thread that uses a connection, and the only bridge between it and asyncio.

Jobs that wait when the thread becomes free are executed together. The reads share one view; then the writes share one
transaction, with one commit and one fsync. A write is confirmed after that commit. A write that fails alone, such as by
a version mismatch, does not affect the others.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from txnframework.errors import OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework_sql._database import copy_error
from txnframework_sql.sqlite._connection import SqliteConnection
from txnframework_sql.sqlite._errors import DATABASE_ERRORS, commit_lost, translated
from txnframework_sql.steps.statements import Change, Observer, Steps

C = TypeVar("C")
T = TypeVar("T")

Work = Callable[[], Steps[T]]
"""Returns new steps to perform on the thread. It may be called again if its group was rolled back."""

SharedWork = Callable[[Sequence[C]], Steps[Sequence[T | Exception]]]
"""Returns new steps that perform several calls; see ``SharedJob``. It is called again as ``Work`` is."""


class IJob(Protocol):
    """What the thread performs as one piece."""

    is_write: bool
    loop: asyncio.AbstractEventLoop

    def work(self) -> Steps[Any]:
        """Return new steps; see ``Work``."""

    @property
    def is_abandoned(self) -> bool:
        """Whether no caller waits for it any more."""

    def parts(self) -> Sequence[IJob]:
        """Return the jobs that fail separately."""

    def answer(self, value: Any, error: BaseException | None) -> None:
        """Set the futures of the callers that still wait; called in ``loop``."""


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """One piece of work and the future of its caller."""

    work: Work[T]
    is_write: bool
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]

    @property
    def is_abandoned(self) -> bool:
        """Whether the caller was cancelled."""
        return self.future.cancelled()

    def parts(self) -> Sequence[IJob]:
        """Return this job."""
        return (self,)

    def answer(self, value: T, error: BaseException | None) -> None:
        """Set the future, unless the caller was cancelled."""
        if not self.future.done():
            _set(self.future, value, error)


@dataclass(slots=True, eq=False)
class SharedJob(Generic[C, T]):
    """
    Calls of one kind that are performed by the same steps.

    ``perform`` returns a result or an error for each call, in order. If it raises instead, each call is performed again
    as a job of its own, so that an invalid value of one call does not affect the others.
    """

    perform: SharedWork[C, T]
    is_write: bool
    loop: asyncio.AbstractEventLoop
    calls: list[tuple[C, asyncio.Future[T]]]
    # The calls of the last ``work``: a caller that was cancelled before is left out.
    _performed: list[tuple[C, asyncio.Future[T]]] = field(default_factory=list)

    @property
    def is_abandoned(self) -> bool:
        """Whether all callers were cancelled."""
        return all(future.cancelled() for _, future in self.calls)

    def work(self) -> Steps[Sequence[T | Exception]]:
        """Return the steps of the calls whose callers wait."""
        self._performed = [one for one in self.calls if not one[1].cancelled()]
        return self.perform([call for call, _ in self._performed])

    def parts(self) -> Sequence[IJob]:
        """Return a job for each call."""
        if len(self.calls) == 1:
            return (self,)
        return [SharedJob(self.perform, self.is_write, self.loop, [one]) for one in self.calls]

    def answer(self, value: Sequence[T | Exception] | None, error: BaseException | None) -> None:
        """
        Set the future of each call.

        If the commit failed, there are both values and an error: a call that was refused before stays refused.
        """
        answered = self.calls if value is None else self._performed
        answers: Sequence[T | Exception | None] = [None] * len(self.calls) if value is None else value
        for (_, future), one in zip(answered, answers, strict=True):
            if future.done():
                continue
            if isinstance(one, Exception):
                _set(future, None, one)
            elif isinstance(error, TxnFrameworkError) and len(self.calls) > 1:
                _set(future, None, copy_error(error, error.__cause__))
            else:
                _set(future, one, error)


def _set(future: asyncio.Future[Any], value: object, error: BaseException | None) -> None:
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


@dataclass(slots=True)
class Outcome:
    """The result or error of a job, and its changes."""

    job: IJob
    value: Any = None
    error: BaseException | None = None
    changes: tuple[Change, ...] = ()


def attempt(connection: SqliteConnection, job: IJob) -> Outcome:
    """Execute one job within a transaction."""
    connection.changes = []
    try:
        value = connection.perform(job.work())
    except DATABASE_ERRORS as error:
        return failed([job], translated(error, connection.shown_url), error)[0]
    except Exception as error:  # The caller receives it; the thread continues.
        return Outcome(job, error=error)
    return Outcome(job, value, changes=tuple(connection.changes))


def failed(jobs: Iterable[IJob], error: TxnFrameworkError, cause: BaseException) -> list[Outcome]:
    """Return the outcomes of jobs that all fail with one cause."""
    return [Outcome(job, error=copy_error(error, cause)) for job in jobs]


def deliver(outcomes: list[Outcome]) -> None:
    """Set the futures, with one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome.job.loop, []).append(outcome)
    for loop, own in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_all, own)
        except RuntimeError:
            # The loop was closed, so no task waits in it.
            continue


def _set_all(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        outcome.job.answer(outcome.value, outcome.error)


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
        self.jobs_received = 0
        self._connect = connect
        self._group_max = group_max
        self._jobs: queue.SimpleQueue[Sequence[IJob | None]] = queue.SimpleQueue()
        # Jobs of the last item of the queue that are left for the next group; only the thread uses them.
        self._left: deque[IJob | None] = deque()
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

    def put(self, jobs: Sequence[IJob]) -> None:
        """Queue jobs; the future of each is set in its loop. Raise Unavailable if the thread has ended."""
        with self._end_lock:
            if self._is_dead:
                raise Unavailable("the connection to the database has broken down; open the store again")
            self.jobs_received += len(jobs)
            self._jobs.put(jobs)

    @property
    def is_dead(self) -> bool:
        """Whether the thread has ended, or failed to open its connection."""
        return self._is_dead

    def stop(self) -> None:
        """Close the database after the jobs queued before; ``stopped`` then completes."""
        self._jobs.put((None,))

    def join(self) -> None:
        """Wait for the end of the thread, which follows ``stopped`` immediately."""
        self._thread.join()

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` after every commit of this connection."""
        with self._observers_lock:
            self._observers = (*self._observers, observer)

    def ignore(self, observer: Observer) -> None:
        """Stop calling ``observer``."""
        with self._observers_lock:
            self._observers = tuple(known for known in self._observers if known != observer)

    def changed(self, changes: tuple[Change, ...]) -> None:
        """Report changes of another connection of this process to the observers."""
        if changes:
            for observer in self._observers:
                observer(changes)

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
            while jobs := self._take():
                live = [job for job in jobs if job is not None and not job.is_abandoned]
                self._answer(self._read, connection, [job for job in live if not job.is_write])
                self._answer(self._write, connection, [job for job in live if job.is_write])
                if jobs[-1] is None:
                    break
        finally:
            try:
                connection.close()
            finally:
                self._fail_rest(connection.shown_url)
                self.stopped.set_result(None)

    def _answer(
        self,
        execute: Callable[[SqliteConnection, list[IJob]], None],
        connection: SqliteConnection,
        jobs: list[IJob],
    ) -> None:
        """Execute a group; every job gets an outcome in any case, and only the end of the thread is raised."""
        try:
            execute(connection, jobs)
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

    def _fail_rest(self, shown_url: str) -> None:
        """Answer the remaining jobs at the end of the thread; there are some only if the thread failed."""
        with self._end_lock:
            self._is_dead = True
        while not self._jobs.empty():
            self._left.extend(self._jobs.get())
        for job in self._left:
            if job is not None:
                deliver([Outcome(job, error=Unavailable(f"the connection to {shown_url} broke down"))])

    def _take(self) -> list[IJob | None]:
        """Wait for a job, and take all waiting jobs with it; a None at the end requests the stop."""
        if not self._left:
            self._left.extend(self._jobs.get())
        jobs: list[IJob | None] = []
        while len(jobs) < self._group_max:
            if not self._left:
                try:
                    self._left.extend(self._jobs.get_nowait())
                except queue.Empty:
                    break
            jobs.append(self._left.popleft())
            if jobs[-1] is None:
                break
        return jobs

    def _read(self, connection: SqliteConnection, jobs: list[IJob]) -> None:
        """Execute reading jobs in one view, taken after all of them were queued."""
        if not jobs:
            return
        outcomes: list[Outcome] = []
        try:
            self._settle(connection)
            connection.begin_read()
            for job in jobs:
                # An error may end the transaction implicitly, and its view: the following jobs get another view.
                if not connection.in_transaction:
                    connection.begin_read()
                outcomes.append(attempt(connection, job))
            connection.rollback()
        except DATABASE_ERRORS as error:
            outcomes += failed(jobs[len(outcomes) :], translated(error, connection.shown_url), error)
        deliver(outcomes)

    def _write(self, connection: SqliteConnection, jobs: list[IJob]) -> None:
        """Execute writes with one commit; if one of them fails midway, commit each of their parts separately."""
        if not jobs:
            return
        outcomes = self._commit_together(connection, jobs)
        if outcomes is None:
            parts = [part for job in jobs for part in job.parts() if not part.is_abandoned]
            outcomes = [outcome for part in parts for outcome in self._commit_together(connection, [part]) or ()]
        changes = tuple(change for outcome in outcomes for change in outcome.changes)
        self.changed(changes)
        deliver(outcomes)

    def _commit_together(self, connection: SqliteConnection, jobs: list[IJob]) -> list[Outcome] | None:
        """
        Return the outcome of each job.

        If one of several jobs or parts of jobs failed after it had written, undo all changes and return None. The same
        if a job of several parts failed at all: its parts may succeed separately.
        """
        try:
            self._settle(connection)
            connection.begin_write()
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
        return self._commit(connection, outcomes)

    def _commit(self, connection: SqliteConnection, outcomes: list[Outcome]) -> list[Outcome]:
        """Commit; if that fails, every job that had succeeded fails with it."""
        try:
            connection.commit()
            self.commits += 1
        except DATABASE_ERRORS as error:
            # Still in the transaction: COMMIT did not begin, and a rollback makes that certain. Otherwise the log may
            # hold the commit, and may or may not keep it through a crash.
            surely_undone = connection.in_transaction and self._undo(connection)
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
