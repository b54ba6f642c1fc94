"""A space: the memory of a server, and the clients that open it."""

from __future__ import annotations

from txnframework_memory._ledger_store import MemoryLedgerStore
from txnframework_memory._link import Pause, yield_once
from txnframework_memory._metadata_store import MemoryMetadataStore
from txnframework_memory._server import Server


class MemorySpace(Server):
    """
    Records and ledgers that outlive the clients that open them.

    Opening again after a close is a restart, opening twice is two processes. Each opening is one client with a
    session of its own. Everything happens in the event loop of the caller, nothing in threads; there is no other
    order of events than the one that the loop and ``pause`` make, so a run can be repeated exactly.
    """

    async def open_metadata(self, pause: Pause = yield_once) -> MemoryMetadataStore:
        """Open a client of the records; it awaits ``pause`` before and after every step."""
        await pause()
        return MemoryMetadataStore(self, self.next_session(), pause)

    async def open_ledgers(self, identity: str | None = None, pause: Pause = yield_once) -> MemoryLedgerStore:
        """
        Open a client of the ledgers; the first opening decides which metadata store they belong to.

        :raises StoreMismatch: they belong to another identity.
        """
        await pause()
        self.rows.belong_to(identity or self.rows.identity or self.identity)
        return MemoryLedgerStore(self.rows, pause)
