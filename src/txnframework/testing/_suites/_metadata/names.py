"""Rules of keys that contain the longest possible names."""

from __future__ import annotations

from txnframework.interfaces import IAtomicBatchStore
from txnframework.model import Batch, Check, Delete, Expect, Put
from txnframework.model import paths as places
from txnframework.model.index_keys import encode, prefix_range
from txnframework.model.metadata import IndexEntry, Key
from txnframework.testing._suites._metadata._case import MetadataStoreRules, paths, scan_all, scan_kinds
from txnframework.testing._suites._metadata.batches import atomic
from txnframework.testing._suites._names import longest_name, longest_segment
from txnframework.testing.capabilities import requires

BY_NAME = "suite-by-segment-and-subscription"


def _keys() -> list[Key]:
    """Return the keys that grow most with the names, including names that differ only at the end."""
    segments = [longest_segment(1), longest_segment(2)]
    subscriptions = [longest_name(3), longest_name(4), longest_name(4)[:-1] + "b"]
    cursors = [places.cursor_key(segment, name) for segment in segments for name in subscriptions]
    return [*cursors, places.subscription_key(segments[0], subscriptions[0]), places.application_key(longest_name(5))]


class NameRules(MetadataStoreRules):
    """The store accepts names of NAME_BYTES_MAX bytes in which every byte is escaped."""

    async def test_longest_names(self) -> None:
        """
        Records and index entries whose keys contain the longest names are written, read, listed and deleted.

        If this fails, check the store's limits for the length of a key and of an index row.
        """
        async with self.data.open() as store:
            for number, key in enumerate(_keys()):
                entry = IndexEntry(BY_NAME, encode(key.partition, longest_name(number)))
                written = await store.put(Put(key, b"%d" % number, Expect.ABSENT, (entry,)))
                found = await store.get(key)
                assert found is not None
                assert (found.value, found.version) == (b"%d" % number, written)
        async with self.data.open() as again:
            assert paths(await scan_all(again)) == sorted(key.path for key in _keys())
            segment = longest_segment(1)
            assert paths(await scan_all(again, places.cursors_range(segment), 2)) == sorted(
                key.path for key in _keys()[:3]
            )
            # Two entries with equal index keys: the resume point of a page contains such a name too.
            for number, key in enumerate(_keys()):
                of_name = prefix_range(BY_NAME, key.partition, longest_name(number))
                assert paths(await scan_kinds(again, of_name, 1)) == [key.path]
            for key in _keys():
                await again.delete(key, Expect.ANY)
            assert await scan_all(again) == []

    @requires(IAtomicBatchStore)
    async def test_longest_names_in_one_batch(self) -> None:
        """A batch over records with such keys is applied like any other batch."""
        first, second, third = _keys()[:3]
        async with self.data.open() as store:
            version = await store.put(Put(first, b"a", Expect.ABSENT))
            await store.put(Put(third, b"c", Expect.ABSENT))
            batch = Batch((Check(first, version),), (Put(second, b"b", Expect.ABSENT),), (Delete(third, Expect.ANY),))
            await atomic(store).apply(batch)
            assert paths(await scan_all(store)) == sorted((first.path, second.path))

    async def test_lease_of_longest_names(self) -> None:
        """A lease whose name contains the two longest names is acquired and released."""
        name = f"dispatch {longest_name(3)} of {longest_segment(1)}"
        async with self.data.open() as store:
            lease = await store.acquire_lease(name, "holder")
            assert lease.key == places.lease_key(name)
            assert await store.get(lease.key) is not None
            await lease.release()
            assert await store.get(lease.key) is None
