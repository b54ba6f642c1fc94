"""Acknowledgment requests that wait for their turn, gathered into groups of one branch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from txnframework.errors import Closed, OutcomeUnknown
from txnframework.model.acks import AckRequest

Answers = Sequence[Exception | None]
"""One item for each request, in order: its error, or None if it is recorded."""


@dataclass(eq=False)
class _WaitingCall:
    request: AckRequest
    answered: asyncio.Future[None]


class AckGroups:
    """
    Records one group after the other; requests that arrive meanwhile wait, and join the next group of their branch.

    A group is the first waiting request and the other waiting ones of the same branch, up to ``acks_max``
    acknowledgments; with 0, one request. Each waiting request is held by its caller, so their number is bounded by the
    number of callers.
    """

    def __init__(self, record: Callable[[list[AckRequest]], Awaitable[Answers]], acks_max: int) -> None:
        self._record = record
        self._acks_max = acks_max
        self._waiting: list[_WaitingCall] = []
        self._group: list[_WaitingCall] = []
        self._task: asyncio.Task[Answers] | None = None

    async def add(self, request: AckRequest) -> None:
        """
        Return when the request is recorded, or raise its error.

        A request that is cancelled before its turn is not recorded; after that it may be. A group is cancelled when all
        its callers were cancelled.
        """
        one = _WaitingCall(request, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        self._begin()
        try:
            await one.answered
        finally:
            if one in self._waiting:
                self._waiting.remove(one)
            task = self._task
            if task is not None and self._group and all(each.answered.cancelled() for each in self._group):
                task.cancel()
                await asyncio.wait({task})

    async def close(self) -> None:
        """Close the groups; a running request ends as OutcomeUnknown, a waiting one as Closed."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            _answer(one, Closed("the pending acknowledgments were closed before the turn of this one came"))
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _begin(self) -> None:
        if self._task is None and self._waiting:
            self._task = asyncio.ensure_future(self._run())
            self._task.add_done_callback(self._ended)

    async def _run(self) -> Answers:
        # Take the group at the task's first step, so that requests made in the same turn of the loop join it.
        self._group = self._take()
        return await self._record([one.request for one in self._group])

    def _take(self) -> list[_WaitingCall]:
        group: list[_WaitingCall] = []
        acks = 0
        for one in self._waiting:
            if group and not _may_join(one.request, group[0].request):
                continue
            if group and acks + len(one.request.acks) > self._acks_max:
                break
            group.append(one)
            acks += len(one.request.acks)
        self._waiting = [one for one in self._waiting if one not in group]
        return group

    def _ended(self, task: asyncio.Task[Answers]) -> None:
        group, self._group, self._task = self._group, [], None
        error: Exception | None = None
        if task.cancelled():
            error = OutcomeUnknown("an acknowledgment was stopped while it was under way, and may be recorded")
        elif isinstance(found := task.exception(), Exception):
            error = found
        answers = task.result() if error is None else [error] * len(group)
        for one, answer in zip(group, answers, strict=True):
            _answer(one, answer)
        self._begin()


def _may_join(request: AckRequest, first: AckRequest) -> bool:
    """Return whether two requests may share a record; a request with a processed range has a record of its own."""
    if request.processed is not None or first.processed is not None:
        return False
    mine, theirs = ((one.branch, one.incarnation, one.principal) for one in (request, first))
    return mine == theirs


def _answer(one: _WaitingCall, answer: Exception | None) -> None:
    if one.answered.done():  # cancelled
        return
    if answer is None:
        one.answered.set_result(None)
    else:
        one.answered.set_exception(answer)
