"""A topic and its sidecar, as this process has read them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from txnframework.errors import EntryTrimmed, LedgerNotFound, StoreMismatch, TxnFrameworkError
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import EntryRange, LedgerEntry, Limit, Position, Tail
from txnframework.plugin import AbortRetention
from txnframework_legacy.ledger_names import SIDECAR, ledger_name
from txnframework_sidecar.markers import Note, StoredRun, read_sidecar_entry, read_topic_entry
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.snapshots import Snapshots, restore, snapshot_of
from txnframework_sidecar.state import SidecarState, TopicState

F = TypeVar("F")

PAGE = Limit(1_000)


class ReadState(Protocol):
    """The state to which entries are applied, and the last entry applied."""

    upto: Position


class LedgerReader(Generic[F]):
    """
    One ledger, read by one task at a time.

    ``decode`` decodes an entry, ``apply`` applies it. ``skipped`` gets the first remaining ledger when ledgers were
    trimmed before this process read them. The trimmed entries were decided, and no marker refers to them any more.
    """

    def __init__(
        self,
        state: ReadState,
        decode: Callable[[LedgerEntry, str], F],
        apply: Callable[[F, Position], None],
        skipped: Callable[[int], None],
    ) -> None:
        self._state = state
        self._decode = decode
        self._apply = apply
        self._skipped = skipped
        self.entries = 0
        """The number of entries read."""
        self._is_begun = False
        self._reading = asyncio.Lock()

    async def catch_up(self, ledger: IManagedLedger) -> Tail:
        """Apply every entry that was confirmed before this call; return the tail at the call."""
        tail = await ledger.tail()
        async with self._reading:
            if not self._is_begun:
                await self._skip(ledger)
                self._is_begun = True
            while self._state.upto < tail.last_confirmed:
                try:
                    await self._read_on(ledger, tail.last_confirmed)
                except EntryTrimmed:
                    await self._skip(ledger)
        return tail

    async def _read_on(self, ledger: IManagedLedger, upto: Position) -> None:
        """Read and apply one page. An entry that cannot be decoded raises its error; the next call reads it again."""
        entries = await ledger.read(EntryRange(self._state.upto, upto), PAGE)
        for entry in entries:
            self._apply(self._decode(entry, ledger.name), entry.position)
            self.entries += 1
        if not entries:
            self._state.upto = max(self._state.upto, upto)

    async def _skip(self, ledger: IManagedLedger) -> None:
        (first, *_) = await ledger.ledgers(-1, 1)
        self._skipped(first.ledger_id)
        self._state.upto = max(self._state.upto, Position(first.ledger_id, -1))


@dataclass(frozen=True, slots=True)
class LedgerNames:
    """The names of the ledgers beside one topic."""

    sidecar: str
    compacted: str
    snapshots: str


def ledger_names(segment: str, life: int) -> LedgerNames:
    """Return the names of the ledgers beside a topic, in its ``life``; they are deleted with the topic."""
    return LedgerNames(
        ledger_name(SIDECAR, segment, life),
        ledger_name(SIDECAR, segment, life, "compacted"),
        ledger_name(SIDECAR, segment, life, "snapshots"),
    )


class TopicLedgers:
    """
    Reads the topic's ledger and the sidecar to their ends, each when it is needed.

    The sidecar is created with the first write in a transaction. Until then, a process tries to open it whenever it
    needs it.
    """

    def __init__(
        self,
        topic: IManagedLedger,
        ledgers: ILedgerStore,
        names: LedgerNames,
        retention: AbortRetention,
        options: SidecarOptions,
    ) -> None:
        self.topic = topic
        self.topic_state = TopicState()
        self.sidecar_state = SidecarState(options)
        self._store = ledgers
        self._name = names.sidecar
        self._options = options
        self._retention = retention
        self._sidecar: IManagedLedger | None = None
        self._opening = asyncio.Lock()
        self._trimmed_ms: int | None = None
        self._snapshots = Snapshots(ledgers, names.snapshots, options)
        self._beginning = asyncio.Lock()
        self._is_begun = False
        self._written_at = 0
        self._topic_following = LedgerReader(
            self.topic_state, read_topic_entry, self.topic_state.apply, self.topic_state.without
        )
        self._sidecar_following = LedgerReader(
            self.sidecar_state, read_sidecar_entry, self._apply_sidecar, self.sidecar_trimmed
        )

    async def read_topic(self) -> Tail:
        """Apply every entry that was confirmed before this call to ``topic_state``; return the tail at the call."""
        await self._begin()
        tail = await self._topic_following.catch_up(self.topic)
        await self._write_down()
        return tail

    async def read_sidecar(self) -> Tail | None:
        """
        Apply every sidecar entry that was confirmed before this call to ``sidecar_state``.

        Returns the sidecar's tail, or None if there is no sidecar.
        """
        await self._begin()
        sidecar = await self.find_sidecar()
        return None if sidecar is None else await self._sidecar_following.catch_up(sidecar)

    async def find_sidecar(self) -> IManagedLedger | None:
        """Return the sidecar; None if no transaction has written yet."""
        if self._sidecar is None:
            async with self._opening:
                try:
                    self._sidecar = self._sidecar or await self._store.open(self._name)
                except LedgerNotFound:
                    return None
        return self._sidecar

    async def make_sidecar(self) -> IManagedLedger:
        """
        Return the sidecar; create it if it does not exist.

        :raises LedgerNotFound: the topic was deleted.
        """
        found = await self.find_sidecar()
        if found is None:
            async with self._opening:
                made = self._sidecar or await self._store.create(self._name)
                # A topic's deletion removes its ledger first and its sidecar afterwards. If the topic still exists, the
                # deletion of this sidecar is still to come. If it does not, this sidecar may never be deleted, so
                # nothing is written to it.
                await self.topic.tail()
                self._sidecar = found = made
        return found

    def sidecar_trimmed(self, first_ledger_id: int) -> None:
        """Forget the entries before a ledger, after the time in which a caller may still judge some of them."""
        now_ms = self._retention.now_ms()
        since_ms = self._trimmed_ms if self._trimmed_ms is not None else now_ms
        due = self._retention.is_over(since_ms)
        self._trimmed_ms = None if due else since_ms
        self.sidecar_state.without(first_ledger_id, lambda: due)

    async def close(self) -> None:
        """Close the ledgers beside the topic."""
        await self._snapshots.close()
        if self._sidecar is not None:
            await self._sidecar.close()

    async def _begin(self) -> None:
        """Restore the last snapshot, whichever process wrote it."""
        async with self._beginning:
            if self._is_begun:
                return
            found = await self._snapshots.last()
            if found is not None:
                await self._require_past(self.topic, found.topic_upto)
                sidecar = await self.find_sidecar()
                if sidecar is not None:
                    await self._require_past(sidecar, found.sidecar_upto)
                restore(found, self.topic_state, self.sidecar_state)
            self._is_begun = True

    async def _require_past(self, ledger: IManagedLedger, upto: Position) -> None:
        tail = await ledger.tail()
        if upto > max(tail.last_confirmed, Position(tail.open_ledger_id, -1)):
            raise StoreMismatch(
                f"a snapshot of {ledger.name} was taken at {upto}, and it ends at {tail.last_confirmed};"
                " it was restored from a backup"
            )

    async def _write_down(self) -> None:
        """
        Write a snapshot if many entries were read since the last one. After a crash before that, more is read again.
        """
        read = self._topic_following.entries + self._sidecar_following.entries
        if read - self._written_at < self._options.snapshot_entries:
            return
        self._written_at = read
        with suppress(TxnFrameworkError):  # the previous snapshot is still valid
            await self.read_sidecar()
            await self._snapshots.write(snapshot_of(self.topic_state, self.sidecar_state))

    def _apply_sidecar(self, found: StoredRun | Note, position: Position) -> None:
        self.sidecar_state.apply(found, position)
        if isinstance(found, Note):
            self.topic_state.noted(found)
