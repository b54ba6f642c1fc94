"""Concurrent calls that are gathered into groups, each of which takes one step of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from txnframework.errors import Closed, OutcomeUnknown, TxnFrameworkError
from txnframework.runtime.tasks import start_task

R = TypeVar("R")

Answers = Sequence[Exception | None]
"""One item for each request, in order: its error, or None if it succeeded."""


@dataclass(frozen=True, slots=True)
class GroupRules(Generic[R]):
    """
    Which requests form a group.

    ``joins`` returns whether a request may join the group of a first one. The sizes of a group's requests sum up to
    ``size_max`` at most; a single larger request has a group of its own. ``what`` names a request in errors. Up to
    ``groups_max`` groups are performed at the same time, which a store may perform as one step.
    """

    joins: Callable[[R, R], bool]
    size: Callable[[R], int]
    size_max: int
    what: str
    groups_max: int = 1


@dataclass(eq=False)
class _WaitingCall(Generic[R]):
    request: R
    answered: asyncio.Future[None]


class CallGroups(Generic[R]):
    """
    Performs the waiting requests as groups; requests that arrive meanwhile wait for the next groups.

    A group is the first waiting request and those that may join it. Each waiting request is held by its caller, so
    their number is bounded by the number of callers.
    """

    def __init__(self, perform: Callable[[list[R]], Awaitable[Answers]], rules: GroupRules[R]) -> None:
        self._perform = perform
        self._rules = rules
        # In the order of the calls; the values mean nothing.
        self._waiting: dict[_WaitingCall[R], None] = {}
        # The groups under way; the first has no requests before its task's first step.
        self._groups: dict[asyncio.Task[Answers], list[_WaitingCall[R]]] = {}

    async def add(self, request: R) -> None:
        """
        Return when the request succeeded, or raise its error.

        A request that is cancelled before its turn is not performed; after that it may be. A group is cancelled when
        all its callers were cancelled.
        """
        one = _WaitingCall(request, asyncio.get_running_loop().create_future())
        self._waiting[one] = None
        self._begin()
        try:
            await one.answered
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
            _answer(one, Closed(f"{self._rules.what} was stopped before its turn came"))
        under_way = set(self._groups)
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)

    def _begin(self) -> None:
        if not self._groups and self._waiting:
            self._start(self._run_first(), [])

    def _start(self, work: Coroutine[object, object, Answers], group: list[_WaitingCall[R]]) -> None:
        task = start_task(work)
        self._groups[task] = group
        task.add_done_callback(self._ended)

    async def _run_first(self) -> Answers:
        # Take the groups at the task's first step, so that requests made in the same turn of the loop join them.
        (group,) = self._groups.values()
        group += self._take()
        while self._waiting and len(self._groups) < self._rules.groups_max and (another := self._take()):
            self._start(self._run(another), another)
        return await self._run(group)

    async def _run(self, group: list[_WaitingCall[R]]) -> Answers:
        return await self._perform([one.request for one in group]) if group else ()

    def _cancelled_with(self, one: _WaitingCall[R]) -> asyncio.Task[Answers] | None:
        """Return the task of a request's group if all its callers were cancelled."""
        for task, group in self._groups.items():
            if one in group:
                return task if all(each.answered.cancelled() for each in group) else None
        return None

    def _take(self) -> list[_WaitingCall[R]]:
        group: list[_WaitingCall[R]] = []
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

    def _ended(self, task: asyncio.Task[Answers]) -> None:
        group = self._groups.pop(task)
        error: Exception | None = None
        if task.cancelled():
            error = OutcomeUnknown(f"{self._rules.what} was stopped while it was under way, and may be stored")
        elif isinstance(found := task.exception(), Exception):
            error = found
        answers = task.result() if error is None else [error] * len(group)
        for one, answer in zip(group, answers, strict=True):
            _answer(one, answer)
        self._begin()


def _answer(one: _WaitingCall[R], answer: Exception | None) -> None:
    if one.answered.done():  # cancelled
        return
    if answer is None:
        one.answered.set_result(None)
    elif isinstance(answer, TxnFrameworkError):
        own = copy_error(answer, answer.__cause__)
        one.answered.set_exception(own.with_traceback(answer.__traceback__))
    else:
        one.answered.set_exception(answer)


def copy_error(error: TxnFrameworkError, cause: BaseException | None) -> TxnFrameworkError:
    """Return a copy of an error for one caller: one object raised in several tasks would mix up their tracebacks."""
    # Without ``__init__``: what it takes is not what ``args`` contains.
    own = type(error).__new__(type(error), *error.args)
    vars(own).update(vars(error))
    own.__cause__ = cause
    return own
