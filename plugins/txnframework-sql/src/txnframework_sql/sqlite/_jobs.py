"""What the database thread performs, as one piece each, and the outcomes that it returns to the event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from txnframework.errors import TxnFrameworkError
from txnframework.runtime.call_groups import copy_error
from txnframework_sql.sqlite._connection import SqliteConnection
from txnframework_sql.sqlite._errors import DATABASE_ERRORS, translated
from txnframework_sql.steps.statements import Change, Steps

C = TypeVar("C")
T = TypeVar("T")

Work = Callable[[], Steps[T]]
"""Returns new steps to perform on the thread. It may be called again if its group was rolled back."""

SharedWork = Callable[[Sequence[C]], Steps[Sequence[T | Exception]]]
"""Returns new steps that perform several calls; see ``SharedJob``. It is called again as ``Work`` is."""


class IJob(Protocol):
    """What the thread performs as one piece."""

    @property
    def is_write(self) -> bool:
        """Whether it may change the database."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop in which ``answer`` is called; None: the thread calls it."""

    def work(self) -> Steps[Any]:
        """Return new steps; see ``Work``."""

    @property
    def is_abandoned(self) -> bool:
        """Whether no caller waits for it any more."""

    def parts(self) -> Sequence[IJob]:
        """Return the jobs that fail separately."""

    def answer(self, value: Any, error: BaseException | None) -> None:
        """Set the futures of the callers that still wait; see ``loop``."""


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


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedWrite:
    """
    A write that must be repeated even while the event loop of its owner is busy.

    Every ``period_s`` of real time, ``due`` is called on the database's thread. It returns None, or work and a function
    that receives its result after the commit, on that thread too. A failure is not reported: the next call may succeed.
    """

    period_s: float
    due: Callable[[], tuple[Work[Any], Callable[[Any], None]] | None]


@dataclass(slots=True, eq=False)
class RepeatedJob:
    """A write without a waiting caller; ``done`` is called on the thread if it succeeded."""

    work: Work[Any]
    done: Callable[[Any], None]
    is_write: bool = True
    loop: asyncio.AbstractEventLoop | None = None
    is_abandoned: bool = False

    def parts(self) -> Sequence[IJob]:
        """Return this job."""
        return (self,)

    def answer(self, value: Any, error: BaseException | None) -> None:
        """Report the result, unless it failed."""
        if error is None:
            self.done(value)


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
    by_loop: dict[asyncio.AbstractEventLoop | None, list[Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome.job.loop, []).append(outcome)
    for loop, own in by_loop.items():
        if loop is None:
            _set_all(own)
            continue
        try:
            loop.call_soon_threadsafe(_set_all, own)
        except RuntimeError:
            # The loop was closed, so no task waits in it.
            continue


def _set_all(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        outcome.job.answer(outcome.value, outcome.error)
