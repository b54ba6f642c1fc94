"""The session of one opening, and the leases bound to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from txnframework.environment import Environment
from txnframework.errors import Closed, LeaseHeld, TxnFrameworkError
from txnframework.plugin import HEARTBEATS, SessionLease, SessionValidity
from txnframework.runtime.call_groups import GroupRules, ResultGroups
from txnframework.runtime.tasks import start_task
from txnframework_sql.steps.leases import (
    Clock,
    LeaseRequest,
    Refused,
    acquire_leases,
    end_expired,
    end_session,
    extend,
    has_expired,
    release_leases,
)
from txnframework_sql.steps.statements import Executor, Steps

TOGETHER_MAX = 64
"""The most leases that are acquired, or released, in one step of the database."""


class Lease(SessionLease):
    """A lease held by a session of a SQL store."""

    @property
    def place(self) -> tuple[str, int]:
        """Its name and its fencing number, which all copies of it have."""
        return self.name, self.fencing


class LeaseSession:
    """
    Renews the session while it may hold a lease; an opening without a lease writes nothing.

    Acquisitions that wait for their turn share a step of the database, and each of them gets its own answer. So do
    releases. A consumer has a lease for each segment of its topic.

    ``clock`` decides when leases expire in the database.
    """

    def __init__(self, executor: Executor, environment: Environment, name: str, ttl_ms: int, clock: Clock) -> None:
        self.name = name
        self._executor = executor
        self._environment = environment
        self._ttl_ms = ttl_ms
        self._clock = clock
        # By name and fencing number, because a session may acquire a lease again that it holds.
        self._held: dict[tuple[str, int], list[Lease]] = {}
        self._validity = SessionValidity(environment, ttl_ms)
        # How often the held leases were dropped locally, and how many of those times are stored in the database.
        self._lapses = 0
        self._stored_lapses = 0
        self._is_known = False
        self._is_closed = False
        # Serializes a heartbeat that ends an unused session with an acquisition that starts the session again.
        self._changing = asyncio.Lock()
        # The acquisitions that run or wait for their turn.
        self._acquiring = 0
        rules: GroupRules[Any] = GroupRules(
            joins=lambda *_: True, size=lambda _: 1, size_max=TOGETHER_MAX, what="a lease", is_cancelled=False
        )
        self._acquisitions = ResultGroups(self._acquire_in_turn, rules, self._drop)
        self._releases = ResultGroups(self._release, rules)
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def acquire(self, name: str, holder: str) -> Lease:
        """Acquire a lease, or raise LeaseHeld."""
        self._acquiring += 1
        try:
            return await self._acquisitions.add((name, holder))
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
        if lease not in self._held.get(lease.place, ()):
            return
        await self._releases.add(lease.place)
        for held in self._held.pop(lease.place, ()):
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

    async def _acquire_in_turn(self, wanted: Sequence[tuple[str, str]]) -> list[Lease | Exception]:
        async with self._changing:
            return await self._acquire(wanted)

    async def _acquire(self, wanted: Sequence[tuple[str, str]]) -> list[Lease | Exception]:
        """Acquire leases by their names and holders, in one step; return each lease, or why it is refused."""
        self._require_open()
        now_ms = self._environment.monotonic_ms()
        if self._validity.is_over:
            self._lapse()
        lapses = self._lapses
        request = LeaseRequest(tuple(wanted), self.name, self._ttl_ms, lapses > self._stored_lapses)
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
            self._validity.extend(now_ms)
        found: list[Lease | Exception] = []
        for (name, _), answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Refused):
                found.append(LeaseHeld(name, answer.holder, answer.key))
            else:
                lease = Lease(name, answer.key, answer.fencing, self.release)
                self._held.setdefault(lease.place, []).append(lease)
                found.append(lease)
        if self._lapses > lapses or self._validity.is_over:
            # The session lapsed before the reply, or the reply took longer than its lifetime: the leases are lost at
            # once.
            self._lapse()
        return found

    async def _release(self, places: Sequence[tuple[str, int]]) -> list[Exception | None]:
        await self._executor.write(lambda: release_leases(self.name, places))
        return [None] * len(places)

    def _start(self) -> tuple[asyncio.Task[None], ...]:
        return (
            start_task(self._heartbeat(), name="txnframework-sql heartbeat"),
            start_task(self._expire(), name="txnframework-sql session"),
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

    async def _heartbeat(self) -> None:
        """Write a new expiry time every third of the session's lifetime, immediately after one that took longer."""
        began_ms = self._environment.monotonic_ms()
        while True:
            left_ms = began_ms + self._ttl_ms // HEARTBEATS - self._environment.monotonic_ms()
            await self._environment.sleep(max(0, left_ms))
            began_ms = self._environment.monotonic_ms()
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
                self._validity.extend(now_ms)
            else:
                self._lapse()
        elif not self._acquiring:
            # Otherwise an acquisition starts or extends the session.
            async with self._changing:
                await self._end_unused()

    async def _write_expiry(self) -> bool:
        """
        Write a new expiry time, and end the expired sessions of others.

        Return False if the session has expired in the database.
        """
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
        else:
            await self._end_expired()

    async def _end_expired(self) -> None:
        """End the expired sessions of others."""
        if await self._executor.read(lambda: has_expired(self._clock)):
            await self._executor.write(lambda: end_expired(self._clock))

    async def _expire(self) -> None:
        """Drop the leases locally, before other processes can acquire them, when no heartbeat succeeded in time."""
        await self._validity.lapse(lambda: bool(self._held), self._lapse)

    def _lapse(self) -> None:
        """Treat all leases as lost."""
        held, self._held = self._held, {}
        self._lapses += 1
        for copies in held.values():
            for lease in copies:
                lease.end()

    def _drop(self, lease: Lease) -> None:
        """Forget a lease whose caller was cancelled, as if the reply had been lost."""
        left = [held for held in self._held.pop(lease.place, ()) if held is not lease]
        if left:
            self._held[lease.place] = left
