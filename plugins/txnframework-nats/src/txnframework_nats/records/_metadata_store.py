"""The metadata store in a JetStream stream."""

from __future__ import annotations

import logging
from contextlib import suppress

from zope.interface import implementer

from txnframework.config import is_own_machine
from txnframework.environment import Environment
from txnframework.errors import Closed, OutcomeUnknown, Unavailable
from txnframework.interfaces import (
    ICopyableMetadataStore,
    IDurableStore,
    ILease,
    INotifyingStore,
    IRestorable,
    ISharedStore,
    IWatch,
)
from txnframework.model import (
    Applied,
    Delete,
    Expected,
    IndexedPage,
    IndexPage,
    IndexRange,
    Key,
    KeyRange,
    Put,
    Reach,
    Record,
    RecordPage,
    Step,
    require_valid,
)
from txnframework.model.paths import leases_range
from txnframework_nats._options import MetadataOptions, locate, replicas_of
from txnframework_nats.connection._attempts import Attempts
from txnframework_nats.connection._connection import NatsConnection
from txnframework_nats.records._feed import Feed
from txnframework_nats.records._layout import Layout, record_id
from txnframework_nats.records._leases import LeaseSession
from txnframework_nats.records._stream import RecordStream
from txnframework_nats.records._watches import RecordWatches
from txnframework_nats.records._writer import Writer

_LOG = logging.getLogger(__name__)

_DURABLE_REPLICAS = 3
_PAUSE_S = 0.01
_PAUSE_S_MAX = 0.5
_LEASES = leases_range("")


@implementer(ICopyableMetadataStore, ISharedStore, INotifyingStore, IRestorable)
class NatsMetadataStore:
    """Records in a stream of NATS JetStream, with a copy of them in this process."""

    reach = Reach.PARTITION
    location: object = None

    def __init__(
        self,
        connection: NatsConnection,
        stream: RecordStream,
        feed: Feed,
        environment: Environment,
        options: MetadataOptions,
        identity: str,
    ) -> None:
        self.identity = identity
        self.session = f"session-{environment.random_bits(64):016x}"
        self.connection = connection
        self._stream = stream
        self._feed = feed
        self._attempts_max = options.attempts_max
        self._writer = Writer(connection, stream, feed, environment, options)
        self._watches = RecordWatches()
        feed.observe(self._watches.notify, self._watches.wake_all)
        self._leases = LeaseSession(
            self.session, feed, self._writer, stream.layout, environment, options.session_ttl_ms
        )

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        await self._current()
        return self._feed.copy.get(record_id(key))

    async def put(self, write: Put) -> int:
        """Write a record and its index entries; return its new version."""
        (record,) = await self._writer.apply(Step(puts=(write,)))
        return record.version

    async def delete(self, key: Key, expected: Expected) -> None:
        """Delete a record and its index entries."""
        await self._writer.apply(Step(deletes=(Delete(key, expected),)))

    async def apply(self, step: Step) -> Applied:
        """Make a step."""
        require_valid(step, self.reach)
        return Applied(await self._writer.apply(step))

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        await self._current()
        return self._feed.copy.scan(keys, items_max)

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        await self._current()
        return self._feed.copy.scan_index(entries, items_max)

    async def watch(self, target: Key | KeyRange | IndexRange) -> IWatch:
        """Return an armed watch; a watch on a record also has its new value."""
        self.connection.require_open()
        if _holds_leases(target):
            self._leases.start_expiry()
        return self._watches.arm(target)

    async def acquire_lease(self, name: str, holder: str) -> ILease:
        """Acquire the lease, or raise LeaseHeld; a session and holder that already hold it acquire it again."""
        self.connection.require_open()
        return await self._leases.acquire(name, holder)

    async def break_lease(self, name: str, version: int) -> None:
        """End another session's lease if its record still has this version; the version is also its fencing number."""
        self.connection.require_open()
        await self._leases.break_lease(name, version)

    async def take_identity(self, identity: str) -> None:
        """Replace the identity of the store."""
        await self._stream.take_identity(identity, self._attempts_max)
        self.identity = identity

    async def scan_indexed(self, keys: KeyRange, items_max: int) -> IndexedPage:
        """Return a page of records with their index entries."""
        await self._current()
        return self._feed.copy.scan_indexed(keys, items_max)

    async def scan_entries(self, entries: IndexRange, items_max: int) -> IndexPage:
        """Return a page of an index."""
        await self._current()
        return self._feed.copy.scan_entries(entries, items_max)

    async def last_number(self) -> int:
        """Return a number that is not below any that was given."""
        self.connection.require_open()
        return await self._writer.numbers.last()

    async def skip_numbers(self, number: int) -> None:
        """Give no number up to ``number``."""
        self.connection.require_open()
        await self._writer.numbers.skip(number, self._attempts_max)

    async def close(self) -> None:
        """End the session: its leases end, its watches raise Closed; may be repeated."""
        self._watches.close()
        try:
            # If the end of the session cannot be written, other processes end the session when it has expired.
            with suppress(Closed, OutcomeUnknown, Unavailable):
                await self._leases.close()
        finally:
            await self._end()

    async def abandon(self) -> None:
        """Close like a killed process: the session stays in the stream until other processes find it expired."""
        self._watches.close()
        await self._leases.abandon()
        await self._end()

    async def _end(self) -> None:
        try:
            await self._feed.close()
        finally:
            await self.connection.close()

    async def _current(self) -> None:
        self.connection.require_open()
        await self._feed.current()


@implementer(IDurableStore)
class DurableNatsMetadataStore(NatsMetadataStore):
    """A store whose servers keep confirmed writes: three of them do, or one writes each to disk before it confirms."""


def _holds_leases(target: Key | KeyRange | IndexRange) -> bool:
    """Return whether a watcher of this target may be waiting for the end of a lease."""
    if isinstance(target, Key):
        return _LEASES.start <= target.path < _LEASES.stop
    return isinstance(target, KeyRange) and target.start < _LEASES.stop and target.stop > _LEASES.start


async def open_metadata_store(url: str, environment: Environment, options: MetadataOptions) -> NatsMetadataStore:
    """
    Open the records below a prefix; create the stream if it does not exist.

    :raises InvalidInput: the URL names no servers, they refuse the login, or they cannot be used.
    :raises UnknownFormat: the store was created by a later release.
    :raises Unavailable: no server could be reached, or JetStream did not answer.
    """
    servers = locate(url)
    connection = await NatsConnection.open(servers, options)
    feed: Feed | None = None
    try:
        stream = RecordStream(connection, Layout(servers.prefix))
        new_identity = f"nats-{environment.random_bits(64):016x}"
        attempts = Attempts(options.connect_timeout_ms / 1000, _PAUSE_S, _PAUSE_S_MAX, environment.random_bits)
        state, identity = await stream.open(replicas_of(servers, options), new_identity, attempts)
        feed = Feed(connection, stream, environment, state.created, options.deleted_life_ms)
        is_durable = state.replicas >= _DURABLE_REPLICAS or options.sync_always
        if not is_durable and not all(is_own_machine(host.rpartition(":")[0]) for host in servers.hosts):
            _LOG.warning(
                "%s: one server keeps the records, and sync_always is not set: a crash of its machine may lose the last"
                " two minutes",
                servers.shown_url,
            )
        kind = DurableNatsMetadataStore if is_durable else NatsMetadataStore
        store = kind(connection, stream, feed, environment, options, identity)
        await feed.open()
    except BaseException:
        if feed is not None:
            await feed.close()
        await connection.close()
        raise
    return store
