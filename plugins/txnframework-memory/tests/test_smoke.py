"""The stores open through their hooks and pass the readme's example; the suites do the rest."""

from __future__ import annotations

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import ConfigurationError, LedgerNotFound, StoreMismatch
from txnframework.model import Append, EntryRange, Expect, IndexEntry, IndexRange, Key, Limit, Position, Put
from txnframework.plugin import StoreContext
from txnframework_memory import MemorySpace
from txnframework_memory.plugin import (
    NamedSpaces,
    txnframework_ledger_stores,
    txnframework_metadata_stores,
)


async def test_readme_example() -> None:
    """Two clients of one space see each other's confirmed writes."""
    space = MemorySpace(SystemEnvironment())
    first, second = await space.open_metadata(), await space.open_metadata()
    await first.put(Put(Key("/greeting"), b"hello", Expect.ABSENT))
    record = await second.get(Key("/greeting"))
    assert record is not None
    assert record.value == b"hello"


def test_url_without_a_name_is_private_and_with_one_shared() -> None:
    """``memory:`` opens a new space each time, ``memory://name`` the same one."""
    spaces = NamedSpaces()
    environment = SystemEnvironment()
    private = StoreContext("memory:", environment)
    named = StoreContext("memory://shop", environment)
    assert spaces.space(private) is not spaces.space(private)
    assert spaces.space(named) is spaces.space(named)
    with pytest.raises(ConfigurationError, match="'memory://shop/elsewhere' is no URL of a memory store"):
        spaces.space(StoreContext("memory://shop/elsewhere", environment))


async def test_hooks_open_stores_that_belong_together() -> None:
    """A private ledger store takes on the identity it is opened with."""
    (metadata_provider,) = txnframework_metadata_stores()
    (ledger_provider,) = txnframework_ledger_stores()
    environment = SystemEnvironment()
    store = await metadata_provider.open(StoreContext("memory:", environment))
    ledgers = await ledger_provider.open(StoreContext("memory:", environment, identity=store.identity))
    assert ledgers.identity == store.identity


async def test_index_pages_among_equal_keys() -> None:
    """Many records may share an index key; pages return each once."""
    store = await MemorySpace(SystemEnvironment()).open_metadata()
    for number in range(5):
        entry = IndexEntry("by-kind", b"k")
        await store.put(Put(Key(f"/r/{number}"), b"", Expect.ABSENT, (entry,)))
    found: list[str] = []
    left = IndexRange("by-kind", b"k", b"l")
    while True:
        page = await store.scan_index(left, 2)
        found += [record.key.path for record in page.records]
        if page.resume is None:
            break
        assert isinstance(page.resume, IndexRange)
        left = page.resume
    assert found == [f"/r/{number}" for number in range(5)]


async def test_ledger_basics() -> None:
    """Entries are read back as they were appended; a deleted row is gone for its handles."""
    space = MemorySpace(SystemEnvironment())
    ledgers = await space.open_ledgers()
    with pytest.raises(StoreMismatch):
        await space.open_ledgers("another")
    row = await ledgers.create("r")
    tail = await row.tail()
    (first,) = await row.append((Append(b"x"),), None)
    assert first.position == Position(tail.open_ledger_id, 0)
    entries = await row.read(EntryRange(tail.last_confirmed, first.position), Limit(10))
    assert [entry.data for entry in entries] == [b"x"]
    await ledgers.delete("r", None)
    with pytest.raises(LedgerNotFound):
        await row.tail()
