"""Rules of pages as large as the families request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from txnframework.interfaces import IMetadataStore
from txnframework.model import IndexRange, Key, KeyRange, Put, RecordPage
from txnframework.model.metadata import Expect
from txnframework.testing._suites._metadata._case import (
    EVERY_KIND,
    MetadataStoreRules,
    entries,
    paths,
    scan_all,
    scan_kinds,
)

RECORDS = 1_050
PAGES = (101, 1_000)
FIRST_PAGES = (501, 2_000)
"""The largest page that a family requests has 1,000 records; reads are limited because some backends are slow."""

KEYS = KeyRange("/p/", "/p0")
_TOGETHER = 50


class PageRules(MetadataStoreRules):
    """A page of small records has as many records as requested."""

    async def test_large_pages(self) -> None:
        """
        A page has as many records as requested, and the pages together return each record once.

        If this fails, check for a row limit per answer in the backend or its driver.
        """
        async with self.data.open() as store:
            names = await _made(store)
            for items_max in PAGES:
                assert paths(await scan_all(store, KEYS, items_max)) == names, f"in pages of {items_max}"
            for items_max in FIRST_PAGES:
                _check_first(await store.scan(KEYS, items_max), names, items_max)

    async def test_large_pages_of_an_index(self) -> None:
        """
        A page of an index has as many records as requested, also among equal index keys.

        If this fails, check for a row limit per answer in the backend or its driver.
        """
        async with self.data.open() as store:
            names = await _made(store)
            for items_max in PAGES:
                found = paths(await scan_kinds(store, EVERY_KIND, items_max))
                assert sorted(found) == names, f"in pages of {items_max}"
            for items_max in FIRST_PAGES:
                _check_first(await store.scan_index(EVERY_KIND, items_max), found, items_max)
            half = [path for number, path in enumerate(names) if number % 2]
            among = IndexRange(EVERY_KIND.index, b"1", b"2")
            assert sorted(paths(await scan_kinds(store, among, 1_000))) == half


def _check_first(page: RecordPage, names: list[str], items_max: int) -> None:
    found = paths(list(page.records))
    assert found == names[:items_max], f"{len(found)} records where {items_max} were asked for"
    assert (page.resume is None) <= (items_max >= RECORDS), f"a page of {items_max} does not say that there is more"


async def _made(store: IMetadataStore) -> list[str]:
    """Create records with index entries of two kinds; return their paths in order."""
    names = [f"/p/{number:04}" for number in range(RECORDS)]
    for first in range(0, RECORDS, _TOGETHER):
        puts: list[Awaitable[int]] = [
            store.put(Put(Key(path), b"", Expect.ABSENT, entries(b"%d" % (number % 2))))
            for number, path in enumerate(names[first : first + _TOGETHER], first)
        ]
        await asyncio.gather(*puts)
    return names
