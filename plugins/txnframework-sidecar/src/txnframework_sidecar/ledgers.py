"""A topic and its sidecar, as this process has read them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from txnframework.errors import LedgerNotFound, StoreMismatch, TxnFrameworkError
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import Position, Tail
from txnframework.plugin import AbortRetention
from txnframework_legacy.ledger_names import SIDECAR, ledger_name
from txnframework_sidecar.following import Following
from txnframework_sidecar.model.index import TransactionIndex
from txnframework_sidecar.model.markers import Note, Written, read_sidecar_entry, read_topic_entry
from txnframework_sidecar.model.stream import Stream
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.snapshots import Snapshots, restore, snapshot_of


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the ledgers beside one topic."""

    sidecar: str
    compacted: str
    snapshots: str


def names_of(segment: str, life: int) -> Names:
    """Return the names of the ledgers beside a topic, in its ``life``; they are deleted with the topic."""
    return Names(
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
        names: Names,
        retention: AbortRetention,
        options: SidecarOptions,
    ) -> None:
        self.topic = topic
        self.stream = Stream()
        self.index = TransactionIndex(options)
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
        self._topic_following = Following(self.stream, read_topic_entry, self.stream.apply, self.stream.without)
        self._sidecar_following = Following(self.index, read_sidecar_entry, self._apply_sidecar, self.sidecar_trimmed)

    async def read_topic(self) -> Tail:
        """Apply every entry that was confirmed before this call to ``stream``; return the tail at the call."""
        await self._begin()
        tail = await self._topic_following.catch_up(self.topic)
        await self._write_down()
        return tail

    async def read_sidecar(self) -> Tail | None:
        """
        Apply every sidecar entry that was confirmed before this call to ``index``; return its tail, None without
        sidecar.
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
        self.index.without(first_ledger_id, lambda: due)

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
                restore(found, self.stream, self.index)
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
            await self._snapshots.write(snapshot_of(self.stream, self.index))

    def _apply_sidecar(self, found: Written | Note, position: Position) -> None:
        self.index.apply(found, position)
        if isinstance(found, Note):
            self.stream.noted(found)
