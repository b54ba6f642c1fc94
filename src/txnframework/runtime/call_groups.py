"""Concurrent calls that are gathered into groups, each of which takes one step of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from txnframework.errors import Closed, OutcomeUnknown, TxnFrameworkError
from txnframework.runtime.tasks import start_task

R = TypeVar("R")
T = TypeVar("T")

Answers = Sequence[Exception | None]
"""One item for each request, in order: its error, or None if it succeeded."""


@dataclass(frozen=True, slots=True)
class GroupRules(Generic[R]):
    """
    Which requests form a group.

    ``joins`` returns whether a request may join the group of a first one. The sizes of a group's requests sum up to
    ``size_max`` at most; a single larger request has a group of its own. ``what`` names a request in errors. Up to
    ``groups_max`` groups are performed at the same time, which a store may perform as one step. ``is_cancelled``: a
    group is cancelled when all its callers were cancelled; otherwise it always ends.
    """

    joins: Callable[[R, R], bool]
    size: Callable[[R], int]
    size_max: int
    what: str
    groups_max: int = 1
    is_cancelled: bool = True


@dataclass(eq=False)
class _WaitingCall(Generic[R, T]):
    request: R
    answered: asyncio.Future[T]


class ResultGroups(Generic[R, T]):
    """
    Performs the waiting requests as groups; requests that arrive meanwhile wait for the next groups.

    A group is the first waiting request and those that may join it. Each waiting request is held by its caller, so
    their number is bounded by the number of callers.

    ``perform`` returns the result or the error of each request, or raises an error that applies to all. ``unwanted`` is
    called with a result whose caller was cancelled.
    """

    def __init__(
        self,
        perform: Callable[[list[R]], Awaitable[Sequence[T | Exception]]],
        rules: GroupRules[R],
        unwanted: Callable[[T], object] = lambda _: None,
    ) -> None:
        self._perform = perform
        self._rules = rules
        self._unwanted = unwanted
        # In the order of the calls; the values mean nothing.
        self._waiting: dict[_WaitingCall[R, T], None] = {}
        # The groups under way; the first has no requests before its task's first step.
        self._groups: dict[asyncio.Task[Sequence[T | Exception]], list[_WaitingCall[R, T]]] = {}

    async def add(self, request: R) -> T:
        """
        Return the result of a request when it succeeded, or raise its error.

        A request that is cancelled before its turn is not performed; after that it may be.
        """
        one: _WaitingCall[R, T] = _WaitingCall(request, asyncio.get_running_loop().create_future())
        self._waiting[one] = None
        self._begin()
        try:
            return await one.answered
        except asyncio.CancelledError:
            if not one.answered.cancelled() and one.answered.exception() is None:
                self._unwanted(one.answered.result())
            raise
        finally:
            self._waiting.pop(one, None)
            task = self._cancelled_with(one) if one.answered.cancelled() else None
            if task is not None:
                if not task.cancelling():
                    task.cancel()
                await asyncio.wait({task})

    async def close(self) -> None:
        """Close the groups; a running request ends as OutcomeUnknown, a waiting one as Closed."""
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            self._answer(one, Closed(f"{self._rules.what} was stopped before its turn came"))
        under_way = set(self._groups)
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)

    def _begin(self) -> None:
        if not self._groups and self._waiting:
            self._start(self._run_first(), [])

    def _start(self, work: Coroutine[object, object, Sequence[T | Exception]], group: list[_WaitingCall[R, T]]) -> None:
        task = start_task(work)
        self._groups[task] = group
        task.add_done_callback(self._ended)

    async def _run_first(self) -> Sequence[T | Exception]:
        # Take the groups at the task's first step, so that requests made in the same turn of the loop join them.
        (group,) = self._groups.values()
        group += self._take()
        while self._waiting and len(self._groups) < self._rules.groups_max and (another := self._take()):
            self._start(self._run(another), another)
        return await self._run(group)

    async def _run(self, group: list[_WaitingCall[R, T]]) -> Sequence[T | Exception]:
        return await self._perform([one.request for one in group]) if group else ()

    def _cancelled_with(self, one: _WaitingCall[R, T]) -> asyncio.Task[Sequence[T | Exception]] | None:
        """Return the task of a request's group if it is to be cancelled: all its callers were."""
        if not self._rules.is_cancelled:
            return None
        for task, group in self._groups.items():
            if one in group:
                return task if all(each.answered.cancelled() for each in group) else None
        return None

    def _take(self) -> list[_WaitingCall[R, T]]:
        group: list[_WaitingCall[R, T]] = []
        rules, size = self._rules, 0
        for one in self._waiting:
            if one.answered.done():
                continue  # It was cancelled, and its caller has not noticed yet.
            if group and not rules.joins(one.request, group[0].request):
                continue
            if group and size + rules.size(one.request) > rules.size_max:
                break
            group.append(one)
            size += rules.size(one.request)
        for one in group:
            del self._waiting[one]
        return group

    def _ended(self, task: asyncio.Task[Sequence[T | Exception]]) -> None:
        group = self._groups.pop(task)
        error: Exception | None = None
        if task.cancelled():
            error = OutcomeUnknown(f"{self._rules.what} was stopped while it was under way, and may be stored")
        elif isinstance(found := task.exception(), Exception):
            error = found
        answers: Sequence[T | Exception] = task.result() if error is None else [error] * len(group)
        for one, answer in zip(group, answers, strict=True):
            self._answer(one, answer)
        self._begin()

    def _answer(self, one: _WaitingCall[R, T], answer: T | Exception) -> None:
        if not isinstance(answer, Exception):
            if one.answered.done():  # cancelled
                self._unwanted(answer)
            else:
                one.answered.set_result(answer)
        elif not one.answered.done():
            own = copy_error(answer, answer.__cause__) if isinstance(answer, TxnFrameworkError) else answer
            one.answered.set_exception(own.with_traceback(answer.__traceback__))


class CallGroups(ResultGroups[R, None]):
    """Groups of requests without results."""


def copy_error(error: TxnFrameworkError, cause: BaseException | None) -> TxnFrameworkError:
    """Return a copy of an error for one caller: one object raised in several tasks would mix up their tracebacks."""
    # Without ``__init__``: what it takes is not what ``args`` contains.
    own = type(error).__new__(type(error), *error.args)
    vars(own).update(vars(error))
    own.__cause__ = cause
    return own
