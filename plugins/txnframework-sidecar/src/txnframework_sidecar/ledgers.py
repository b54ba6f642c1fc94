"""A topic and its sidecar, as this process has read them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from txnframework.errors import LedgerNotFound, TxnFrameworkError
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import Position, Tail
from txnframework.plugin import AbortRetention
from txnframework_legacy.buffer.ledger_reader import LedgerReader, TrimDelay, require_not_restored
from txnframework_legacy.ledger_names import SIDECAR, ledger_name
from txnframework_sidecar.markers import Note, StoredRun, read_sidecar_entry, read_topic_entry
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.snapshots import restore, snapshot_ledger, snapshot_of
from txnframework_sidecar.state import SidecarState, TopicState


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
        self._trim_delay = TrimDelay(retention)
        self._sidecar: IManagedLedger | None = None
        self._opening = asyncio.Lock()
        self._snapshots = snapshot_ledger(ledgers, names.snapshots, options)
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
        await self._write_snapshot()
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
        self.sidecar_state.without(first_ledger_id, forget_aborted=self._trim_delay.is_over())

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
                snapshot, _ = found
                await require_not_restored(self.topic, snapshot.topic_upto)
                sidecar = await self.find_sidecar()
                if sidecar is not None:
                    await require_not_restored(sidecar, snapshot.sidecar_upto)
                restore(snapshot, self.topic_state, self.sidecar_state)
            self._is_begun = True

    async def _write_snapshot(self) -> None:
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
