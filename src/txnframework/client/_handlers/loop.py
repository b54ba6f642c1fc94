"""A loop that receives messages, calls a handler for them, and acknowledges them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from txnframework.client._handlers.attempts import Attempt
from txnframework.client._handlers.handler_functions import HandlerMisuse
from txnframework.client._handlers.hindered_jobs import HinderedJobs
from txnframework.client._handlers.messages import HandledMessages
from txnframework.client._handlers.plan import LoopOptions, NextStep, groups, is_hindered, next_step
from txnframework.client._messages import Message, MessageID
from txnframework.client._subscription.inbox import OrderKey
from txnframework.environment import Environment
from txnframework.errors import InvalidInput, Unavailable
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.deadline import Deadline
from txnframework.runtime.tasks import first_completed, start_task

_LOG = logging.getLogger("txnframework.client.handlers")

_FINISHING_MAX = 16
"""No handler begins while so many jobs, or more, have results that are not stored yet."""


@dataclass(frozen=True, slots=True)
class LoopDelays:
    """The delays before the same messages are tried again, and before a message is redelivered."""

    retry: Backoff
    redelivery: Backoff


@dataclass(eq=False, slots=True)
class _Job:
    """
    Messages that were received together.

    ``left``: those that are neither finished nor given back. ``keys``: the keys that the job holds. ``runs``: whether
    its handler runs.
    """

    left: dict[MessageID, Message[Any]]
    keys: set[OrderKey]
    runs: bool = False


class _Stopped(Exception):
    """The loop was stopped, so the job ends."""


class HandlerLoop:
    """
    Handles messages until it is stopped or cancelled; ``run`` is called once.

    A handler runs until the attempt says that it has returned. While its results are being stored, the next handler
    runs, so that the results of several can be stored in one step.

    No message is handled while an earlier one of its key is unfinished. Two rules are enough for this:

    * A job holds the keys of its messages, and no other message of these keys is received. It handles the messages of
      a key in their order.
    * If a message is not finished, whatever the reason, it is given back together with all later messages of its key
      (``_return``). Only then is the key freed, at once or after a delay.
    """

    def __init__(
        self,
        receive: Callable[[int], Awaitable[Sequence[Message[Any]]]],
        messages: HandledMessages,
        attempt: Attempt,
        environment: Environment,
        delays: LoopDelays,
        options: LoopOptions,
        name: str,
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
        # The task of ``run`` while it waits for messages, which ``stop`` interrupts.
        self._receiving: asyncio.Task[Any] | None = None
        self._jobs: dict[_Job, asyncio.Task[None]] = {}
        # Those whose handler has returned, in their last attempt.
        self._finishing: set[_Job] = set()
        self._handlers = asyncio.Semaphore(options.concurrency)
        self._timers: set[asyncio.Task[None]] = set()
        self._hindered = HinderedJobs(environment, name)
        self._failure: Exception | None = None

    def stop(self) -> None:
        """Begin no handler any more, and let ``run`` return after the running ones; a second call cancels these."""
        if self._stopping.is_set():
            self._hurried.set()
        self._stopping.set()
        self._changed.set()
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            receiving.cancel()

    async def run(self) -> None:
        """Handle messages until ``stop``; an error of receiving is raised."""
        self._messages.follow_keys()
        try:
            while not self._stopping.is_set():
                if await self._has_room():
                    self._begin(await self._next())
            await self._drain()
        finally:
            await self._cancel_tasks()
            self._messages.forget_keys()
        if self._failure is not None:
            raise self._failure

    # -- taking messages ------------------------------------------------------------------------------

    async def _has_room(self) -> bool:
        """Wait until another job may begin; return False if the loop is to end."""
        while not self._stopping.is_set() and self._failure is None:
            if self._may_begin():
                return True
            self._changed.clear()
            await self._changed.wait()
        self._stopping.set()
        return False

    def _may_begin(self) -> bool:
        if self._messages.has_suspects():
            return not self._jobs
        if len(self._finishing) >= _FINISHING_MAX:
            return False
        return len(self._jobs) - len(self._finishing) < self._options.concurrency

    async def _next(self) -> Sequence[Message[Any]]:
        """Return the next messages; none if the loop was stopped."""
        task = self._receiving = asyncio.current_task()
        try:
            return await self._receive(self._options.messages_max)
        except asyncio.CancelledError:
            # Nothing is received by a call that is cancelled: a call that has messages returns at once.
            if task is None or self._receiving is not None or task.uncancel():
                raise
            return ()
        finally:
            self._receiving = None

    def _begin(self, received: Sequence[Message[Any]]) -> None:
        if not received:
            return
        if self._stopping.is_set():
            self._give_back(received)
            return
        job = self._job(received)
        self._messages.hold(job.keys)
        self._jobs[job] = start_task(self._process(job))

    def _job(self, messages: Iterable[Message[Any]]) -> _Job:
        left = {one.id: one for one in messages}
        return _Job(left, {key for one in left.values() if (key := self._messages.key(one)) is not None})

    # -- ending ---------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Wait for the running handlers, for a limited time."""
        deadline = Deadline(self._environment, self._options.drain_timeout_ms)
        while self._jobs and self._failure is None and not self._hurried.is_set():
            self._changed.clear()
            if not deadline.left_ms:
                return
            await first_completed(self._changed.wait(), self._hurried.wait(), deadline.passed())

    async def _cancel_tasks(self) -> None:
        self._stopping.set()
        running = (*self._jobs.values(), *self._timers)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    # -- one job --------------------------------------------------------------------------------------

    async def _process(self, job: _Job) -> None:
        try:
            for some in groups(tuple(job.left.values())):
                await self._handle(job, some)
        except (asyncio.CancelledError, _Stopped):
            pass  # cancelled by _cancel_tasks, which only waits
        except Exception as error:  # not of the handler: raised by ``run``
            self._failure = self._failure or error
            self.stop()
        finally:
            # Whatever ended the job: what is not finished is delivered again, and was not at fault.
            self._hindered.discard(job)
            self._end(job)
            del self._jobs[job]
            self._changed.set()

    async def _handle(self, job: _Job, messages: tuple[Message[Any], ...]) -> None:
        """Handle messages together, as often as ``next_step`` says."""
        failures = hindrances = 0
        while messages := self._still_here(job, messages):
            error = await self._try(job, messages)
            if is_hindered(error):
                hindrances += 1
                self._hindered.add(job, error)
            else:
                hindrances = 0
                self._hindered.discard(job)
            if error is None:
                self._finish(job, messages)
                return
            failures += not hindrances
            step = next_step(error, len(messages), failures, self._options.retries_max)
            if not hindrances:
                _LOG.warning("handling %s failed; %s", _named(messages), step.value, exc_info=error)
            if step is NextStep.SPLIT:
                await self._follow_up(job, messages)
                for one in messages:
                    await self._handle(job, (one,))
                return
            if step is NextStep.GIVE_BACK:
                await self._give_back_failed(job, messages[0])
                return
            await self._pause(self._delays.retry, hindrances or failures)
            await self._follow_up(job, messages)

    async def _try(self, job: _Job, messages: tuple[Message[Any], ...]) -> BaseException | None:
        """Handle messages, and return the error if that failed."""
        await self._handlers.acquire()
        job.runs = True
        try:
            if self._stopping.is_set():
                raise _Stopped
            await self._attempt(messages, partial(self._returned, job))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return error  # the handler cancelled itself, or something that it waited for
        except HandlerMisuse as error:  # the messages are not at fault: ``run`` raises, and no delivery counts
            raise InvalidInput(str(error)) from None
        except _Stopped:
            raise
        except Exception as error:
            return error
        finally:
            if job.runs:
                job.runs = False
                self._handlers.release()
            self._finishing.discard(job)
        return None

    def _returned(self, job: _Job) -> None:
        """Let another handler run, while the results of a job are being stored."""
        if job.runs:
            job.runs = False
            self._handlers.release()
            self._finishing.add(job)
            self._changed.set()

    def _still_here(self, job: _Job, messages: Iterable[Message[Any]]) -> tuple[Message[Any], ...]:
        """
        Return the messages that this loop still has; the others were finished, or are delivered again.

        They may be delivered again behind later ones of their keys, so these are given back, too.
        """
        gone = [one for one in messages if one.id in job.left and not self._messages.has(one)]
        self._leave(job, gone)
        return tuple([one for one in messages if one.id in job.left])

    def _finish(self, job: _Job, messages: Iterable[Message[Any]]) -> None:
        for one in messages:
            job.left.pop(one.id, None)

    # -- what is not finished -------------------------------------------------------------------------

    async def _give_back_failed(self, job: _Job, message: Message[Any]) -> None:
        """Let a message that failed be delivered again after a delay, in its order."""
        await self._follow_up(job, (message,))
        if message.id not in job.left:
            return  # a transaction held it, and has ended
        delay_ms = self._delays.redelivery.delay_ms(message.redelivery_count + 1)
        key = self._messages.key(message)
        if key is None:
            del job.left[message.id]
            self._messages.give_back_later(message, delay_ms)
        else:
            self._return(job, key, (message,), delay_ms)

    async def _follow_up(self, job: _Job, messages: tuple[Message[Any], ...]) -> None:
        """
        With an order: wait for the end of the transaction that holds the messages, as after a commit that failed, or a
        block of the application that failed behind the acknowledgments.

        They are then finished, or delivered again. The same if the transaction has ended already, and they wait for
        their redelivery.
        """
        pending = [
            one
            for one in messages
            if self._messages.key(one) is not None and (self._messages.is_held(one) or not self._messages.has(one))
        ]
        failures = 0
        while any(map(self._messages.is_held, pending)):
            failures += 1
            await self._delays.retry.pause(failures)
            try:
                await self._messages.refresh(pending)
            except Unavailable:
                continue
        self._leave(job, pending)

    def _leave(self, job: _Job, gone: Iterable[Message[Any]]) -> None:
        """Forget messages that are finished, or delivered again; later ones of their keys must not overtake them."""
        self._finish(job, gone)
        for key in {self._messages.key(one) for one in gone}:
            if key in job.keys:
                self._return(job, key)

    def _end(self, job: _Job) -> None:
        """Give back all that a job has left."""
        if not job.left:
            self._messages.free(job.keys)
            return
        for key in tuple(job.keys):
            self._return(job, key)
        self._messages.give_back(None, job.left.values())

    def _give_back(self, received: Sequence[Message[Any]]) -> None:
        """Give back messages that were received, and of which no job has begun."""
        self._end(self._job(received))

    def _return(self, job: _Job, key: OrderKey, failed: Iterable[Message[Any]] = (), delay_ms: int = 0) -> None:
        """Give back all that a job has left of a key, and free the key, after a delay if a message ``failed``."""
        rest = [one for one in job.left.values() if self._messages.key(one) == key]
        self._finish(job, rest)
        self._messages.give_back(key, rest, failed)
        job.keys.discard(key)
        if not delay_ms:
            self._messages.free((key,))
            return
        timer = start_task(self._free_later(key, delay_ms))
        self._timers.add(timer)
        timer.add_done_callback(self._timers.discard)

    async def _free_later(self, key: OrderKey, delay_ms: int) -> None:
        # The key uses no room of ``concurrency`` meanwhile.
        await self._environment.sleep(delay_ms)
        self._messages.free((key,))

    async def _pause(self, delays: Backoff, failures: int) -> None:
        """Wait before the next attempt, or until the loop is stopped."""
        await first_completed(delays.pause(failures), self._stopping.wait())


def _named(messages: Sequence[Message[Any]]) -> str:
    first = str(messages[0].id)
    return first if len(messages) == 1 else f"{first} and {len(messages) - 1} more messages"
