"""The session of one opening, and the leases bound to it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from zope.interface import implementer

from txnframework.environment import Environment
from txnframework.errors import Closed, LeaseHeld, TxnFrameworkError
from txnframework.interfaces import ILease
from txnframework_sql._error_copies import copy_error
from txnframework_sql.steps.leases import (
    Clock,
    Granted,
    LeaseRequest,
    Refused,
    acquire_leases,
    end_expired,
    end_session,
    extend,
    has_expired,
    release_lease,
)
from txnframework_sql.steps.statements import Executor, Steps

MARGIN = 6
"""The session expires locally this fraction of its lifetime before other processes may take its leases."""

HEARTBEATS = 3
"""A session that holds a lease is renewed so often in its lifetime."""

TOGETHER_MAX = 64
"""The most leases that are acquired in one step of the database."""


@implementer(ILease)
class Lease:
    """A lease held by a session of a SQL store."""

    def __init__(self, session: LeaseSession, name: str, granted: Granted) -> None:
        self.name = name
        self.key = granted.key
        self.version = granted.fencing
        self.fencing = granted.fencing
        self._session = session
        self._lost = asyncio.Event()

    async def lost(self) -> None:
        """Return when the lease can no longer be relied on; see ILease."""
        await self._lost.wait()

    async def release(self) -> None:
        """Release the lease now; idempotent, also after it was lost."""
        await self._session.release(self)

    def end(self) -> None:
        """Wake the callers that wait for its loss."""
        self._lost.set()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An acquisition, and the lease that its caller waits for."""

    name: str
    holder: str
    lease: asyncio.Future[Lease]

    def refuse(self, error: Exception) -> None:
        """Let the caller raise an error, unless it was cancelled."""
        if not self.lease.done():
            self.lease.set_exception(error)


class LeaseSession:
    """
    Renews the session while it may hold a lease; an opening without a lease writes nothing.

    Acquisitions that wait for their turn share a step of the database, and each of them gets its own answer.

    ``clock`` decides when leases expire in the database. The local expiry is measured by this process's own clock,
    starting before each request to the database. The two clocks are therefore never compared.
    """

    def __init__(self, executor: Executor, environment: Environment, name: str, ttl_ms: int, clock: Clock) -> None:
        self.name = name
        self._executor = executor
        self._environment = environment
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._held: dict[Lease, None] = {}
        # The time until which the database surely keeps the session, minus the margin, as the event loop learned it.
        self._told_until_ms = 0
        # How often the held leases were dropped locally, and how many of those times are stored in the database.
        self._lapses = 0
        self._stored_lapses = 0
        self._is_known = False
        self._is_closed = False
        # Serializes a heartbeat that ends an unused session with an acquisition that starts the session again.
        self._changing = asyncio.Lock()
        # The acquisitions that run or wait for their turn.
        self._acquiring = 0
        # Those that wait, whether a step for them is about to begin, and the steps that are about to begin or run.
        self._waiting: deque[_Waiting] = deque()
        self._is_sharing = False
        self._sharing: set[asyncio.Task[None]] = set()
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def acquire(self, name: str, holder: str) -> Lease:
        """Acquire a lease, or raise LeaseHeld."""
        acquiring = _Waiting(name, holder, asyncio.get_running_loop().create_future())
        self._waiting.append(acquiring)
        self._acquiring += 1
        try:
            self._share()
            return await acquiring.lease
        except asyncio.CancelledError:
            if acquiring.lease.done() and not acquiring.lease.cancelled() and acquiring.lease.exception() is None:
                # The caller was cancelled just before it got the lease, as if the reply had been lost.
                self._held.pop(acquiring.lease.result(), None)
            raise
        finally:
            self._acquiring -= 1

    def start_expiry(self) -> None:
        """
        Start ending expired leases of other sessions, because a caller waits for one.

        A killed process writes nothing, so the end of its leases would otherwise wake no watch.
        """
        if not self._tasks and not self._is_closed:
            self._tasks = self._start()

    async def release(self, lease: Lease) -> None:
        """Release a lease; every copy of it in this session ends."""
        if lease not in self._held:
            return
        await self._executor.write(lambda: release_lease(self.name, lease.name, lease.fencing))
        for held in tuple(self._held):
            if (held.name, held.fencing) == (lease.name, lease.fencing):
                del self._held[held]
                held.end()

    async def close(self) -> None:
        """End the session and its leases; idempotent."""
        await self._stop()
        # Wait for a running acquisition, which may have stored the session.
        async with self._changing:
            if self._is_known:
                try:
                    await self._executor.write(lambda: end_session(self.name))
                finally:
                    self._is_known = False

    async def abandon(self) -> None:
        """Stop renewing the session without a write to the database, like a killed process."""
        await self._stop()
        self._is_known = False

    def _share(self) -> None:
        """Start a step for the acquisitions that wait, unless one is about to begin."""
        if not self._is_sharing:
            self._is_sharing = True
            # A task of its own, so that a cancelled caller does not cancel the others.
            task = asyncio.ensure_future(self._acquire_waiting())
            self._sharing.add(task)
            task.add_done_callback(self._sharing.discard)

    async def _acquire_waiting(self) -> None:
        """Acquire leases that are waited for, in one step; each of the callers gets its lease or an error."""
        async with self._changing:
            self._is_sharing = False
            taken = [self._waiting.popleft() for _ in range(min(TOGETHER_MAX, len(self._waiting)))]
            if self._waiting:
                self._share()
            wanted = [one for one in taken if not one.lease.done()]
            try:
                if wanted:
                    await self._acquire(wanted)
            except TxnFrameworkError as error:
                for one in wanted:
                    one.refuse(copy_error(error, error.__cause__))
            except BaseException:
                # A defect, or the event loop is ending: no caller may wait forever.
                for one in wanted:
                    one.lease.cancel()
                raise

    async def _acquire(self, wanted: list[_Waiting]) -> None:
        self._require_open()
        now_ms = self._environment.monotonic_ms()
        if now_ms >= self._valid_until_ms:
            self._lapse()
        lapses = self._lapses
        names = tuple((one.name, one.holder) for one in wanted)
        request = LeaseRequest(names, self.name, self._ttl_ms, lapses > self._stored_lapses)
        was_known, self._is_known = self._is_known, True
        # Called before the reply, which may be lost, so that the session does not outlive the leases it holds.
        self.start_expiry()
        answers = await self._executor.write(lambda: acquire_leases(request, self._clock))
        # Leases that lapsed during the commit are still granted in the database: the session's next step ends them.
        self._stored_lapses = lapses
        if all(isinstance(answer, Refused) for answer in answers):
            self._is_known = was_known
        else:
            self._require_open()
            self._extend_validity(now_ms + self._ttl_ms)
        for one, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Refused):
                one.refuse(LeaseHeld(one.name, answer.holder, answer.key))
            elif not one.lease.done():
                lease = Lease(self, one.name, answer)
                self._held[lease] = None
                one.lease.set_result(lease)
        if self._lapses > lapses or self._environment.monotonic_ms() >= self._valid_until_ms:
            # The session lapsed before the reply, or the reply took longer than its lifetime: the leases are lost at
            # once.
            self._lapse()

    def _start(self) -> tuple[asyncio.Task[None], ...]:
        loop = asyncio.get_running_loop()
        return (
            loop.create_task(self._heartbeat(), name="txnframework-sql heartbeat"),
            loop.create_task(self._expire(), name="txnframework-sql session"),
        )

    async def _stop(self) -> None:
        self._is_closed = True
        tasks, self._tasks = self._tasks, ()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lapse()

    def _require_open(self) -> None:
        self._executor.require_open()
        if self._is_closed:
            raise Closed("the store is being closed, and its leases with it")

    @property
    def _valid_until_ms(self) -> int:
        return self._told_until_ms

    def _extend_validity(self, expires_ms: int) -> None:
        self._told_until_ms = max(self._told_until_ms, expires_ms - self._ttl_ms // MARGIN)

    async def _heartbeat(self) -> None:
        """Write a new expiry time every third of the session's lifetime."""
        while True:
            await self._environment.sleep(self._ttl_ms // HEARTBEATS)
            try:
                await self._renew()
            except Closed:
                return
            except TxnFrameworkError:
                # The next heartbeat may succeed; if none succeeds in time, the session lapses.
                continue

    async def _renew(self) -> None:
        if self._held:
            # The acquisitions that wait for each other may not delay this.
            now_ms = self._environment.monotonic_ms()
            if await self._write_expiry():
                self._extend_validity(now_ms + self._ttl_ms)
            else:
                self._lapse()
        elif not self._acquiring:
            # Otherwise an acquisition starts or extends the session.
            async with self._changing:
                await self._end_unused()

    async def _write_expiry(self) -> bool:
        """Write a new expiry time; return False if the session has expired in the database."""
        return await self._executor.write(self._extended)

    def _extended(self) -> Steps[bool]:
        return extend(self.name, self._ttl_ms, self._clock)

    async def _end_unused(self) -> None:
        """End the own session, which holds nothing, or those that have expired."""
        if self._is_known:
            lapses = self._lapses
            # This also ends leases taken by an acquisition of unknown outcome. The next acquisition starts the session
            # again.
            await self._executor.write(lambda: end_session(self.name))
            self._stored_lapses, self._is_known = lapses, False
        elif await self._executor.read(lambda: has_expired(self._clock)):
            await self._executor.write(lambda: end_expired(self._clock))

    async def _expire(self) -> None:
        """Drop the leases locally, before other processes can acquire them, when no heartbeat succeeded in time."""
        while True:
            # A lease acquired in the meantime extends the session beyond this time.
            left_ms = self._valid_until_ms - self._environment.monotonic_ms()
            await self._environment.sleep(left_ms if self._held else self._ttl_ms // HEARTBEATS)
            if self._held and self._environment.monotonic_ms() >= self._valid_until_ms:
                self._lapse()

    def _lapse(self) -> None:
        """Treat all leases as lost."""
        held, self._held = self._held, {}
        self._lapses += 1
        for lease in held:
            lease.end()
