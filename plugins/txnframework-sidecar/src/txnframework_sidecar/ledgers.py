"""A topic and its sidecar, as one process knows them."""

from __future__ import annotations

import asyncio

from txnframework.errors import LedgerNotFound
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import Position, Tail
from txnframework.model.paths import escape
from txnframework.plugin import AbortRetention
from txnframework_sidecar.following import Following
from txnframework_sidecar.model.index import TransactionIndex
from txnframework_sidecar.model.markers import Note, Written, read_sidecar_entry, read_topic_entry
from txnframework_sidecar.model.stream import Stream
from txnframework_sidecar.options import SidecarOptions


def sidecar_name(segment: str) -> str:
    """Return the name of a topic's sidecar: no topic can have such a name."""
    return f"sidecar:{escape(segment)}"


def compacted_name(segment: str) -> str:
    """Return the name of the ledgers that hold what was compacted of a topic."""
    return f"sidecar-compacted:{escape(segment)}"


class TopicLedgers:
    """
    Reads both to their ends, each when it is needed: reading a topic needs its own ledger only.

    The sidecar is made with the first transaction that writes; until then, a process looks for it whenever it needs it.
    """

    def __init__(
        self,
        topic: IManagedLedger,
        ledgers: ILedgerStore,
        segment: str,
        retention: AbortRetention,
        bounds: SidecarOptions,
    ) -> None:
        self.topic = topic
        self.stream = Stream()
        self.index = TransactionIndex(bounds)
        self._store = ledgers
        self._name = sidecar_name(segment)
        self._retention = retention
        self._sidecar: IManagedLedger | None = None
        self._opening = asyncio.Lock()
        self._trimmed_ms: int | None = None
        self._topic_following = Following(self.stream, read_topic_entry, self.stream.apply, self.stream.without)
        self._sidecar_following = Following(self.index, read_sidecar_entry, self._apply_sidecar, self.sidecar_trimmed)

    async def read_topic(self) -> Tail:
        """Let ``stream`` be what every entry says that was confirmed before this was called; return the tail then."""
        return await self._topic_following.catch_up(self.topic)

    async def read_sidecar(self) -> Tail | None:
        """Let ``index`` be what every entry of the sidecar says that was confirmed before; None: there is none."""
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
        """Let the sidecar go."""
        if self._sidecar is not None:
            await self._sidecar.close()

    def _apply_sidecar(self, found: Written | Note, position: Position) -> None:
        self.index.apply(found, position)
        if isinstance(found, Note):
            self.stream.noted(found)
