"""Rules of steps with an intent: a write operation and its entries are one step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from txnframework.errors import LedgerSealed, VersionMismatch
from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model import (
    EARLIEST,
    Append,
    Appended,
    Check,
    Expect,
    IndexEntry,
    IndexRange,
    Intent,
    Key,
    LedgerAppend,
    Limit,
    Position,
    Put,
    Reach,
    Record,
    Step,
)
from txnframework.model.positions import EntryRange
from txnframework.model.records import WriteOperation, decode_operation
from txnframework.testing._suites._ledger._case import NAME, LedgerStoreRules, branch, read_all, sent
from txnframework.testing.capabilities import requires
from txnframework.testing.harness import Colocated
from txnframework.testing.processes import Processes

HEADER = Key("/txn/suite", "suite")
OPERATIONS = Key("/txn-op/suite", "suite")
KIND = IndexEntry("suite-writes", b"k")
WRITES = IndexRange("suite-writes", b"", b"\xff")
CALLS = 20


class Announced(NamedTuple):
    """What a step with an intent has written."""

    appended: tuple[Appended, ...]
    record: Record
    operation: WriteOperation


class Opened(NamedTuple):
    """A ledger, the records beside it, and the version of the header that exists."""

    ledger: IManagedLedger
    records: IMetadataStore
    version: int

    async def append(self, *entries: Append, version: int | None = None) -> Announced:
        """Append entries with their intent, in a step that names a version of the header."""
        operation = WriteOperation(branch=0, segment=NAME, ledger=0, after=str(EARLIEST))
        check = Check(HEADER, self.version if version is None else version)
        append = LedgerAppend(self.ledger.reference, entries, Intent(OPERATIONS, (KIND,), operation))
        done = await self.records.apply(Step(checks=(check,), appends=(append,)))
        (record,), (appended,) = done.records, done.appended
        return Announced(appended, record, _operation_in(record))

    async def operations(self) -> list[Record]:
        """Return the operations' records, in the order of their index."""
        return [*(await self.records.scan_index(WRITES, 1000)).records]


class ColocationRules(LedgerStoreRules):
    """Ledgers whose database also has the records of the metadata store."""

    async def test_a_location_is_that_of_records(self) -> None:
        """
        The store has no location, or its harness is ``Colocated`` and opens records with an equal location.

        Otherwise steps would append to ledgers that no other test of this file looks at. Steps with entries are made in
        one process, so of a store in child processes it is the harness of the children.
        """
        async with self.data.open() as ledgers:
            location = ledgers.location
        if location is None:
            return
        harness = self.data.client if isinstance(self.data, Processes) else type(self.data)
        assert issubclass(harness, Colocated), "the store has a location, so its harness has to be Colocated"
        if not isinstance(self.data, Colocated):
            return
        async with self.data.open_with_records() as (ledgers, records):
            assert records.location is not None
            assert ledgers.location == records.location
            assert records.reach is Reach.DATABASE

    @requires(Colocated)
    async def test_an_intent_and_its_entries(self) -> None:
        """
        The operation names the open ledger and the last position before its entries, and is returned as it is stored.

        It has its index entries, and the header is as before.
        """
        async with self._opened() as opened:
            await opened.ledger.append((Append(b"before"),), None)
            before = await opened.ledger.tail()
            entries = [sent("p", number, branch=branch(0)) for number in (1, 2)]
            done = await opened.append(*entries)
            assert [one.position.entry_id for one in done.appended] == [1, 2]
            assert not any(one.duplicate for one in done.appended)
            assert (done.operation.ledger, done.operation.after) == (before.open_ledger_id, str(before.last_confirmed))
            assert await opened.operations() == [done.record]
            assert await opened.records.get(done.record.key) == done.record
            assert await read_all(opened.ledger) == [b"before", b"p:1-1", b"p:2-2"]
            header = await opened.records.get(HEADER)
            assert header is not None
            assert header.version == opened.version

    @requires(Colocated)
    async def test_a_changed_header_refuses_both(self) -> None:
        """If the header is not as expected, neither the operation nor an entry is written."""
        async with self._opened() as opened:
            ended = await opened.records.put(Put(HEADER, b"ended", opened.version))
            with pytest.raises(VersionMismatch) as caught:
                await opened.append(sent("p", 1))
            assert (caught.value.key, caught.value.actual) == (HEADER, ended)
            assert await opened.operations() == []
            assert await read_all(opened.ledger) == []
            await opened.append(sent("p", 1), version=ended)
            assert len(await opened.operations()) == len(await read_all(opened.ledger)) == 1

    @requires(Colocated)
    async def test_a_sealed_ledger_refuses_both(self) -> None:
        """A sealed row refuses the entries, and no operation is written that would hold readers back."""
        async with self._opened() as opened:
            await opened.ledger.seal()
            with pytest.raises(LedgerSealed):
                await opened.append(sent("p", 1))
            assert await opened.operations() == []

    @requires(Colocated)
    async def test_duplicates_are_reported(self) -> None:
        """
        An entry that is stored already is reported and not appended again; others of the call are appended.

        The operation is written in both cases, because its writer appends more.
        """
        async with self._opened() as opened:
            first = await opened.append(sent("p", 1, branch=branch(0)))
            again = await opened.append(sent("p", 1, branch=branch(0)), sent("p", 2, branch=branch(0)))
            assert [one.duplicate for one in again.appended] == [True, False]
            assert again.appended[0].position == first.appended[0].position
            assert again.appended[0].branch == branch(0)
            assert again.operation.after == str(first.appended[0].position)
            assert await opened.operations() == [first.record, again.record]
            assert await read_all(opened.ledger) == [b"p:1-1", b"p:2-2"]

    @requires(Colocated)
    async def test_watches_of_both_wake(self) -> None:
        """A watch on the operations and a watch on the tail both wake."""
        async with self._opened() as opened:
            watches = [await opened.records.watch(WRITES), await opened.ledger.watch()]
            await opened.append(sent("p", 1))
            await asyncio.gather(*(watch.changed() for watch in watches))
            for watch in watches:
                await watch.close()

    @requires(Colocated)
    async def test_concurrent_calls(self) -> None:
        """
        Each of many concurrent calls has an operation that names the position directly before its entry.

        No process that reads the entries, and then the operations, finds an entry without its operation. If this fails,
        check that the operation and the entries are one transaction, in which the position is read, too.
        """
        async with self._opened() as opened:
            calls = [opened.append(sent(f"p{number}", 1, branch=branch(number))) for number in range(CALLS)]
            done, missing = await asyncio.gather(asyncio.gather(*calls), self._entries_without_operation(opened))
            assert missing == []
            for one in done:
                assert _before(one) == Position.parse(one.operation.after)

    async def _entries_without_operation(self, opened: Opened) -> list[Position]:
        """Read until every call's entry is there; return the entries whose operation was not found."""
        missing: list[Position] = []
        seen = EARLIEST
        found = 0
        while found < CALLS:
            last = (await opened.ledger.tail()).last_confirmed
            named = {Position.parse(_operation_in(one).after) for one in await opened.operations()}
            entries = await opened.ledger.read(EntryRange(seen, last), Limit(1000)) if last > seen else ()
            missing += [one.position for one in entries if not any(_follows(one.position, after) for after in named)]
            found += len(entries)
            seen = max(seen, last)
        return missing

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Opened]:
        assert isinstance(self.data, Colocated)
        async with self.data.open_with_records() as (ledgers, records):
            ledger = await ledgers.create(NAME)
            assert ledger.location == records.location
            yield Opened(ledger, records, await records.put(Put(HEADER, b"open", Expect.ABSENT)))


def _before(done: Announced) -> Position:
    """Return the position before the call's only entry; for the first entry of the ledger, that of the operation."""
    position = done.appended[0].position
    after = Position.parse(done.operation.after)
    return after if not position.entry_id else Position(position.ledger_id, position.entry_id - 1)


def _follows(position: Position, after: Position) -> bool:
    return (position.entry_id == 0 and after < position) or after == Position(position.ledger_id, position.entry_id - 1)


def _operation_in(record: Record) -> WriteOperation:
    operation = decode_operation(record)
    assert isinstance(operation, WriteOperation)
    return operation
