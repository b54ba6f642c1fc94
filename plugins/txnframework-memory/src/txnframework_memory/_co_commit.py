"""The store's part of a transaction of a ``MemoryConnection``."""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from txnframework.errors import InvalidInput
from txnframework.interfaces import IDatabaseTransaction
from txnframework.model import Applied, Step
from txnframework_memory._database import MemoryConnection, MemoryDatabase, OpenTransaction


@implementer(IDatabaseTransaction)
class MemoryTransaction:
    """The open transaction of a connection, joined by the store."""

    def __init__(self, connection: MemoryConnection, joined: OpenTransaction) -> None:
        self._connection = connection
        self._joined = joined

    # Writers of different records do not wait for each other.
    store_waits: str | None = None

    async def step(self, step: Step, examine: Callable[[], Applied], apply: Callable[[Applied], object]) -> Applied:
        """Let a step be the last part of the transaction; see ``MemoryConnection.make_step``."""
        return await self._connection.make_step(self._joined, step, examine, apply)

    async def commit(self) -> None:
        """Commit the transaction."""
        if self._connection.open is not self._joined:
            raise InvalidInput("the application has ended the transaction of its connection; leave its end to 'txn'")
        await self._connection.commit()

    def leave(self) -> Callable[[], None]:
        """Lose the connection while the COMMIT is on its way; return what lets it arrive."""
        return self._connection.leave_commit()

    async def rollback(self) -> None:
        """Roll the transaction back, unless it has ended."""
        if self._connection.open is self._joined:
            await self._connection.rollback()


async def join(database: MemoryDatabase, connection: object) -> MemoryTransaction:
    """
    Join the open transaction of a connection, or begin one.

    :raises InvalidInput: it is no connection of this database.
    """
    if not isinstance(connection, MemoryConnection):
        raise InvalidInput(f"commit_with takes a MemoryConnection here, not a {type(connection).__name__}")
    if connection.database is not database:
        raise InvalidInput("commit_with takes a connection to the space of the metadata store; this is another space")
    if connection.open is None:
        await connection.begin()
    assert connection.open is not None, "it has begun"
    return MemoryTransaction(connection, connection.open)
