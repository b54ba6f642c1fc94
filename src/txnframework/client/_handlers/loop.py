"""A loop that receives messages, calls a handler for them, and acknowledges them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from txnframework.client._handlers.attempts import Attempt
from txnframework.client._handlers.handler_functions import HandlerMisuse
from txnframework.client._handlers.messages import HandledMessages
from txnframework.client._handlers.plan import LoopOptions, NextStep, groups, next_step, order_key
from txnframework.client._messages import Message, MessageID
from txnframework.environment import Environment
from txnframework.errors import InvalidInput, Unavailable
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.deadline import Deadline
from txnframework.runtime.tasks import first_completed, start_task

_LOG = logging.getLogger("txnframework.client.handlers")


@dataclass(frozen=True, slots=True)
class LoopDelays:
    """The delays before the same messages are tried again, and before a message is redelivered."""

    retry: Backoff
    redelivery: Backoff


@dataclass(eq=False, slots=True)
class _Job:
    """
    Messages that were received together.

    ``left``: those that are not finished. ``keys``: what they must keep in order. ``after``: the earlier jobs that
    share a key with this one.
    """

    left: dict[MessageID, Message[Any]]
    keys: frozenset[Hashable]
    after: tuple[_Job, ...]
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class HandlerLoop:
    """
    Handles messages until it is stopped or cancelled; ``run`` is called once.

    A message whose handling failed is given back. With an order, its key stays blocked until then, and later messages
    of the key are given back with it.
    """

    def __init__(
        self,
        receive: Callable[[int], Awaitable[Sequence[Message[Any]]]],
        messages: HandledMessages,
        attempt: Attempt,
        environment: Environment,
        delays: LoopDelays,
        options: LoopOptions,
    ) -> None:
        self._receive = receive
        self._messages = messages
        self._attempt = attempt
        self._environment = environment
        self._delays = delays
        self._options = options
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._changed = asyncio.Event()
        self._receiving: asyncio.Future[Sequence[Message[Any]]] | None = None
        self._jobs: dict[_Job, asyncio.Task[None]] = {}
        self._failure: Exception | None = None

    def stop(self) -> None:
        """Take no more messages, and let ``run`` return after the running handlers; a second call cancels these."""
        if self._stopping.is_set():
            self._hurried.set()
        self._stopping.set()
        self._changed.set()
        if self._receiving is not None:
            self._receiving.cancel()

    async def run(self) -> None:
        """Handle messages until ``stop``; an error of receiving is raised."""
        try:
            while not self._stopping.is_set():
                if await self._has_room():
                    self._begin(await self._next())
            await self._drain()
        finally:
            await self._cancel_jobs()
        if self._failure is not None:
            raise self._failure

    # -- taking messages ------------------------------------------------------------------------------

    async def _has_room(self) -> bool:
        """Wait until another job may begin; return False if the loop is to end."""
        while not self._stopping.is_set() and self._failure is None:
            if len(self._jobs) < (1 if self._messages.has_suspects() else self._options.concurrency):
                return True
            self._changed.clear()
            await self._changed.wait()
        self._stopping.set()
        return False

    async def _next(self) -> Sequence[Message[Any]]:
        """Return the next messages; none if the loop was stopped."""
        receiving = self._receiving = start_task(self._receive(self._options.messages_max))
        try:
            return await receiving
        except asyncio.CancelledError:
            if receiving.done() and not receiving.cancelled() and receiving.exception() is None:
                self._messages.give_back(receiving.result())
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return ()
        finally:
            self._receiving = None

    def _begin(self, received: Sequence[Message[Any]]) -> None:
        if not received:
            return
        if self._stopping.is_set():
            self._messages.give_back(received)
            return
        keys = frozenset(key for one in received if (key := self._key(one)) is not None)
        after = tuple(one for one in self._jobs if not keys.isdisjoint(one.keys))
        job = _Job({one.id: one for one in received}, keys, after)
        self._jobs[job] = start_task(self._process(job))

    def _key(self, message: Message[Any]) -> Hashable | None:
        return order_key(self._messages.ordering, message)

    # -- ending ---------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Wait for the running handlers, for a limited time."""
        deadline = Deadline(self._environment, self._options.drain_timeout_ms)
        while self._jobs and self._failure is None and not self._hurried.is_set():
            self._changed.clear()
            if not deadline.left_ms:
                return
            await first_completed(self._changed.wait(), self._hurried.wait(), deadline.passed())

    async def _cancel_jobs(self) -> None:
        self._stopping.set()
        running = tuple(self._jobs.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    # -- one job --------------------------------------------------------------------------------------

    async def _process(self, job: _Job) -> None:
        try:
            for earlier in job.after:
                await earlier.ended.wait()
            for some in groups(tuple(job.left.values())):
                await self._handle(job, some)
        except asyncio.CancelledError:
            pass  # by _cancel_jobs, which only waits
        except Exception as error:  # not of the handler: raised by ``run``
            self._failure = self._failure or error
            self.stop()
        finally:
            # Whatever ended the job: what is not finished is delivered again, and was not at fault.
            self._messages.give_back(job.left.values())
            del self._jobs[job]
            job.ended.set()
            self._changed.set()

    async def _handle(self, job: _Job, messages: tuple[Message[Any], ...]) -> None:
        """Handle messages together, as often as ``next_step`` says."""
        failures = 0
        while messages := self._still_here(job, messages):
            if self._stopping.is_set() and (failures or self._hurried.is_set()):
                return
            error = await self._try(messages)
            if error is None:
                self._finish(job, messages)
                return
            failures += 1
            step = next_step(error, len(messages), failures, self._options.retries_max)
            _LOG.warning("handling %s failed; %s", _named(messages), step.value, exc_info=error)
            if step is NextStep.SPLIT:
                await self._follow_up(job, messages)
                for one in messages:
                    await self._handle_alone(job, one)
                return
            if step is NextStep.GIVE_BACK:
                await self._give_back(job, messages[0])
                return
            await self._pause(self._delays.retry, failures)
            await self._follow_up(job, messages)

    async def _handle_alone(self, job: _Job, message: Message[Any]) -> None:
        if not self._stopping.is_set():
            await self._handle(job, (message,))

    async def _try(self, messages: tuple[Message[Any], ...]) -> BaseException | None:
        """Handle messages, and return the error if that failed."""
        try:
            await self._attempt(messages)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return error  # the handler cancelled itself, or something that it waited for
        except HandlerMisuse as error:  # the messages are not at fault: ``run`` raises, and no delivery counts
            raise InvalidInput(str(error)) from None
        except Exception as error:
            return error
        return None

    def _still_here(self, job: _Job, messages: Iterable[Message[Any]]) -> tuple[Message[Any], ...]:
        """Return the messages that this loop still has; the others were finished, or are delivered again."""
        found = {one.id: one for one in messages if one.id in job.left and self._messages.has(one)}
        self._finish(job, [one for one in messages if one.id not in found])
        return tuple(found.values())

    def _finish(self, job: _Job, messages: Iterable[Message[Any]]) -> None:
        for one in messages:
            job.left.pop(one.id, None)

    # -- after a failure ------------------------------------------------------------------------------

    async def _give_back(self, job: _Job, message: Message[Any]) -> None:
        """Let a message that failed be delivered again after a delay, in its order."""
        await self._follow_up(job, (message,))
        if message.id not in job.left:
            return  # a transaction held it, and has ended
        failures = message.redelivery_count + 1
        key = self._key(message)
        if key is None:
            del job.left[message.id]
            self._messages.give_back_later(message, self._delays.redelivery.delay_ms(failures))
            return
        # The key stays blocked during the delay, because this job is not over.
        await self._pause(self._delays.redelivery, failures)
        del job.left[message.id]
        self._messages.give_back_in_order(message.id.segment, self._withdrawn({key}), (message,))

    async def _follow_up(self, job: _Job, messages: tuple[Message[Any], ...]) -> None:
        """
        With an order: wait for the end of the transaction that holds the messages, as after a commit that failed, or a
        block of the application that failed behind the acknowledgments.

        They are then finished, or delivered again. Later messages of their keys are given back, so that they do not
        overtake them. The same if the transaction has ended already, and they wait for their redelivery.
        """
        pending = [
            one
            for one in messages
            if self._key(one) is not None and (self._messages.is_held(one) or not self._messages.has(one))
        ]
        if not pending:
            return
        failures = 0
        while any(map(self._messages.is_held, pending)):
            failures += 1
            await self._delays.retry.pause(failures)
            try:
                await self._messages.refresh(pending)
            except Unavailable:
                continue
        self._finish(job, pending)
        keys = {self._key(one) for one in pending}
        for segment in sorted({one.id.segment for one in pending}):
            withdrawn = self._withdrawn({key for key in keys if key is not None}, segment)
            self._messages.give_back_in_order(segment, withdrawn)

    def _withdrawn(self, keys: set[Hashable], segment: str | None = None) -> list[Message[Any]]:
        """Remove the messages with these keys from all jobs, and return them; none of them is being handled."""
        found: list[Message[Any]] = []
        for job in self._jobs:
            for one in tuple(job.left.values()):
                if self._key(one) in keys and segment in (None, one.id.segment):
                    del job.left[one.id]
                    found.append(one)
        return found

    async def _pause(self, delays: Backoff, failures: int) -> None:
        """Wait before the next attempt, or until the loop is stopped."""
        await first_completed(delays.pause(failures), self._stopping.wait())


def _named(messages: Sequence[Message[Any]]) -> str:
    first = str(messages[0].id)
    return first if len(messages) == 1 else f"{first} and {len(messages) - 1} more messages"
