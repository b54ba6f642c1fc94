"""A space: the memory of a simulated server, and the clients that open it."""

from __future__ import annotations

from txnframework_memory._ledger_store import MemoryLedgerStore
from txnframework_memory._link import Pause, yield_once
from txnframework_memory._metadata_store import MemoryMetadataStore
from txnframework_memory._server import Server


class MemorySpace(Server):
    """
    Records and ledgers that outlive the clients that open them.

    Opening a space again after closing it simulates a restart; opening it twice simulates two processes. Each opening
    is one client with its own session. All work runs in the caller's event loop, without threads. Only the loop and
    ``pause`` determine the order of events, so a run can be repeated exactly.
    """

    async def open_metadata(self, pause: Pause = yield_once) -> MemoryMetadataStore:
        """Open a client of the records; the client awaits ``pause`` before and after every step."""
        await pause()
        return MemoryMetadataStore(self, self.next_session(), pause)

    async def open_ledgers(self, identity: str | None = None, pause: Pause = yield_once) -> MemoryLedgerStore:
        """
        Open a client of the ledgers; the first opening decides which metadata store they belong to.

        :raises StoreMismatch: the ledgers belong to another identity.
        """
        await pause()
        self.rows.belong_to(identity or self.rows.identity or self.identity)
        return MemoryLedgerStore(self, pause)
