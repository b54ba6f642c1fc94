"""Coordination between hosts: compare-and-set on records, leases and elections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from logging import INFO

import msgspec

from txnframework.broker.events import Event, log_event
from txnframework.environment import Environment
from txnframework.errors import CorruptRecord, LeaseHeld, OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model.metadata import Expect, Expected, IndexRange, Key, KeyRange, Put, Record
from txnframework.model.paths import behind, lease_key, lease_of, leases_range
from txnframework.model.records import UNREADABLE
from txnframework.runtime.tasks import BackgroundTask, repeat_until_closed

ATTEMPTS_MAX = 1_000
"""Each failed attempt means that another process succeeded. The bound only stops an endless loop caused by a defect."""

Decide = Callable[[Record | None], Awaitable[Put | None]]

PAGE_RECORDS = 500
SWEEP = "sweep "
"""The beginning of the name of a lease whose holder sweeps for a coordinator; its name follows."""


async def update_record(store: IMetadataStore, key: Key, decide: Decide) -> Record | None:
    """
    Read the record, let ``decide`` return the write (None: no write is needed), and write it; repeat after a conflict.

    Return the record as this call wrote it, or None if it needed no write.

    ``decide`` may read other records: it sees their state after this record was read. Its decision is written only if
    this record has not changed since. After a conflict or an unknown outcome ``decide`` is called again with the
    current record. So it must recognise its own effect, or tolerate repetition.

    :raises Unavailable: the record changed during each of ``ATTEMPTS_MAX`` attempts; the writes of other processes are
        stored.
    :raises OutcomeUnknown: the store became unavailable after a write whose outcome is unknown.
    """
    unknown: OutcomeUnknown | None = None
    for _ in range(ATTEMPTS_MAX):
        try:
            write = await decide(await store.get(key))
        except Unavailable as error:
            if unknown is None:
                raise
            # If the error was raised unchanged, it would mean that nothing was written.
            raise OutcomeUnknown(f"record {key.path} may have changed: {unknown}") from error
        if write is None:
            return None
        try:
            return Record(write.key, write.value, await store.put(write))
        except VersionMismatch:
            continue
        except OutcomeUnknown as error:
            unknown = error
            continue
        except Unavailable as error:
            if unknown is None:
                raise
            raise OutcomeUnknown(f"record {key.path} may have changed: {unknown}") from error
    raise Unavailable(f"record {key.path} changed {ATTEMPTS_MAX} times while it was being changed")


def expected_version(record: Record | None) -> Expected:
    """Return the expected version for a write that is based on ``record``."""
    return Expect.ABSENT if record is None else record.version


async def wait_until_free(store: IMetadataStore, lease: Key) -> None:
    """Wait until a lease has no holder; another process may take it first."""
    watch = await store.watch(lease)
    try:
        while await store.get(lease) is not None:
            await watch.changed()
    finally:
        await watch.close()


async def scan_records(store: IMetadataStore, whole: KeyRange | IndexRange) -> AsyncIterator[Record]:
    """Yield the records of a range, page by page."""
    left: KeyRange | IndexRange | None = whole
    while left is not None:
        if isinstance(left, KeyRange):
            page = await store.scan(left, PAGE_RECORDS)
        else:
            page = await store.scan_index(left, PAGE_RECORDS)
        for record in page.records:
            yield record
        left = page.resume


async def held_leases(store: IMetadataStore, prefix: str) -> dict[str, Record]:
    """Return the records of the held leases whose names begin with ``prefix``, by name, in the order of their keys."""
    found: dict[str, Record] = {}
    left: KeyRange | IndexRange | None = leases_range(prefix)
    while isinstance(left, KeyRange):
        page = await store.scan(left, PAGE_RECORDS)
        found.update({lease_of(record.key.path): record for record in page.records})
        left = page.resume
    return found


async def lease_page(store: IMetadataStore, prefix: str, after: str, leases_max: int) -> dict[str, Record]:
    """
    Return the records of the first held leases behind the lease ``after``, by name; a shorter page is the last.

    ``prefix``: only leases whose names begin with it. ``after``: empty for the first page.
    """
    whole = leases_range(prefix)
    left: KeyRange | IndexRange | None = behind(lease_key(after), whole) if after else whole
    found: dict[str, Record] = {}
    while isinstance(left, KeyRange) and len(found) < leases_max:
        page = await store.scan(left, leases_max - len(found))
        found.update({lease_of(record.key.path): record for record in page.records})
        left = page.resume
    return found


class _LeaseFields(msgspec.Struct):
    """The field of a lease's record that every store writes."""

    holder: str


@dataclass(frozen=True, slots=True)
class Holder:
    """
    The holder of a lease: ``session`` identifies it, ``consumer`` and ``process`` are for people.

    As text it is ``CONSUMER on PROCESS in SESSION``. Without a consumer that has a name, the text begins with ``on``.
    A text that was written without a process has only the session, or ``CONSUMER in SESSION``. A process name has an
    ``@`` and no white space. The lease of a subscription also names the type with which it is used: the text ends with
    ``as TYPE``.
    """

    consumer: str
    process: str
    session: str
    subscription_type: str = ""

    def __str__(self) -> str:
        """Return the text, which ``parse`` reads back."""
        used = f" as {self.subscription_type}" if self.subscription_type else ""
        place = f"on {self.process} in {self.session}{used}"
        return f"{self.consumer} {place}" if self.consumer else place

    @classmethod
    def parse(cls, text: str) -> Holder:
        """Return the holder that a text names; every text names one."""
        named, _, place = text.rpartition(" in ")
        session, _, used = place.partition(" as ")
        consumer, on, process = f" {named}".rpartition(" on ")
        if not on or "@" not in process or " " in process:
            return cls(named, "", session, used)
        return cls(consumer.removeprefix(" "), process, session, used)


def holder_of(lease: Record) -> str:
    """Return the holder that is named in the record of a lease."""
    try:
        return msgspec.json.decode(lease.value, type=_LeaseFields).holder
    except UNREADABLE as error:
        raise CorruptRecord(lease.key.path, "holder", str(error)) from error


class Election:
    """
    Holds one lease, or waits until it is free; ``elected`` is called each time this host acquires it.

    An election saves work and guarantees nothing: a paused host may believe that it is elected while another host is.
    """

    def __init__(
        self, store: IMetadataStore, environment: Environment, process: str, name: str, elected: Callable[[], None]
    ) -> None:
        self.won = False
        """Whether this host is elected, as far as it knows."""
        self._store = store
        self._process = process
        self._name = name
        self._elected = elected
        # Who held the lease when this host began to wait; None: it was free.
        self._earlier: str | None = None
        self._work = BackgroundTask(lambda: repeat_until_closed(self._compete, environment))

    def start(self) -> None:
        """Start to compete for the lease; a second call does nothing."""
        self._work.start()

    async def stop(self) -> None:
        """Stop competing; the lease is free when the store is closed, if not before."""
        self.won = False
        await self._work.stop()

    async def _compete(self) -> None:
        """Acquire the lease and wait until it is lost; if another process holds it, wait until it is free."""
        try:
            lease = await self._store.acquire_lease(self._name, str(Holder("", self._process, self._store.session)))
        except LeaseHeld as held:
            self._earlier = Holder.parse(held.holder).process or held.holder
            await wait_until_free(self._store, held.key)
            return
        self.won = True
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            name = self._name.removeprefix(SWEEP)
            sentence = f"{self._process} sweeps for coordinator {name} after {earlier}"
            facts = {"coordinator": name, "process": self._process, "earlier": earlier}
            log_event(INFO, Event.SWEEPS_TAKEN_OVER, sentence, **facts)
        try:
            self._elected()
            await lease.lost()
        finally:
            self.won = False
