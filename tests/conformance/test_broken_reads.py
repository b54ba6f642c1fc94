"""The suites detect stores that cut large pages, and clients that rely on outdated reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from txnframework.interfaces import ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.model import EntryRange, IndexRange, Key, KeyRange, Limit, Record, RecordPage, Tail
from txnframework.testing import LedgerStoreSuite, MetadataStoreSuite, VirtualEnvironment
from txnframework.testing._suites._base import Suite, run_test
from txnframework_memory import MemoryMetadataStore
from txnframework_memory._ledger_store import MemoryLedgerStore, MemoryManagedLedger
from txnframework_memory._records import concerned_by
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness

# -- metadata stores ----------------------------------------------------------------------------------


class DropsRow101(MemoryMetadataStore):
    """Loses one record of each page that has more than a hundred."""

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        return self._dropped(await super().scan(keys, items_max))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        return self._dropped(await super().scan_index(entries, items_max))

    def _dropped(self, page: RecordPage) -> RecordPage:
        return replace(page, records=page.records[:100] + page.records[101:])


class CutsPagesOver500(MemoryMetadataStore):
    """Returns at most 500 records, and reports that none are left."""

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        return self._cut(await super().scan(keys, items_max))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        return self._cut(await super().scan_index(entries, items_max))

    def _cut(self, page: RecordPage) -> RecordPage:
        return RecordPage(page.records[:500], None) if len(page.records) > 500 else page


class AnswersWithLessThanAsked(MemoryMetadataStore):
    """Returns pages of at most 500 records, whatever the limit is."""

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        return await super().scan(keys, min(items_max, 500))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        return await super().scan_index(entries, min(items_max, 500))


class RemembersAbsence(MemoryMetadataStore):
    """Caches that a record is missing."""

    async def get(self, key: Key) -> Record | None:
        absent: set[Key] = self.__dict__.setdefault("absent", set())
        if key in absent:
            return None
        found = await super().get(key)
        if found is None:
            absent.add(key)
        return found


class RemembersPages(MemoryMetadataStore):
    """Caches the pages of ranges."""

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        pages: dict[Any, RecordPage] = self.__dict__.setdefault("pages", {})
        if (keys, items_max) not in pages:
            pages[keys, items_max] = await super().scan(keys, items_max)
        return pages[keys, items_max]


class RemembersPagesOfIndexes(MemoryMetadataStore):
    """Caches the pages of an index."""

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        pages: dict[Any, RecordPage] = self.__dict__.setdefault("pages", {})
        if (entries, items_max) not in pages:
            pages[entries, items_max] = await super().scan_index(entries, items_max)
        return pages[entries, items_max]


class BelievesUntilItIsTold(MemoryMetadataStore):
    """Caches records until it is notified of a change, and misses notifications while disconnected."""

    async def get(self, key: Key) -> Record | None:
        kept: dict[Key, Record | None] = self.__dict__.setdefault("kept", {})
        if key not in kept:

            def forget(change: Any) -> bool:
                if not self.link.is_cut and concerned_by(key, change):
                    kept.pop(key, None)
                return False

            self._records.watches.arm(forget)
            kept[key] = await super().get(key)
        return kept[key]


# -- ledgers ------------------------------------------------------------------------------------------


class SkipsEntry101(MemoryManagedLedger):
    """Loses one entry of each answer that has more than a hundred."""

    async def read(self, entries: EntryRange, limit: Limit) -> Any:
        found = await super().read(entries, limit)
        return found[:100] + found[101:]


class EndsAt500(MemoryManagedLedger):
    """Returns at most 500 entries, and none after such a page."""

    async def read(self, entries: EntryRange, limit: Limit) -> Any:
        if self.__dict__.get("has_ended"):
            return ()
        found = await super().read(entries, limit)
        self.has_ended = len(found) >= 500
        return found[:500]


class Ends100Ledgers(MemoryManagedLedger):
    """Reports at most 100 ledgers, followed by the open one."""

    async def ledgers(self, after: int, items_max: int) -> Any:
        found = await super().ledgers(after, items_max)
        return found if len(found) <= 100 else (*found[:100], found[-1])


class RemembersItsTail(MemoryManagedLedger):
    """Knows the tail from its own calls only."""

    async def tail(self) -> Tail:
        if "known" not in self.__dict__:
            self.known = await super().tail()
        return self.known

    async def append(self, entries: Any, ledger_id: int | None) -> Any:
        self.__dict__.pop("known", None)
        return await super().append(entries, ledger_id)

    async def roll(self) -> Tail:
        self.__dict__.pop("known", None)
        return await super().roll()

    async def seal(self) -> Tail:
        self.__dict__.pop("known", None)
        return await super().seal()


class RemembersWhatItRead(MemoryManagedLedger):
    """Caches its answers, also empty ones."""

    async def read(self, entries: EntryRange, limit: Limit) -> Any:
        return await self._kept("read", (entries, limit), lambda: super(RemembersWhatItRead, self).read(entries, limit))

    async def count(self, entries: EntryRange, messages_max: int) -> Any:
        ask = super().count
        return await self._kept("count", (entries, messages_max), lambda: ask(entries, messages_max))

    async def _kept(self, name: str, asked: Any, ask: Callable[[], Any]) -> Any:
        answers: dict[Any, Any] = self.__dict__.setdefault("answers", {})
        if (name, asked) not in answers:
            answers[name, asked] = await ask()
        return answers[name, asked]


class RemembersSequences(MemoryManagedLedger):
    """Caches which sequences are missing."""

    async def find_sequence(self, producer: str, sequence: int) -> Any:
        absent: set[Any] = self.__dict__.setdefault("absent", set())
        if (producer, sequence) in absent:
            return None
        found = await super().find_sequence(producer, sequence)
        if found is None:
            absent.add((producer, sequence))
        return found


class TellsALargerWindow(MemoryManagedLedger):
    """Declares a larger window than it remembers."""

    async def remembered(self, producer: str, sequence: int) -> Any:
        found = await super().remembered(producer, sequence)
        return replace(found, window=found.window + 50)


class CountsEntries(MemoryManagedLedger):
    """Reports remembered entries where sequences are requested."""

    async def remembered(self, producer: str, sequence: int) -> Any:
        found = await super().remembered(producer, sequence)
        return replace(found, above=min(found.above, 3))


class RemembersLedgers(MemoryManagedLedger):
    """Caches the list of ledgers."""

    async def ledgers(self, after: int, items_max: int) -> Any:
        kept: dict[Any, Any] = self.__dict__.setdefault("kept", {})
        if (after, items_max) not in kept:
            kept[after, items_max] = await super().ledgers(after, items_max)
        return kept[after, items_max]


class RemembersNames(MemoryLedgerStore):
    """Caches the list of names."""

    async def list_names(self, prefix: str, after: str, items_max: int) -> tuple[str, ...]:
        kept: dict[Any, tuple[str, ...]] = self.__dict__.setdefault("kept", {})
        if (prefix, after, items_max) not in kept:
            kept[prefix, after, items_max] = await super().list_names(prefix, after, items_max)
        return kept[prefix, after, items_max]


# -- running them -------------------------------------------------------------------------------------


class BrokenStores(MemoryMetadataHarness):
    """Opens clients of another class."""

    patience_s: ClassVar[float] = 0.2
    part: ClassVar[type[Any]]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[IMetadataStore]:
        async with super().open() as store:
            store.__class__ = self.part
            yield store


class BrokenLedgers(MemoryLedgerHarness):
    """Opens clients, or ledgers, of another class."""

    patience_s: ClassVar[float] = 0.2
    part: ClassVar[type[Any]]

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        part = self.part

        class BrokenStore(MemoryLedgerStore):
            def _open(self, row: Any) -> Any:
                ledger: IManagedLedger = super()._open(row)
                ledger.__class__ = part
                return ledger

        self._kind: type[Any] = part if issubclass(part, MemoryLedgerStore) else BrokenStore

    @asynccontextmanager
    async def open_as(self, identity: str) -> AsyncIterator[ILedgerStore]:
        async with super().open_as(identity) as ledgers:
            ledgers.__class__ = self._kind
            yield ledgers


METADATA = [
    (DropsRow101, "test_large_pages"),
    (DropsRow101, "test_large_pages_of_an_index"),
    (CutsPagesOver500, "test_large_pages"),
    (CutsPagesOver500, "test_large_pages_of_an_index"),
    (AnswersWithLessThanAsked, "test_large_pages"),
    (RemembersAbsence, "test_reads_that_are_repeated"),
    (RemembersPages, "test_reads_that_are_repeated"),
    (RemembersPages, "test_pages_that_are_resumed"),
    (RemembersPagesOfIndexes, "test_reads_that_are_repeated"),
    (RemembersPages, "test_reads_after_a_wake_up"),
    (RemembersPagesOfIndexes, "test_reads_after_a_wake_up"),
    (BelievesUntilItIsTold, "test_reads_after_a_lost_connection"),
]

LEDGERS = [
    (SkipsEntry101, "test_many_entries_in_one_answer"),
    (EndsAt500, "test_many_entries_in_one_answer"),
    (Ends100Ledgers, "test_many_ledgers_in_one_answer"),
    (TellsALargerWindow, "test_edge_of_the_window"),
    (CountsEntries, "test_what_is_remembered"),
    (RemembersItsTail, "test_reads_that_are_repeated"),
    (RemembersWhatItRead, "test_reads_that_are_repeated"),
    (RemembersSequences, "test_reads_that_are_repeated"),
    (RemembersLedgers, "test_reads_that_are_repeated"),
    (RemembersNames, "test_reads_that_are_repeated"),
]

CASES = [
    *((MetadataStoreSuite, BrokenStores, part, name) for part, name in METADATA),
    *((LedgerStoreSuite, BrokenLedgers, part, name) for part, name in LEDGERS),
]


@pytest.mark.parametrize(("suite", "harness", "part", "name"), CASES)
def test_a_store_that_breaks_a_rule_fails_its_test(
    suite: type[Suite], harness: type[Any], part: type[Any], name: str, must_fail: Callable[..., None]
) -> None:
    """Each broken store fails its test; below, the correct store passes the same tests."""
    must_fail(suite, type("Broken", (harness,), {"part": part}), name)


@pytest.mark.parametrize(
    ("suite", "harness", "name"),
    sorted(
        {
            (suite, MemoryMetadataHarness if suite is MetadataStoreSuite else MemoryLedgerHarness, name)
            for suite, _, _, name in CASES
        },
        key=str,
    ),
)
def test_whole_stores_pass(suite: type[Suite], harness: type[Any], name: str, tmp_path: Path) -> None:
    """The correct stores pass, so the failures above are those of the broken part."""
    case = type("Case", (suite,), {"harness": harness})()
    asyncio.run(run_test(case, getattr(case, name), tmp_path))
