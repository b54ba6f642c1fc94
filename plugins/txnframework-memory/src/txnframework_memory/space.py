"""A space: what the memory of a server would hold, and the clients that open it."""

from __future__ import annotations

from txnframework.environment import Environment
from txnframework.model import Batch, Delete, Record
from txnframework_memory._ledger_store import MemoryLedgerStore
from txnframework_memory._link import Pause, yield_once
from txnframework_memory._metadata_store import MemoryMetadataStore
from txnframework_memory._records import Records
from txnframework_memory._rows import Rows


class MemorySpace:
    """
    Records and ledgers that outlive the clients that open them.

    Opening again after a close is a restart, opening twice is two processes. Each opening is one client with a
    session of its own. Everything happens in the event loop of the caller, nothing in threads; there is no other
    order of events than the one that the loop and ``pause`` make, so a run can be repeated exactly.
    """

    def __init__(self, environment: Environment, identity: str | None = None) -> None:
        self.identity = identity or f"memory-{environment.random_bits(64):016x}"
        self.records = Records()
        self.rows = Rows(environment.now_ms)
        self._sessions = 0
        self._fencing = 0
        self._leases: dict[str, list[Record]] = {}

    async def open_metadata(self, pause: Pause = yield_once) -> MemoryMetadataStore:
        """Open a client of the records; it awaits ``pause`` before and after every step."""
        await pause()
        self._sessions += 1
        return MemoryMetadataStore(self, f"{self.identity}-{self._sessions}", pause)

    async def open_ledgers(self, identity: str | None = None, pause: Pause = yield_once) -> MemoryLedgerStore:
        """
        Open a client of the ledgers; the first opening decides which metadata store they belong to.

        :raises StoreMismatch: they belong to another identity.
        """
        await pause()
        self.rows.belong_to(identity or self.rows.identity or self.identity)
        return MemoryLedgerStore(self.rows, pause)

    def take_identity(self, identity: str) -> None:
        """Be known to later openings under another identity."""
        self.identity = identity

    def next_fencing(self) -> int:
        """Return a number higher than that of every earlier holder of any lease."""
        self._fencing += 1
        return self._fencing

    def remember_lease(self, session: str, record: Record) -> None:
        """Bind a lease's record to the life of a session."""
        live = [lease for lease in self._leases.get(session, ()) if self._stands(lease)]
        self._leases[session] = [*live, record]

    def end_session(self, session: str) -> None:
        """Remove the leases that a session still holds."""
        for lease in self._leases.pop(session, ()):
            if self._stands(lease):
                self.records.apply(Batch(deletes=(Delete(lease.key, lease.version),)))

    def _stands(self, lease: Record) -> bool:
        record = self.records.get(lease.key)
        return record is not None and record.version == lease.version
