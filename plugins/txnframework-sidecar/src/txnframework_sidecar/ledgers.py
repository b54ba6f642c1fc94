"""A topic and its sidecar, as one process knows them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from txnframework.errors import LedgerNotFound, StoreMismatch, TxnFrameworkError
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import Position, Tail
from txnframework.plugin import AbortRetention
from txnframework_legacy.beside import SIDECAR, beside
from txnframework_sidecar.following import Following
from txnframework_sidecar.model.index import TransactionIndex
from txnframework_sidecar.model.markers import Note, Written, read_sidecar_entry, read_topic_entry
from txnframework_sidecar.model.stream import Stream
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.snapshots import Snapshots, restore, snapshot_of


@dataclass(frozen=True, slots=True)
class Names:
    """What stands beside one topic is called."""

    sidecar: str
    compacted: str
    snapshots: str


def names_of(segment: str, life: int) -> Names:
    """Return the names of what stands beside a topic, in its ``life``; it goes with the topic."""
    return Names(
        beside(SIDECAR, segment, life),
        beside(SIDECAR, segment, life, "compacted"),
        beside(SIDECAR, segment, life, "snapshots"),
    )


class TopicLedgers:
    """
    Reads both to their ends, each when it is needed: reading a topic needs its own ledger only.

    The sidecar is made with the first transaction that writes; until then, a process looks for it whenever it needs it.
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
        """Let ``stream`` be what every entry says that was confirmed before this was called; return the tail then."""
        await self._begin()
        tail = await self._topic_following.catch_up(self.topic)
        await self._write_down()
        return tail

    async def read_sidecar(self) -> Tail | None:
        """Let ``index`` be what every entry of the sidecar says that was confirmed before; None: there is none."""
        await self._begin()
        sidecar = await self.find_sidecar()
        return None if sidecar is None else await self._sidecar_following.catch_up(sidecar)

    async def find_sidecar(self) -> IManagedLedger | None:
        """Return the sidecar; None: no transaction has written yet."""
        if self._sidecar is None:
            async with self._opening:
                try:
                    self._sidecar = self._sidecar or await self._store.open(self._name)
                except LedgerNotFound:
                    return None
        return self._sidecar

    async def make_sidecar(self) -> IManagedLedger:
        """
        Return the sidecar, made if there was none.

        :raises LedgerNotFound: the topic was deleted.
        """
        found = await self.find_sidecar()
        if found is None:
            async with self._opening:
                made = self._sidecar or await self._store.create(self._name)
                # Whoever deletes a topic removes its ledger first and its sidecar then: if the topic is still there,
                # that is yet to come. If it is not, nobody may ever remove this one, and nothing is written to it.
                await self.topic.tail()
                self._sidecar = found = made
        return found

    def sidecar_trimmed(self, first_ledger_id: int) -> None:
        """Forget what stands in front of a ledger, after the time in which somebody may still judge entries of it."""
        now_ms = self._retention.now_ms()
        since_ms = self._trimmed_ms if self._trimmed_ms is not None else now_ms
        due = self._retention.is_over(since_ms)
        self._trimmed_ms = None if due else since_ms
        self.index.without(first_ledger_id, lambda: due)

    async def close(self) -> None:
        """Let what stands beside the topic go."""
        await self._snapshots.close()
        if self._sidecar is not None:
            await self._sidecar.close()

    async def _begin(self) -> None:
        """Begin with what was written down last, by whichever process."""
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
        """Write down what was found, where it is much; killed before that, more is read again."""
        read = self._topic_following.entries + self._sidecar_following.entries
        if read - self._written_at < self._options.snapshot_entries:
            return
        self._written_at = read
        with suppress(TxnFrameworkError):  # the one before is good as well
            await self.read_sidecar()
            await self._snapshots.write(snapshot_of(self.stream, self.index))

    def _apply_sidecar(self, found: Written | Note, position: Position) -> None:
        self.index.apply(found, position)
        if isinstance(found, Note):
            self.stream.noted(found)
