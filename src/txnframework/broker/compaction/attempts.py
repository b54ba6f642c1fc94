"""Attempts to compact a segment: whose result counts is decided by one record."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass

import msgspec

from txnframework.broker.compaction.messages import Order, compacted_entries
from txnframework.broker.coordination import ATTEMPTS_MAX, expected_version, update_record
from txnframework.environment import Environment
from txnframework.errors import Fenced, LedgerNotFound, Unavailable
from txnframework.interfaces import ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.model import paths, records
from txnframework.model.compacted import CompactedEntry
from txnframework.model.ledger import Append
from txnframework.model.metadata import Expect, Put, Record
from txnframework.model.names import SegmentName, parse_name
from txnframework.model.positions import Position

TOKEN_BITS = 64
NAMES_MAX = 100


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What ``compactor`` kept of all that counts up to ``upto`` stands in ``ledgers``, one behind the other."""

    ledgers: tuple[str, ...]
    upto: Position
    compactor: str
    order: Order


def continued_from(earlier: CompactionResult | None, order: Order) -> CompactionResult | None:
    """
    Return what a compaction in this order may go on from; None: it begins anew.

    What another order left out may be what this one keeps, and what is committed later may come earlier in the order of
    commits: so only positions go on, from what was kept in the order of positions.
    """
    return earlier if earlier is not None and (earlier.order, order) == ("position", "position") else None


@dataclass(frozen=True, slots=True)
class Attempt:
    """
    An attempt to compact a segment, in whichever processes it is carried out.

    ``earlier`` is what readers find until it is finished; None: nothing was compacted yet.
    """

    segment: str
    number: int
    token: str
    earlier: CompactionResult | None

    def ledger_name(self, part: str = "") -> str:
        """Return the name of a ledger to write to: the only one, or that of one of several writers."""
        return paths.compacted_ledger_name(self.segment, self.number, part)


@dataclass(frozen=True, slots=True)
class CompactedPart:
    """What was kept of a segment up to ``upto``; everything behind it stands in the segment alone."""

    upto: Position
    store: ILedgerStore
    first: IManagedLedger
    further: tuple[str, ...]

    async def entries(self) -> AsyncGenerator[CompactedEntry, None]:
        """
        Return what was kept, and let go of it in the end.

        :raises LedgerNotFound: it was compacted anew.
        """
        ledger = self.first
        try:
            async for entry in compacted_entries(ledger):
                yield entry
            for name in self.further:
                await ledger.close()
                ledger = await self.store.open(name)
                async for entry in compacted_entries(ledger):
                    yield entry
        finally:
            await ledger.close()


class Attempts:
    """
    Begins attempts, and makes what one of them wrote the one that readers find: that is one change of one record.

    An attempt begins by taking the next number in the record. So none with a lower number can finish any more, and what
    they have left is removed; a crash at any point leaves what was named before, or what is new.
    """

    def __init__(self, store: IMetadataStore, ledgers: ILedgerStore, environment: Environment) -> None:
        self._store = store
        self._ledgers = ledgers
        self._environment = environment

    async def kept(self, segment: str) -> CompactionResult | None:
        """Return what readers find, None if nothing was compacted."""
        return _kept(_decoded(await self._store.get(paths.compacted_key(segment))))

    async def part(self, segment: str) -> CompactedPart | None:
        """Return what was compacted of a segment, opened; None if nothing was."""
        for _ in range(ATTEMPTS_MAX):
            found = await self.kept(segment)
            if found is None:
                return None
            first, *further = found.ledgers
            with contextlib.suppress(LedgerNotFound):  # compacted anew this very moment
                return CompactedPart(found.upto, self._ledgers, await self._ledgers.open(first), tuple(further))
        raise Unavailable(f"what was compacted of {segment} changed {ATTEMPTS_MAX} times while it was being opened")

    async def begin(self, segment: str) -> Attempt:
        """Begin an attempt: no earlier one can finish any more, and what they wrote and nobody names is removed."""
        key = paths.compacted_key(segment)
        token = f"{self._environment.random_bits(TOKEN_BITS):016x}"
        begun = records.CompactedRecord()

        async def begin(record: Record | None) -> Put | None:
            nonlocal begun
            begun = _decoded(record)
            if begun.token == token:  # the reply was lost
                return None
            begun = msgspec.structs.replace(begun, attempt=begun.attempt + 1, token=token)
            return Put(key, records.encode(begun), expected_version(record))

        await update_record(self._store, key, begin)
        attempt = Attempt(segment, begun.attempt, token, _kept(begun))
        # What stands of earlier attempts is not named, and cannot be any more; what stands of later ones may be.
        named = () if attempt.earlier is None else attempt.earlier.ledgers
        await self._remove(segment, attempt.ledger_name(), named)
        return attempt

    async def goes_on(self, attempt: Attempt) -> bool:
        """Whether no later attempt has begun, so that this one may still finish."""
        return _decoded(await self._store.get(paths.compacted_key(attempt.segment))).token == attempt.token

    @contextlib.asynccontextmanager
    async def writing(self, attempt: Attempt, part: str = "") -> AsyncIterator[PartWriter]:
        """
        Make a ledger of an attempt, and give what writes it; in whichever process.

        :raises Fenced: another attempt began later.
        """
        name = attempt.ledger_name(part)
        ledger = await self._ledgers.create(name)
        try:
            # Made, then looked: an attempt that begins after this finds the ledger and removes it.
            if not await self.goes_on(attempt):
                await self._ledgers.delete(name, None)
                raise _fenced(attempt)
            yield PartWriter(ledger)
        except LedgerNotFound as error:
            if error.name != name:
                raise
            raise _fenced(attempt) from error
        finally:
            await ledger.close()

    async def finish(self, attempt: Attempt, kept: CompactionResult) -> None:
        """
        Make what was kept the one that readers find, and remove what they found before, and what else was written.

        Every ledger of ``kept`` is sealed: nothing is written to it any more. May be repeated.

        :raises Fenced: another attempt began later; nothing was changed.
        """
        key = paths.compacted_key(attempt.segment)
        first, *further = kept.ledgers

        async def switch(record: Record | None) -> Put | None:
            found = _decoded(record)
            if found.token != attempt.token:
                raise _fenced(attempt)
            after = msgspec.structs.replace(
                found,
                ledger=first,
                further=further,
                upto=str(kept.upto),
                compactor=kept.compactor,
                order=kept.order,
            )
            return None if found == after else Put(key, records.encode(after), expected_version(record))

        await update_record(self._store, key, switch)
        # Killed here, what is not named any more stays until the next attempt begins.
        await self._remove(
            attempt.segment, paths.compacted_ledger_name(attempt.segment, attempt.number + 1), kept.ledgers
        )

    async def give_up(self, attempt: Attempt) -> None:
        """
        Remove what an attempt wrote that will not be finished, unless a later one has done so.

        What is removed must not be named by a change of the record that is still on its way, so another attempt begins,
        and is left at that.
        """
        if await self.goes_on(attempt):
            await self.begin(attempt.segment)

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
            found = _decoded(record)
            if upto_ledger_id is not None and Position.parse(found.upto).ledger_id > upto_ledger_id:
                fenced = 0
                return None
            fenced = found.attempt + bool(found.token)
            if record is None or not found.token:
                return None
            return Put(key, records.encode(records.CompactedRecord(attempt=fenced)), record.version)

        await update_record(self._store, key, fence)
        await self._remove(segment, paths.compacted_ledger_name(segment, fenced), ())
        if isinstance(parse_name(segment), SegmentName):
            await self._store.delete(key, Expect.ANY)

    async def _remove(self, segment: str, before: str, named: tuple[str, ...]) -> None:
        """Remove the compacted ledgers whose names come before one, but not those that are named."""
        prefix, after = paths.compacted_ledgers_prefix(segment), ""
        while names := await self._ledgers.list_names(prefix, after, NAMES_MAX):
            for name in names:
                if name < before and name not in named:
                    await self._ledgers.delete(name, None)
            after = names[-1]


def _fenced(attempt: Attempt) -> Fenced:
    return Fenced(f"compaction of {attempt.segment}", "one that began later")


def _decoded(record: Record | None) -> records.CompactedRecord:
    return records.CompactedRecord() if record is None else records.decode(records.CompactedRecord, record)


def _kept(found: records.CompactedRecord) -> CompactionResult | None:
    if not found.ledger:
        return None
    order: Order = "commit" if found.order == "commit" else "position"
    return CompactionResult((found.ledger, *found.further), Position.parse(found.upto), found.compactor, order)


APPEND_ENTRIES_MAX = 100
APPEND_BYTES_MAX = 4 * 1024 * 1024
"""One append holds at most so many entries, and so many bytes unless a single one is larger."""


class PartWriter:
    """Writes one ledger of an attempt, which readers find once that is finished; ``Attempts.writing`` makes it."""

    def __init__(self, ledger: IManagedLedger) -> None:
        self.name = ledger.name
        self._ledger = ledger
        self._waiting: list[Append] = []
        self._waiting_bytes = 0

    async def add(self, data: bytes, messages: int) -> None:
        """Write an entry, soon."""
        self._waiting.append(Append(data, messages))
        self._waiting_bytes += len(data)
        if len(self._waiting) == APPEND_ENTRIES_MAX or self._waiting_bytes >= APPEND_BYTES_MAX:
            await self._flush()

    async def add_all(self, entries: Iterable[tuple[bytes, int]]) -> None:
        """Write entries with their numbers of messages."""
        for data, messages in entries:
            await self.add(data, messages)

    async def seal(self) -> None:
        """Write what waits; nothing can be added any more, by whoever is late."""
        await self._flush()
        await self._ledger.seal()

    async def _flush(self) -> None:
        if self._waiting:
            await self._ledger.append(tuple(self._waiting), None)
            self._waiting.clear()
            self._waiting_bytes = 0
