"""Attempts to compact a segment; one record decides whose result counts."""

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

APPEND_ENTRIES_MAX = 100
APPEND_BYTES_MAX = 4 * 1024 * 1024
"""The most entries of one append, and the most bytes unless a single entry is larger."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The messages up to ``upto`` that ``compactor`` kept, stored in ``ledgers``, one after the other."""

    ledgers: tuple[str, ...]
    upto: Position
    compactor: str
    order: Order


def continued_from(earlier: CompactionResult | None, order: Order) -> CompactionResult | None:
    """
    Return the result that a compaction in this order continues; None: the compaction starts over.

    Only compactions in the order of positions continue, from a result in that order. A compaction in another order may
    have dropped messages that this order keeps. A message that is committed later may come earlier in the order of
    commits.
    """
    return earlier if earlier is not None and (earlier.order, order) == ("position", "position") else None


@dataclass(frozen=True, slots=True)
class Attempt:
    """
    An attempt to compact a segment, which one or several processes carry out.

    ``earlier`` is the result that readers find until the attempt is finished; None: nothing was compacted yet.
    """

    segment: str
    number: int
    token: str
    earlier: CompactionResult | None

    def ledger_name(self, part: str = "") -> str:
        """Return the name of a ledger of this attempt; ``part`` is empty if there is only one writer."""
        return paths.compacted_ledger_name(self.segment, self.number, part)


@dataclass(frozen=True, slots=True)
class CompactedPart:
    """The compacted messages of a segment up to ``upto``; later messages are in the segment only."""

    upto: Position
    store: ILedgerStore
    first: IManagedLedger
    further: tuple[str, ...]

    async def entries(self) -> AsyncGenerator[CompactedEntry, None]:
        """
        Return the kept entries, and close the last opened ledger at the end.

        :raises LedgerNotFound: the segment was compacted again.
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
    Begins attempts. One change of one record publishes the result of one attempt to readers.

    An attempt begins by taking the next number in the record. Afterwards no attempt with a lower number can finish, and
    the ledgers of such attempts are removed. A crash at any point leaves either the earlier result or the new one.
    """

    def __init__(self, store: IMetadataStore, ledgers: ILedgerStore, environment: Environment) -> None:
        self._store = store
        self._ledgers = ledgers
        self._environment = environment

    async def result(self, segment: str) -> CompactionResult | None:
        """Return the result that readers find; None: nothing was compacted."""
        return _kept(_decoded(await self._store.get(paths.compacted_key(segment))))

    async def open_result(self, segment: str) -> CompactedPart | None:
        """Open the compacted messages of a segment and return them, or None if nothing was compacted."""
        for _ in range(ATTEMPTS_MAX):
            found = await self.result(segment)
            if found is None:
                return None
            first, *further = found.ledgers
            with contextlib.suppress(LedgerNotFound):  # compacted again at this moment
                return CompactedPart(found.upto, self._ledgers, await self._ledgers.open(first), tuple(further))
        raise Unavailable(f"the compacted copy of {segment} changed {ATTEMPTS_MAX} times while it was being opened")

    async def begin(self, segment: str) -> Attempt:
        """
        Begin an attempt: no earlier attempt can finish any more, and their ledgers that the record does not name are
        removed.
        """
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
        # Ledgers of earlier attempts that the record does not name now will never be named; ledgers of later attempts
        # may be.
        named = () if attempt.earlier is None else attempt.earlier.ledgers
        await self._remove(segment, attempt.ledger_name(), named)
        return attempt

    async def is_current(self, attempt: Attempt) -> bool:
        """Return whether no later attempt has begun, so that this one may still finish."""
        return _decoded(await self._store.get(paths.compacted_key(attempt.segment))).token == attempt.token

    @contextlib.asynccontextmanager
    async def open_writer(self, attempt: Attempt, part: str = "") -> AsyncIterator[PartWriter]:
        """
        Create a ledger of an attempt and yield its writer; any process of the attempt may call this.

        :raises Fenced: another attempt began later.
        """
        name = attempt.ledger_name(part)
        ledger = await self._ledgers.create(name)
        try:
            # Create the ledger, then check: an attempt that begins after the check finds the ledger and removes it.
            if not await self.is_current(attempt):
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
        Publish the result, which readers find from now on; remove the earlier result and all other ledgers.

        Every ledger of ``kept`` is sealed: no process can write to it any more. May be repeated.

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
        # After a crash here, ledgers that the record no longer names stay until the next attempt begins.
        await self._remove(
            attempt.segment, paths.compacted_ledger_name(attempt.segment, attempt.number + 1), kept.ledgers
        )

    async def abandon(self, attempt: Attempt) -> None:
        """
        Remove the ledgers of an attempt that will not be finished, unless a later attempt has removed them.

        A change of the record that is still in flight must not name removed ledgers. So another attempt begins, and is
        not continued.
        """
        if await self.is_current(attempt):
            await self.begin(attempt.segment)

    async def remove(self, segment: str, upto_ledger_id: int | None) -> None:
        """
        Remove the compacted messages of a deleted segment.

        Running attempts are fenced first. If the segment's name may return, as that of a persistent topic, the record
        stays and fences them permanently. ``upto_ledger_id`` is then the last ledger of the former life. Compacted
        messages of a later life stay.
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
        """Delete the compacted ledgers whose names come before ``before``, except those in ``named``."""
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


class PartWriter:
    """
    Writes one ledger of an attempt, created by ``Attempts.open_writer``.

    Readers find the ledger when the attempt is finished.
    """

    def __init__(self, ledger: IManagedLedger) -> None:
        self.name = ledger.name
        self._ledger = ledger
        self._waiting: list[Append] = []
        self._waiting_bytes = 0

    async def add(self, data: bytes, messages: int) -> None:
        """Add an entry to the next append."""
        self._waiting.append(Append(data, messages))
        self._waiting_bytes += len(data)
        if len(self._waiting) == APPEND_ENTRIES_MAX or self._waiting_bytes >= APPEND_BYTES_MAX:
            await self._flush()

    async def add_all(self, entries: Iterable[tuple[bytes, int]]) -> None:
        """Add entries with their numbers of messages."""
        for data, messages in entries:
            await self.add(data, messages)

    async def seal(self) -> None:
        """Append the waiting entries and seal the ledger, so that no late writer can add to it."""
        await self._flush()
        await self._ledger.seal()

    async def _flush(self) -> None:
        if self._waiting:
            await self._ledger.append(tuple(self._waiting), None)
            self._waiting.clear()
            self._waiting_bytes = 0
