"""The jobs of a database's thread, and their outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from txnframework.errors import TxnFrameworkError
from txnframework_sql._database import copy_of
from txnframework_sql.sqlite._database import SqliteDatabase
from txnframework_sql.sqlite._errors import DATABASE_ERRORS, translated
from txnframework_sql.steps.calls import Steps
from txnframework_sql.steps.changes import Change

T = TypeVar("T")

Work = Callable[[], Steps[T]]
"""Returns new steps to perform on the thread. It may be called again if its group was rolled back."""


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """One piece of work and the future of its caller."""

    work: Work[T]
    is_write: bool
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]


@dataclass(slots=True)
class Outcome:
    """The result or error of a job, and its changes."""

    job: Job[Any]
    value: Any = None
    error: BaseException | None = None
    changes: tuple[Change, ...] = ()


def attempt(database: SqliteDatabase, job: Job[Any]) -> Outcome:
    """Execute one job within a transaction."""
    database.changes = []
    try:
        value = database.perform(job.work())
    except DATABASE_ERRORS as error:
        return failed([job], translated(error, database.shown_url), error)[0]
    except Exception as error:  # The caller receives it; the thread continues.
        return Outcome(job, error=error)
    return Outcome(job, value, changes=tuple(database.changes))


def failed(jobs: Iterable[Job[Any]], error: TxnFrameworkError, cause: BaseException) -> list[Outcome]:
    """Return the outcomes of jobs that all fail with one cause."""
    return [Outcome(job, error=copy_of(error, cause)) for job in jobs]


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
        future = outcome.job.future
        if future.done():
            continue
        if outcome.error is not None:
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome.value)
