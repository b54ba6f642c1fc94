"""The metadata store in ZooKeeper."""

from __future__ import annotations

from functools import partial

from zope.interface import implementer

from txnframework.environment import Environment
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
    IndexedRecord,
    IndexEntry,
    IndexPage,
    IndexRange,
    IndexReference,
    Key,
    KeyRange,
    Put,
    Reach,
    Record,
    RecordPage,
    Step,
    require_valid,
)
from txnframework_zookeeper._leases import LeaseNodes, Leases
from txnframework_zookeeper._nodes import EmptyNodeCollector, NodeCache
from txnframework_zookeeper._options import MetadataOptions, locate
from txnframework_zookeeper._reader import FoundRecord, Reader, value_in_node
from txnframework_zookeeper._root import open_root, take_identity
from txnframework_zookeeper._watches import Watches
from txnframework_zookeeper._writer import Writer
from txnframework_zookeeper.connection._client import ZooKeeperClient
from txnframework_zookeeper.tree._layout import node_of

_CLIENT_BITS = 48


@implementer(ICopyableMetadataStore, ISharedStore, IDurableStore, INotifyingStore, IRestorable)
class ZooKeeperMetadataStore:
    """
    Records in the tree of a ZooKeeper ensemble.

    A confirmed write is on disk at a majority of the servers. A version is the number of the transaction that wrote the
    record, so it also grows when a record is deleted and created again.

    ZooKeeper itself compares the version of the node. When a record is deleted and created again, that version starts
    again. A caller that names a version from before the deletion is refused, with one exception. The exception: this
    client read the earlier record but not the later one, and both nodes were written equally often.
    """

    reach = Reach.PARTITION
    location: object = None

    def __init__(
        self,
        zookeeper: ZooKeeperClient,
        environment: Environment,
        options: MetadataOptions,
        identity: str,
        session: str,
    ) -> None:
        self.identity = identity
        self.session = session
        self.zookeeper = zookeeper
        self._options = options
        cache = NodeCache(options.nodes_known_max)
        self._empty_nodes = EmptyNodeCollector(
            zookeeper, cache, environment, options.empty_nodes_delay_ms, options.empty_nodes_max
        )
        self._writer = Writer(
            zookeeper, cache, self._empty_nodes, options, f"{environment.random_bits(_CLIENT_BITS):x}"
        )
        self._reader = Reader(zookeeper, cache, self._empty_nodes, options)
        self._watches = Watches(zookeeper, options.watches_max)
        nodes = LeaseNodes(zookeeper, self._empty_nodes, environment, options.attempts_max)
        self._leases = Leases(zookeeper, nodes, session, options.attempts_max)

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        return await self._reader.get(key)

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
        return await self._reader.scan(keys, items_max)

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        return await self._reader.scan_index(entries, items_max)

    async def watch(self, target: Key | KeyRange | IndexRange) -> IWatch:
        """Return an armed watch; a watch on a record also delivers its new value."""
        if isinstance(target, Key):
            return await self._watches.arm_record(node_of(target), partial(value_in_node, target))
        return await self._watches.arm(target)

    async def acquire_lease(self, name: str, holder: str) -> ILease:
        """Acquire the lease, or raise LeaseHeld; a session and holder that already hold it acquire it again."""
        return await self._leases.acquire(name, holder)

    async def break_lease(self, name: str, version: int) -> None:
        """End another session's lease if its record still has this version; the version is also its fencing number."""
        await self._leases.end(name, version)

    async def take_identity(self, identity: str) -> None:
        """Replace the identity of the store."""
        await take_identity(self.zookeeper, identity, self._options.attempts_max)
        self.identity = identity

    async def scan_indexed(self, keys: KeyRange, items_max: int) -> IndexedPage:
        """Return a page of records with their index entries."""
        found, resume = await self._reader.find_records(keys, items_max)
        return IndexedPage(tuple(map(_indexed, found)), resume)

    async def scan_entries(self, entries: IndexRange, items_max: int) -> IndexPage:
        """Return a page of an index, without the entries that no record has."""
        found, resume = await self._reader.find_entries(entries, items_max)
        references = [IndexReference(IndexEntry(entries.index, key), record.key) for key, record in found]
        return IndexPage(tuple(references), resume)

    async def last_number(self) -> int:
        """Return a number that is not below any that was given, without the first digit."""
        return await self._writer.numbers.last()

    async def skip_numbers(self, number: int) -> None:
        """Give no number up to ``number``, without the first digit."""
        await self._writer.numbers.skip(number, self._options.attempts_max)

    async def close(self) -> None:
        """End the session: its leases end, its watches raise Closed; idempotent."""
        self._watches.close()
        await self._leases.close()
        await self._writer.close()
        await self._empty_nodes.close()
        await self.zookeeper.close()


def _indexed(found: FoundRecord) -> IndexedRecord:
    entries = sorted(IndexEntry(index, key) for index, key, _ in found.state.entries)
    return IndexedRecord(found.record, tuple(entries))


async def open_metadata_store(url: str, environment: Environment, options: MetadataOptions) -> ZooKeeperMetadataStore:
    """
    Open the records below a chroot; create the store if it does not exist.

    :raises InvalidInput: the URL names no servers, its login has no read or write permission, or another program has
        nodes in the chroot.
    :raises UnknownFormat: the store was created by a later release.
    :raises Unavailable: no server could be reached.
    """
    zookeeper = await ZooKeeperClient.open(locate(url), options)
    try:
        identity = await open_root(zookeeper, f"zookeeper-{environment.random_bits(64):016x}")
    except BaseException:
        await zookeeper.close()
        raise
    return ZooKeeperMetadataStore(
        zookeeper, environment, options, identity, f"session-{environment.random_bits(64):016x}"
    )
