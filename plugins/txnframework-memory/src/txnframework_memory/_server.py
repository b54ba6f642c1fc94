"""The memory of a simulated server, shared by all its clients."""

from __future__ import annotations

from txnframework.environment import Environment
from txnframework.model import Delete, Record, Step
from txnframework_memory._database import MemoryDatabase
from txnframework_memory._ledgers import LedgerCollection
from txnframework_memory._records import Locks, Records
from txnframework_memory._remembered import Remembered


class Server:
    """Records, ledgers, the leases of each session, and the tables of the application."""

    def __init__(self, environment: Environment, identity: str | None = None) -> None:
        self.identity = identity or f"memory-{environment.random_bits(64):016x}"
        self.records = Records()
        self.locks = Locks()
        self.database = MemoryDatabase(self.records, self.locks)
        self.rows = LedgerCollection(environment.now_ms)
        self._sessions = 0
        self._fencing = 0
        self._leases: dict[str, Remembered[Record]] = {}

    def take_identity(self, identity: str) -> None:
        """Use another identity for later openings."""
        self.identity = identity

    def next_session(self) -> str:
        """Return the name of a new session."""
        self._sessions += 1
        return f"{self.identity}-{self._sessions}"

    def next_fencing(self) -> int:
        """Return a fencing number that is higher than those of all earlier lease holders."""
        self._fencing += 1
        return self._fencing

    def remember_lease(self, session: str, record: Record) -> None:
        """Bind a lease's record to a session."""
        self._leases.setdefault(session, Remembered(self._stands)).add(record)

    def end_session(self, session: str) -> None:
        """Remove the leases that a session still holds."""
        for lease in self._leases.pop(session, ()):
            if self._stands(lease):
                self.records.apply(Step(deletes=(Delete(lease.key, lease.version),)))

    def _stands(self, lease: Record) -> bool:
        record = self.records.get(lease.key)
        return record is not None and record.version == lease.version
