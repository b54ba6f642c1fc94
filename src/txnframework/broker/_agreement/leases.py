"""Looking at leases that others hold, and waiting for their end."""

from __future__ import annotations

from txnframework.interfaces import IMetadataStore
from txnframework.model.metadata import IndexRange, Key, KeyRange, Record
from txnframework.model.paths import lease_of, leases_range

PAGE_RECORDS = 500


async def until_free(store: IMetadataStore, lease: Key) -> None:
    """Wait until nobody holds a lease; somebody else may be quicker to take it."""
    watch = await store.watch(lease)
    try:
        while await store.get(lease) is not None:
            await watch.changed()
    finally:
        await watch.close()


async def held_leases(store: IMetadataStore, prefix: str) -> dict[str, Record]:
    """Return the leases whose names begin with ``prefix``, by name in the order of their keys: one for each holder."""
    found: dict[str, Record] = {}
    left: KeyRange | IndexRange | None = leases_range(prefix)
    while isinstance(left, KeyRange):
        page = await store.scan(left, PAGE_RECORDS)
        found.update({lease_of(record.key.path): record for record in page.records})
        left = page.resume
    return found
