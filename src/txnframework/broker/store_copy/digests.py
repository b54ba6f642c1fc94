"""Counts and hashes of everything in a deployment, read through the roles of copyable stores."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from txnframework.errors import Corrupt, EntryTrimmed, LedgerNotFound
from txnframework.interfaces import ICopyableLedgerStore, ICopyableMetadataStore, ILedgerStore
from txnframework.model import (
    EntryRange,
    IndexedRecord,
    IndexEntry,
    IndexRange,
    Key,
    KeyRange,
    LedgerShape,
    Limit,
    RememberedSequence,
    StoredEntry,
    indexes,
    paths,
)
from txnframework.runtime.tasks import start_task

T = TypeVar("T")

PAGE = 1_000
READ = Limit(2_000, 8 * 1024 * 1024)
EVERY_KEY = KeyRange("/", "0")
NOT_COPIED = frozenset(
    {
        paths.family_of(key.path)
        for key in (paths.lease_key("x"), paths.copy_key(), paths.copied_key(), paths.restore_key())
    }
)
"""The families of records that describe one deployment only: leases, and the commands copy and restore."""
KNOWN_INDEXES = frozenset(value for name, value in vars(indexes).items() if name.isupper() and isinstance(value, str))

_HASH_BITS = 256
Advance = Callable[[int], None]
"""Receives the number of items that were read since the last call."""


@dataclass(frozen=True, slots=True)
class Digest:
    """
    A number of items and the hash of their content; ``error``: why they cannot be read, or contradict each other.
    """

    count: int
    hash: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LedgerDigest:
    """One managed ledger: its shape, its entries and its deduplication window."""

    shape: Digest
    entries: Digest
    sequences: Digest
    messages: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class RecordDigests:
    """Records by family, and the entries of the indexes by index."""

    families: dict[str, Digest]
    indexes: dict[str, Digest]


@dataclass(slots=True)
class HashSum:
    """A hash of a set: the order of its items does not matter, so several processes may each hash a part of it."""

    count: int = 0
    total: int = 0

    def add(self, *parts: object) -> None:
        """Add an item."""
        self.count += 1
        digest = hashlib.sha256(msgspec.msgpack.encode(parts)).digest()
        self.total = (self.total + int.from_bytes(digest, "big")) % (1 << _HASH_BITS)

    def add_digest(self, part: Digest) -> None:
        """Add the items of another sum."""
        self.count += part.count
        self.total = (self.total + int(part.hash, 16)) % (1 << _HASH_BITS)

    @property
    def digest(self) -> Digest:
        """The number of items and their hash."""
        return Digest(self.count, f"{self.total:064x}")


# -- reading in pages ---------------------------------------------------------------------------------


async def names_of(ledgers: ILedgerStore, after: str = "") -> AsyncIterator[str]:
    """Yield the names of all managed ledgers behind a name, in order."""
    while names := await ledgers.list_names("", after, PAGE):
        for name in names:
            yield name
        after = names[-1]


async def entry_pages(
    ledgers: ICopyableLedgerStore, name: str, entries: EntryRange
) -> AsyncIterator[tuple[StoredEntry, ...]]:
    """Yield the entries of a range in pages."""
    while page := await ledgers.stored_entries(name, entries, READ):
        yield page
        entries = EntryRange(page[-1].position, entries.upto)


async def sequence_pages(ledgers: ICopyableLedgerStore, name: str) -> AsyncIterator[tuple[RememberedSequence, ...]]:
    """Yield the deduplication window of a managed ledger in pages."""
    after: RememberedSequence | None = None
    while page := await ledgers.remembered_sequences(name, after, PAGE):
        yield page
        after = page[-1]


async def record_pages(metadata: ICopyableMetadataStore) -> AsyncIterator[tuple[IndexedRecord, ...]]:
    """Yield the records that are copied, in pages."""
    left: KeyRange | None = EVERY_KEY
    while left is not None:
        page = await metadata.scan_indexed(left, PAGE)
        yield tuple(one for one in page.records if paths.family_of(one.record.key.path) not in NOT_COPIED)
        left = page.resume


async def ahead(pages: AsyncIterator[T]) -> AsyncIterator[T]:
    """Yield the pages, and read the next one while the caller works on the last."""
    reading = start_task(anext(pages, None))
    try:
        while (page := await reading) is not None:
            reading = start_task(anext(pages, None))
            yield page
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


# -- ledgers ------------------------------------------------------------------------------------------


async def digest_ledger(ledgers: ICopyableLedgerStore, name: str, advance: Advance = lambda _: None) -> LedgerDigest:
    """Return the digest of a managed ledger; every entry is read."""
    try:
        shape = await ledgers.ledger_shape(name)
    except LedgerNotFound:
        missing = Digest(0, "", "it is missing")
        return LedgerDigest(missing, missing, missing)
    hashed = hashlib.sha256()
    counts: Counter[int] = Counter()
    messages = size = 0
    error = None
    try:
        async for page in entry_pages(ledgers, name, shape.whole):
            for entry in page:
                position = entry.position
                facts = (position.ledger_id, position.entry_id, entry.messages, entry.appended_ms, len(entry.data))
                hashed.update(msgspec.msgpack.encode(facts))
                hashed.update(entry.data)
                counts[position.ledger_id] += 1
                messages += entry.messages
                size += len(entry.data)
            advance(len(page))
    except (Corrupt, EntryTrimmed) as damage:
        error = str(damage)
    if error is None:
        error = _contradiction(shape, counts, messages, size)
    entries = Digest(counts.total(), hashed.hexdigest(), error)
    return LedgerDigest(digest_shape(shape), entries, await _digest_window(ledgers, name), messages, size)


def digest_shape(shape: LedgerShape) -> Digest:
    """Return the digest of a shape; the time of an empty ledger has no meaning."""
    ledgers = [
        (one.ledger_id, one.entries, one.messages, one.bytes, one.appended_ms if one.entries else 0)
        for one in shape.ledgers
    ]
    facts = msgspec.msgpack.encode((ledgers, shape.sealed, shape.trimmed))
    return Digest(len(shape.ledgers), hashlib.sha256(facts).hexdigest())


def _contradiction(shape: LedgerShape, counts: Counter[int], messages: int, size: int) -> str | None:
    """Return how the entries that were read contradict the numbers in the shape, or None."""
    for one in shape.ledgers:
        if counts[one.ledger_id] != one.entries:
            return f"ledger {one.ledger_id} has {counts[one.ledger_id]} entries instead of {one.entries}"
    for what, found, stated in (
        ("messages", messages, sum(one.messages for one in shape.ledgers)),
        ("bytes", size, sum(one.bytes for one in shape.ledgers)),
    ):
        if found != stated:
            return f"its entries have {found} {what} instead of {stated}"
    return None


async def _digest_window(ledgers: ICopyableLedgerStore, name: str) -> Digest:
    hashed = HashSum()
    async for page in sequence_pages(ledgers, name):
        for one in page:
            branch = None if one.branch is None else (str(one.branch.txn_id), one.branch.number)
            sequence, position = one.sequence, one.position
            facts = (sequence.producer, sequence.first, sequence.last, position.ledger_id, position.entry_id, branch)
            hashed.add(*facts)
    return hashed.digest


# -- records ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Found:
    families: dict[str, HashSum] = field(default_factory=lambda: defaultdict(HashSum))
    listed: dict[str, HashSum] = field(default_factory=lambda: defaultdict(HashSum))


async def digest_records(metadata: ICopyableMetadataStore, advance: Advance = lambda _: None) -> RecordDigests:
    """
    Return the digests of all records that are copied, and of all indexes.

    Each index is read itself too, and compared with the index entries of the records.
    """
    found = _Found()
    async for page in record_pages(metadata):
        for one in page:
            key = one.record.key
            entries = [(entry.index, entry.key) for entry in one.indexes]
            found.families[paths.family_of(key.path)].add(*_named(key), one.record.value, entries)
            for entry in one.indexes:
                found.listed[entry.index].add(*_line(entry, key))
        advance(len(page))
    lines = {name: await _digest_index(metadata, name) for name in sorted(KNOWN_INDEXES | found.listed.keys())}
    checked = {
        name: read if read == found.listed[name].digest else Digest(read.count, read.hash, "it contradicts its records")
        for name, read in lines.items()
    }
    families = {name: one.digest for name, one in sorted(found.families.items())}
    return RecordDigests(families, {name: one for name, one in checked.items() if one.count or one.error})


async def _digest_index(metadata: ICopyableMetadataStore, name: str) -> Digest:
    hashed = HashSum()
    # Above every key: no component of a key begins with this byte.
    left: IndexRange | None = IndexRange(name, b"", b"\xff")
    while left is not None:
        page = await metadata.scan_entries(left, PAGE)
        for line in page.lines:
            hashed.add(*_line(line.entry, line.key))
        left = page.resume
    return hashed.digest


def _line(entry: IndexEntry, key: Key) -> tuple[object, ...]:
    return (entry.index, entry.key, *_named(key))


def _named(key: Key) -> tuple[str, str]:
    return key.path, key.partition or key.path
