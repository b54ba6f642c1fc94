"""
Leases: records that belong to a session, and the heartbeats of the own session.

A session writes heartbeats while it may hold a lease. Other processes end a session whose heartbeat did not come in
time: one batch writes the end of the session, on condition that its last heartbeat is still the last one, and deletes
its leases. So no crash leaves a lease without its session, and a heartbeat and the end exclude each other.

The holder drops its leases before that: see ``SessionValidity``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from txnframework.environment import Environment
from txnframework.errors import Closed, LeaseHeld, TxnFrameworkError, Unavailable
from txnframework.model.paths import lease_key
from txnframework.plugin import HEARTBEATS, SessionLease, SessionValidity
from txnframework.runtime.tasks import start_task
from txnframework_nats.connection._failures import RequestRefused
from txnframework_nats.records._copy import RecordChange
from txnframework_nats.records._feed import Feed
from txnframework_nats.records._layout import (
    Layout,
    record_id,
)
from txnframework_nats.records._lease_writes import LeaseWrites, require_lost_race
from txnframework_nats.records._sessions import LeaseDocument, SessionTable, decode_lease, encode_heartbeat
from txnframework_nats.records._writer import Writer


class LeaseSession:
    """The session of one opening, its leases, and the end of other sessions that have expired."""

    def __init__(
        self, session: str, feed: Feed, writer: Writer, layout: Layout, environment: Environment, ttl_ms: int
    ) -> None:
        self.session = session
        self._feed = feed
        self._writer = writer
        self._environment = environment
        self._ttl_ms = ttl_ms
        self._table = SessionTable(environment)
        self._writes = LeaseWrites(feed, writer, layout, self._table, ttl_ms)
        self._held: dict[SessionLease, None] = {}
        self._validity = SessionValidity(environment, ttl_ms)
        self._lives = 0
        # None: the present life has no message, as far as is known.
        self._life: str | None = None
        self._is_closed = False
        # Serializes the writes of the own session: each expects the number of the one before.
        self._changing = asyncio.Lock()
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        feed.applier.observe_sessions(self._observe)
        feed.observe(self._changed, lambda: None)

    async def acquire(self, name: str, holder: str) -> SessionLease:
        """Acquire a lease, or raise LeaseHeld."""
        async with self._changing:
            self._require_open()
            if self._validity.is_over:
                self._lapse()
            for _ in range(HEARTBEATS):
                lease = await self._acquire(name, holder)
                if lease is not None:
                    break
            else:
                raise Unavailable(f"lease {name} was changed by others {HEARTBEATS} times")
        if self._validity.is_over:
            # The reply took longer than the lease lives.
            self._lapse()
        return lease

    async def _acquire(self, name: str, holder: str) -> SessionLease | None:
        """Acquire a lease; None: others have changed it or the session meanwhile."""
        key = lease_key(name)
        await self._feed.current()
        record = self._feed.copy.get(record_id(key))
        version = None
        if record is not None:
            document = decode_lease(record)
            if document.life != self._life or document.holder != holder:
                self.start_expiry()
                if document.session == self.session and document.life != self._life:
                    # A former life of this session holds it: the leases were dropped here, and are still stored.
                    await self._writes.end_life(document.life, True)
                    return None
                raise LeaseHeld(name, document.holder, key)
            version = record.version
        begun_ms = self._environment.monotonic_ms()
        life = self._begin_life()
        self.start_expiry()
        write = self._writer.next_write()
        messages = [self._writes.heartbeat(life, write)]
        if version is None:
            value = msgspec.json.encode(LeaseDocument(holder=holder, session=self.session, life=life))
            messages.append(self._writes.grant(key, value, write))
        try:
            last = await self._writer.send(messages, write)
        except RequestRefused as error:
            require_lost_race(error)
            await self._writer.learn_deleted((record_id(key),))
            await self._feed.current()
            self._lapse_if_ended()
            return None
        if not self._is_closed and self._life == life:
            self._validity.extend(begun_ms)
        self._require_open()
        self._table.observe(life, last - len(messages) + 1, encode_heartbeat(self._ttl_ms))
        lease = SessionLease(name, key, last if version is None else version, self.release)
        self._held[lease] = None
        return lease

    def start_expiry(self) -> None:
        """Start the heartbeats, and the end of sessions whose heartbeats do not come."""
        if not self._tasks and not self._is_closed:
            self._tasks = (
                start_task(self._beat(), name="txnframework-nats heartbeat"),
                start_task(
                    self._validity.lapse(lambda: bool(self._held), self._lapse), name="txnframework-nats session"
                ),
            )

    async def release(self, lease: SessionLease) -> None:
        """Release a lease; every copy of it in this session ends."""
        if lease not in self._held:
            return
        await self._writes.delete(lease.key, lease.version)
        for held in tuple(self._held):
            if (held.name, held.version) == (lease.name, lease.version):
                del self._held[held]
                held.end()

    async def break_lease(self, name: str, version: int) -> None:
        """End another session's lease if its record still has this version."""
        await self._writes.delete(lease_key(name), version)

    async def close(self) -> None:
        """End the session and its leases; may be repeated."""
        await self._stop()
        async with self._changing:
            if self._life is not None:
                life, self._life = self._life, None
                await self._writes.end_life(life, self._is_own(life))

    async def abandon(self) -> None:
        """Stop the heartbeats without a write, like a killed process."""
        await self._stop()
        self._life = None

    async def _stop(self) -> None:
        self._is_closed = True
        tasks, self._tasks = self._tasks, ()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._drop()

    def _begin_life(self) -> str:
        if self._life is None:
            self._lives += 1
            self._life = f"{self.session}-{self._lives}"
        return self._life

    # -- time -----------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Renew the own session every third of its lifetime, and end the sessions that have expired."""
        while True:
            await self._environment.sleep(self._ttl_ms // HEARTBEATS)
            try:
                async with self._changing:
                    await self._renew()
                await self._end_expired()
            except Closed:
                return
            except TxnFrameworkError:
                # The next heartbeat may succeed; if none succeeds in time, the session lapses.
                continue

    async def _renew(self) -> None:
        if self._life is None:
            return
        life = self._life
        if not self._held:
            # This also ends leases taken by an acquisition of unknown outcome.
            self._life = None
            await self._writes.end_life(life, self._is_own(life))
            return
        begun_ms = self._environment.monotonic_ms()
        write = self._writer.next_write()
        message = self._writes.heartbeat(life, write)
        try:
            last = await self._writer.send([message], write)
        except RequestRefused as error:
            require_lost_race(error)
            await self._feed.current()
            self._lapse_if_ended()
            return
        if self._life == life:
            self._table.observe(life, last, message.payload)
            self._validity.extend(begun_ms)

    async def _end_expired(self) -> None:
        self._table.forget_ended()
        for life, _ in self._table.expired():
            if life != self._life:
                await self._writes.end_life(life, self._is_own(life))

    def _lapse(self) -> None:
        """Treat all leases as lost; the next acquisition begins another life."""
        self._drop()
        self._life = None

    def _lapse_if_ended(self) -> None:
        known = self._table.get(self._life) if self._life is not None else None
        if known is not None and known.ttl_ms is None:
            self._lapse()

    def _drop(self) -> None:
        held, self._held = self._held, {}
        for lease in held:
            lease.end()

    # -- what the feed delivers -----------------------------------------------------------------------

    def _observe(self, life: str, sequence: int, payload: bytes) -> None:
        self._table.observe(life, sequence, payload)
        self._lapse_if_ended()

    def _changed(self, changes: Sequence[RecordChange]) -> None:
        """End a lease whose record is gone: it was broken."""
        if not self._held:
            return
        gone = {(change.path, change.partition) for change in changes if change.value is None}
        for lease in tuple(self._held):
            if record_id(lease.key) in gone:
                self._held.pop(lease, None)
                lease.end()

    def _require_open(self) -> None:
        if self._is_closed:
            raise Closed("the store is being closed, and its leases with it")

    def _is_own(self, life: str) -> bool:
        return life.startswith(f"{self.session}-")
