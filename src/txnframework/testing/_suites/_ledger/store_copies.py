"""Rules of ICopyableLedgerStore."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from txnframework.errors import EntryTrimmed, InvalidInput, LedgerClosed, LedgerNotFound, LedgerSealed
from txnframework.interfaces import ICopyableLedgerStore, ILedgerStore, IManagedLedger
from txnframework.model import (
    EARLIEST,
    Append,
    EntryRange,
    LedgerShape,
    Limit,
    Position,
    RememberedSequence,
    StoredEntry,
)
from txnframework.testing._suites._ledger._case import (
    MANY,
    NAME,
    LedgerStoreRules,
    append,
    branch,
    read_all,
    send,
    sent,
)
from txnframework.testing.capabilities import requires


def copyable(store: ILedgerStore) -> ICopyableLedgerStore:
    """Return the store as an ICopyableLedgerStore, which it must declare."""
    assert ICopyableLedgerStore.providedBy(store)
    return store


async def entries_of(store: ICopyableLedgerStore, limit: Limit = MANY) -> list[StoredEntry]:
    """Return all entries of the ledger of the tests, read in steps."""
    whole = (await store.ledger_shape(NAME)).whole
    found: list[StoredEntry] = []
    while step := await store.stored_entries(
        NAME, EntryRange(found[-1].position if found else whole.after, whole.upto), limit
    ):
        assert len(step) <= limit.items
        found += step
    return found


async def sequences_of(store: ICopyableLedgerStore, items_max: int = 100) -> list[RememberedSequence]:
    """Return all copies in the window of the ledger of the tests, read in pages."""
    found: list[RememberedSequence] = []
    while page := await store.remembered_sequences(NAME, found[-1] if found else None, items_max):
        assert len(page) <= items_max
        found += page
    return found


async def copy(source: ICopyableLedgerStore, target: ICopyableLedgerStore) -> None:
    """Copy the ledger of the tests as an operator's command does."""
    await target.skip_ids(await source.last_ledger_id(), await source.highest_txn_numbers())
    shape = await source.ledger_shape(NAME)
    after = await target.import_ledger(NAME, shape)
    while step := await source.stored_entries(NAME, EntryRange(after, shape.whole.upto), Limit(3)):
        await target.import_entries(NAME, step)
        after = step[-1].position
    for one in await sequences_of(source):
        await target.import_sequences(NAME, (one,))


def shown(shape: LedgerShape) -> object:
    """Return a shape without the time of an empty ledger, which has no meaning."""
    times = [one.appended_ms if one.entries else None for one in shape.ledgers]
    return (
        [(one.ledger_id, one.entries, one.messages, one.bytes) for one in shape.ledgers],
        times,
        shape.sealed,
        shape.trimmed,
    )


class LedgerCopyRules(LedgerStoreRules):
    """A managed ledger continues in another store as if it had always been there."""

    @asynccontextmanager
    async def target(self) -> AsyncIterator[ICopyableLedgerStore]:
        """Open an empty store of the same kind."""
        directory = self.data.directory / "target"
        directory.mkdir()
        harness = type(self.data)(directory, self.data.environment)
        try:
            async with harness.open() as opened:
                yield copyable(opened)
        finally:
            await harness.destroy()

    async def history(self, store: ILedgerStore) -> IManagedLedger:
        """Make a ledger with a trimmed part, several closed ledgers, transactions, and an open ledger with entries."""
        ledger = await store.create(NAME)
        await send(ledger, sent("gone", 1), sent("p", 1, 3, branch(0, 1)), sent("p", 4, 4, branch(1, 1)))
        await ledger.roll()
        await self.data.pass_time(1_000)
        kept = (await ledger.tail()).open_ledger_id
        await send(ledger, sent("p", 5, 5, branch(0, 7)), Append(b"plain", 2))
        await ledger.roll()
        await ledger.trim(kept, frozenset({branch(1, 1)}))
        await self.data.pass_time(1_000)
        await send(ledger, sent("q", 10, 12), sent("p", 6))
        await ledger.roll()
        await self.data.pass_time(1_000)
        await append(ledger, b"last", b"x" * 3_000)
        return ledger

    @requires(ICopyableLedgerStore)
    async def test_what_is_read_is_everything(self) -> None:
        """Shape, entries and sequences are those that the ordinary calls show, whatever the size of a step."""
        async with self.data.open() as opened:
            store, ledger = copyable(opened), await self.history(opened)
            shape = await store.ledger_shape(NAME)
            assert shown(LedgerShape(await ledger.ledgers(-1, 100), False, shape.trimmed)) == shown(shape)
            with pytest.raises(EntryTrimmed) as caught:
                await ledger.read(EntryRange(EARLIEST, shape.whole.upto), MANY)
            assert shape.trimmed is not None
            assert (caught.value.position, caught.value.first) == (
                shape.trimmed[0],
                Position(shape.ledgers[0].ledger_id, 0),
            )
            assert shape.trimmed[1] == Position(shape.trimmed[0].ledger_id, 2)
            found = await entries_of(store)
            for limit in (Limit(1), Limit(2), Limit(100, 1), Limit(100, 20)):
                assert await entries_of(store, limit) == found
            assert [one.data for one in found] == await read_all(ledger, shape.whole.after)
            for entry in found:
                before = Position(entry.position.ledger_id, entry.position.entry_id - 1)
                counted = await ledger.count(EntryRange(before, entry.position), 1)
                assert (counted.messages, counted.appended_ms) == (entry.messages, entry.appended_ms)
            remembered = await sequences_of(store)
            assert await sequences_of(store, 1) == remembered
            assert [(one.sequence.producer, one.sequence.first) for one in remembered] == [
                ("gone", 1), ("p", 1), ("p", 5), ("p", 6), ("q", 10),
            ]  # fmt: skip
            for one in remembered:
                copy_found = await ledger.find_sequence(one.sequence.producer, one.sequence.last)
                assert copy_found is not None
                assert (copy_found.position, copy_found.branch, copy_found.sequence) == (
                    one.position,
                    one.branch,
                    one.sequence,
                )
            assert await store.last_ledger_id() >= shape.ledgers[-1].ledger_id
            with pytest.raises(LedgerNotFound):
                await store.ledger_shape("absent")

    @requires(ICopyableLedgerStore)
    async def test_a_copy_is_the_same_ledger(self) -> None:
        """The copy has the same shape, entries, times, window and transaction numbers."""
        async with self.data.open() as opened, self.target() as target:
            store, ledger = copyable(opened), await self.history(opened)
            await copy(store, target)
            shape = await store.ledger_shape(NAME)
            assert shown(await target.ledger_shape(NAME)) == shown(shape)
            assert await entries_of(target) == await entries_of(store)
            assert [(one.sequence, one.position, one.branch) for one in await sequences_of(target)] == [
                (one.sequence, one.position, one.branch) for one in await sequences_of(store)
            ]
            assert await target.highest_txn_numbers() == await store.highest_txn_numbers()
            assert await target.list_names("", "", 10) == (NAME,)
            copied = await target.open(NAME)
            assert await copied.tail() == await ledger.tail()
            for entry in await entries_of(store):
                for at_ms in (entry.appended_ms, entry.appended_ms + 1):
                    assert await copied.find_time(at_ms) == await ledger.find_time(at_ms)
            with pytest.raises(EntryTrimmed):
                await copied.read(EntryRange(EARLIEST, shape.whole.upto), MANY)

    @requires(ICopyableLedgerStore)
    async def test_a_copy_goes_on(self) -> None:
        """
        Appends follow the last entry, sequences are recognized, and no ledger id is used again.

        If this fails, an entry that a cursor or an acknowledgment names is another one in the copy.
        """
        async with self.data.open() as opened, self.target() as target:
            store, ledger = copyable(opened), await self.history(opened)
            deleted = await (await store.create("deleted")).tail()
            await store.delete("deleted", None)
            await copy(store, target)
            copied = await target.open(NAME)
            tail = await copied.tail()
            again = await send(copied, sent("p", 5, 5, branch(0, 7)), sent("p", 1, 3), sent("gone", 1), sent("p", 7))
            assert [one.duplicate for one in again] == [True, True, True, False]
            assert again[0].branch == branch(0, 7)
            assert again[1].branch is None, "settled when its ledger was trimmed"
            assert again[3].position == Position(tail.open_ledger_id, tail.last_confirmed.entry_id + 1)
            with pytest.raises(LedgerClosed):
                await copied.append((Append(b"late", 1, branch(0, 7)),), (await ledger.ledgers(-1, 1))[0].ledger_id)
            rolled = await copied.roll()
            assert rolled.open_ledger_id > deleted.open_ledger_id
            assert (await (await target.create("deleted")).tail()).open_ledger_id > deleted.open_ledger_id
            await copied.trim(rolled.open_ledger_id, frozenset({branch(0, 7)}))
            assert await copied.find_sequence("p", 5) is None
            assert await copied.find_sequence("p", 6) is not None

    @requires(ICopyableLedgerStore)
    @pytest.mark.parametrize("state", ["empty", "sealed", "trimmed to the end", "rolled"])
    async def test_a_copy_of_a_special_ledger(self, state: str) -> None:
        """An empty ledger, a sealed one, one whose entries are all trimmed and one whose open ledger is empty."""
        async with self.data.open() as opened, self.target() as target:
            store = copyable(opened)
            ledger = await store.create(NAME)
            if state != "empty":
                await append(ledger, b"a", b"b")
            if state == "sealed":
                await ledger.seal()
            elif state != "empty":
                opened_next = (await ledger.roll()).open_ledger_id
                if state == "trimmed to the end":
                    await ledger.trim(opened_next, frozenset())
            await copy(store, target)
            copied = await target.open(NAME)
            assert await copied.tail() == await ledger.tail()
            assert shown(await target.ledger_shape(NAME)) == shown(await store.ledger_shape(NAME))
            if state == "sealed":
                with pytest.raises(LedgerSealed):
                    await append(copied, b"late")
                return
            (position,) = await append(copied, b"next")
            (expected,) = await append(ledger, b"next")
            assert position == expected

    @requires(ICopyableLedgerStore)
    async def test_an_import_is_resumed(self) -> None:
        """
        Every call of an import may be repeated; entries follow each other, and nothing is there twice.

        If this fails, a copy that was killed and run again has gaps or repeated entries.
        """
        async with self.data.open() as opened, self.target() as target:
            store = copyable(opened)
            await self.history(opened)
            await target.skip_ids(await store.last_ledger_id(), await store.highest_txn_numbers())
            await target.skip_ids(0, {1: 0})
            assert await target.last_ledger_id() >= await store.last_ledger_id()
            assert await target.highest_txn_numbers() == await store.highest_txn_numbers()
            shape, stored = await store.ledger_shape(NAME), tuple(await entries_of(store))
            assert await target.import_ledger(NAME, shape) == shape.whole.after
            for number, entry in enumerate(stored):
                if number + 1 < len(stored):
                    with pytest.raises(InvalidInput):
                        await target.import_entries(NAME, (stored[number + 1],))
                await target.import_entries(NAME, (entry,))
                with pytest.raises(InvalidInput):
                    await target.import_entries(NAME, stored[number : number + 2] and stored[number : number + 2])
                assert await target.import_ledger(NAME, shape) == entry.position
            assert tuple(await entries_of(target)) == stored
            remembered = tuple(await sequences_of(store))
            await target.import_sequences(NAME, remembered[:2])
            await target.import_sequences(NAME, remembered)
            await target.import_sequences(NAME, remembered[1:])
            assert [one.position for one in await sequences_of(target)] == [one.position for one in remembered]
