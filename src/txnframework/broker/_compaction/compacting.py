"""Compaction: a copy of a segment's messages that holds only those that somebody decided to keep."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace

import msgspec

from txnframework.broker._agreement.cas import ATTEMPTS_MAX, change, version_of
from txnframework.broker._compaction.compactors import Compactor, DecidedMessage
from txnframework.broker._compaction.decided import Order, compacted_entries, in_order_of_commits, in_order_of_positions
from txnframework.broker._serving.segments import OpenSegment
from txnframework.environment import Environment
from txnframework.errors import Fenced, LedgerNotFound, Unavailable
from txnframework.interfaces import ILedgerStore, IManagedLedger, IMetadataStore, ITransactionCoordinator
from txnframework.model import paths, records
from txnframework.model.compacted import CompactedEntry, encode_compacted
from txnframework.model.layout import Layout
from txnframework.model.ledger import Append
from txnframework.model.metadata import Expect, Put, Record
from txnframework.model.names import SegmentName, parse_name
from txnframework.model.positions import EARLIEST, Position

Visit = Callable[[str], AbstractAsyncContextManager[OpenSegment]]
Entries = AsyncGenerator[CompactedEntry, None]
Source = Callable[[], Entries]

TOKEN_BITS = 64
APPEND_ENTRIES_MAX = 100
NAMES_MAX = 100


@dataclass(frozen=True, slots=True)
class CompactedPart:
    """What was kept of a segment up to ``upto``; everything behind it stands in the segment alone."""

    ledger: IManagedLedger
    upto: Position

    async def entries(self) -> Entries:
        """Return what was kept, and let go of it in the end."""
        try:
            async for entry in compacted_entries(self.ledger):
                yield entry
        finally:
            await self.ledger.close()


class Compacting:
    """
    Writes what is kept of a segment to a ledger of its own, which one record names: changing it is the switch.

    An attempt begins by taking the next number in the record. So none with a lower number can switch any more, and what
    they have left is removed; a crash at any point leaves the ledger that was named before, or the new one.
    """

    def __init__(
        self,
        store: IMetadataStore,
        ledgers: ILedgerStore,
        visit: Visit,
        coordinator: Callable[[str], Awaitable[ITransactionCoordinator | None]],
        environment: Environment,
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._visit = visit
        self._coordinator = coordinator
        self._environment = environment

    async def compact(self, layout: Layout, compactor: Callable[[], Compactor], order: Order) -> None:
        """
        Compact every segment up to what may be read now; one compactor decides about each.

        In the order of positions it goes on from what an earlier compaction kept, in the order of commits it begins
        anew.

        :raises CommitOrderUnknown: the messages cannot be put in the order of their commits any more.
        :raises Fenced: another compaction of a segment began later.
        """
        for segment_id in layout.made():
            async with self._visit(str(layout.name_of(segment_id))) as opened:
                await self._compact(opened, compactor(), order)

    async def part(self, segment: str) -> CompactedPart | None:
        """Return what was compacted of a segment, None if nothing was."""
        for _ in range(ATTEMPTS_MAX):
            record = await self._store.get(paths.compacted_key(segment))
            found = records.CompactedRecord() if record is None else records.decode(records.CompactedRecord, record)
            if not found.ledger:
                return None
            with contextlib.suppress(LedgerNotFound):  # compacted anew this very moment
                return CompactedPart(await self._ledgers.open(found.ledger), Position.parse(found.upto))
        raise Unavailable(f"what was compacted of {segment} changed {ATTEMPTS_MAX} times while it was being opened")

    async def forget(self, segment: str, upto_ledger_id: int | None) -> None:
        """
        Remove what was compacted of a segment that was deleted.

        Attempts that are under way are fenced first. The record stays where the segment's name may return, as that of a
        persistent topic, so that they are so for ever. ``upto_ledger_id`` is then the last ledger of the former life:
        what was compacted of a later one stays.
        """
        key = paths.compacted_key(segment)
        fenced = 0

        async def fence(record: Record | None) -> Put | None:
            nonlocal fenced
            found = records.CompactedRecord() if record is None else records.decode(records.CompactedRecord, record)
            if upto_ledger_id is not None and Position.parse(found.upto).ledger_id > upto_ledger_id:
                fenced = 0
                return None
            fenced = found.attempt + bool(found.token)
            if record is None or not found.token:
                return None
            return Put(key, records.encode(records.CompactedRecord(attempt=fenced)), record.version)

        await change(self._store, key, fence)
        await self._remove(segment, paths.compacted_ledger_name(segment, fenced), "")
        if isinstance(parse_name(segment), SegmentName):
            await self._store.delete(key, Expect.ANY)

    # -- one segment ----------------------------------------------------------------------------------

    async def _compact(self, opened: OpenSegment, compactor: Compactor, order: Order) -> None:
        begun = await self._begin(opened.name)
        made = paths.compacted_ledger_name(opened.name, begun.attempt)
        # What stands of earlier attempts is not named, and cannot be any more; what stands of later ones may be.
        await self._remove(opened.name, made, begun.ledger)
        upto = await opened.buffer.max_read_position()
        try:
            async with self._source(opened, begun, upto, order) as source:
                await self._write(made, source, compactor)
        except LedgerNotFound as error:
            if error.name == opened.name:
                raise
            raise Fenced(f"compaction of {opened.name}") from error  # a later attempt removed what this one wrote
        after = msgspec.structs.replace(begun, ledger=made, upto=str(upto), compactor=compactor.name, order=order)
        await self._switch(opened.name, after)
        if begun.ledger:
            await self._ledgers.delete(begun.ledger, None)

    @contextlib.asynccontextmanager
    async def _source(
        self, opened: OpenSegment, begun: records.CompactedRecord, upto: Position, order: Order
    ) -> AsyncIterator[Source]:
        """Give what there is to decide about, as often as it is asked for."""
        if order == "commit":
            coordinator = await self._coordinator(opened.name)
            yield lambda: in_order_of_commits(opened, upto, coordinator)
            return
        if not begun.ledger:
            yield lambda: in_order_of_positions(opened, EARLIEST, upto)
            return
        ledger = await self._ledgers.open(begun.ledger)

        async def both() -> Entries:
            async for entry in compacted_entries(ledger):
                yield entry
            async for entry in in_order_of_positions(opened, Position.parse(begun.upto), upto):
                yield entry

        try:
            yield both
        finally:
            await ledger.close()

    async def _write(self, name: str, source: Source, compactor: Compactor) -> None:
        """Show every message to the compactor, then write what it keeps."""
        async with aclosing(source()) as entries:
            async for entry in entries:
                for message in _messages_of(entry):
                    compactor.look(message)
        ledger = await self._ledgers.create(name)
        try:
            waiting: list[Append] = []
            async with aclosing(source()) as entries:
                async for entry in entries:
                    chosen = [compactor.keeps(message) for message in _messages_of(entry)]
                    kept = tuple(one for one, stays in zip(entry.messages, chosen, strict=True) if stays)
                    if kept:
                        waiting.append(Append(encode_compacted(replace(entry, messages=kept)), len(kept)))
                    if len(waiting) == APPEND_ENTRIES_MAX:
                        await ledger.append(tuple(waiting), None)
                        waiting.clear()
            if waiting:
                await ledger.append(tuple(waiting), None)
            await ledger.seal()
        finally:
            await ledger.close()

    # -- the record -----------------------------------------------------------------------------------

    async def _begin(self, segment: str) -> records.CompactedRecord:
        """Begin an attempt: no earlier one can switch any more. Return the record, which names what was kept so far."""
        key = paths.compacted_key(segment)
        token = f"{self._environment.random_bits(TOKEN_BITS):016x}"
        begun = records.CompactedRecord()

        async def begin(record: Record | None) -> Put | None:
            nonlocal begun
            begun = records.CompactedRecord() if record is None else records.decode(records.CompactedRecord, record)
            if begun.token == token:  # the reply was lost
                return None
            begun = msgspec.structs.replace(begun, attempt=begun.attempt + 1, token=token)
            return Put(key, records.encode(begun), version_of(record))

        await change(self._store, key, begin)
        return begun

    async def _switch(self, segment: str, after: records.CompactedRecord) -> None:
        key = paths.compacted_key(segment)

        async def switch(record: Record | None) -> Put | None:
            found = None if record is None else records.decode(records.CompactedRecord, record)
            if found is None or found.token != after.token:
                raise Fenced(f"compaction of {segment}")
            return None if found.ledger == after.ledger else Put(key, records.encode(after), version_of(record))

        await change(self._store, key, switch)

    async def _remove(self, segment: str, before: str, named: str) -> None:
        """Remove the compacted ledgers whose names come before one, but not the one that is named."""
        prefix, after = paths.compacted_ledgers_prefix(segment), ""
        while names := await self._ledgers.list_names(prefix, after, NAMES_MAX):
            for name in names:
                if name < before and name != named:
                    await self._ledgers.delete(name, None)
            after = names[-1]


def _messages_of(entry: CompactedEntry) -> list[DecidedMessage]:
    txn_id = None if entry.branch is None else entry.branch.txn_id
    return [
        DecidedMessage(
            Position(entry.position.ledger_id, entry.position.entry_id, index), message, entry.producer, txn_id
        )
        for index, message in entry.messages
    ]
