"""Shared parts of the rules of metadata stores."""

from __future__ import annotations

from typing import Any, ClassVar

from txnframework.interfaces import (
    ICoCommitStore,
    ICopyableMetadataStore,
    IDurableStore,
    IMetadataStore,
    INotifyingStore,
    IRestorable,
    ISharedStore,
)
from txnframework.model import Expect, IndexEntry, IndexRange, Key, KeyRange, Put, PutSequential, Record, Step
from txnframework.model.steps import Reach
from txnframework.testing._suites._base import Suite
from txnframework.testing.capabilities import OfReach
from txnframework.testing.harness import CoCommitting, Crashing, Disconnecting, Expiring, Harness, Misleading

ALL = KeyRange("/", "0")
"""The range of all paths, which begin with a slash."""

BY_KIND = "suite-by-kind"
"""The index of the tests."""

EVERY_KIND = IndexRange(BY_KIND, b"", b"\xff" * 8)


WIDE = OfReach(Reach.STORE)
"""The capability of steps of several partitions."""


class MetadataStoreRules(Suite):
    """Base class of the rules of metadata stores; the harness opens clients of one store."""

    capabilities: ClassVar[tuple[Any, ...]] = (
        ICoCommitStore, WIDE, ICopyableMetadataStore, IDurableStore, INotifyingStore, IRestorable,
        ISharedStore, CoCommitting, Crashing, Disconnecting, Expiring, Misleading,
    )  # fmt: skip
    data: Harness[IMetadataStore]


async def create(store: IMetadataStore, path: str, value: bytes = b"", *kinds: bytes) -> int:
    """Create a record that must be absent, with an index entry for each kind; return its version."""
    return await store.put(Put(Key(path), value, Expect.ABSENT, entries(*kinds)))


async def put_next(store: IMetadataStore, write: PutSequential) -> Key:
    """Write a record under the next number of its prefix; return its key."""
    (record,) = (await store.apply(Step(puts=(write,)))).records
    return record.key


def entries(*kinds: bytes) -> tuple[IndexEntry, ...]:
    """Return index entries with these keys."""
    return tuple(IndexEntry(BY_KIND, kind) for kind in kinds)


async def value_of(store: IMetadataStore, path: str) -> bytes | None:
    """Return the value of a record, or None if it is absent."""
    record = await store.get(Key(path))
    return record.value if record else None


async def scan_all(store: IMetadataStore, keys: KeyRange = ALL, items_max: int = 100) -> list[Record]:
    """Return all records of a key range, read in pages."""
    found: list[Record] = []
    left: KeyRange | IndexRange | None = keys
    while left is not None:
        assert isinstance(left, KeyRange), "a scan of keys goes on with a range of keys"
        page = await store.scan(left, items_max)
        assert len(page.records) <= items_max
        assert page.records or page.resume is None, "an empty page that is not the last: a caller would never end"
        found += page.records
        left = page.resume
    return found


async def scan_kinds(store: IMetadataStore, among: IndexRange = EVERY_KIND, items_max: int = 100) -> list[Record]:
    """Return all records of an index range, read in pages."""
    found: list[Record] = []
    left: KeyRange | IndexRange | None = among
    while left is not None:
        assert isinstance(left, IndexRange), "a scan of an index goes on with a range of the index"
        page = await store.scan_index(left, items_max)
        assert len(page.records) <= items_max
        assert page.records or page.resume is None, "an empty page that is not the last: a caller would never end"
        found += page.records
        left = page.resume
    return found


def paths(records: list[Record]) -> list[str]:
    """Return the paths of the records, in order."""
    return [record.key.path for record in records]
