"""Writing a compacted ledger."""

from __future__ import annotations

from collections.abc import Iterable

from txnframework.interfaces import IManagedLedger
from txnframework.model.ledger import Append

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
