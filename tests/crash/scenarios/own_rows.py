"""Transactions that commit together with rows of the application."""

from __future__ import annotations

from crash_scenario import BILLING, INVOICES, ORDERS, Scenario

from txnframework import Client, State
from txnframework_memory import MemoryConnection

TABLE = "invoices"


class _WithRows(Scenario):
    """A transaction with a message, an acknowledgment and a row; all three count, or none of them."""

    subscriptions = ((ORDERS, BILLING),)
    connection: MemoryConnection

    async def arrange(self, client: Client) -> None:
        await self.fill(ORDERS, b"0", b"1")
        self.consumer, self.received = await self.receive(client, ORDERS, 2)
        self.producer = await client.producer(INVOICES)
        self.connection = client.host.metadata.connect()  # type: ignore[attr-defined]
        self.txn = client.transaction(commit_with=self.connection)

    async def write(self) -> None:
        """Do the work of the transaction."""
        await self.connection.put(TABLE, "0", b"invoice")
        await self.story.send(self.producer, b"invoice", key=b"k", txn=self.txn)
        await self.story.ack(self.consumer, self.received[0], txn=self.txn)

    async def carry_on(self, client: Client, failed: bool) -> None:
        if failed:
            self.story.promise(self.txn.id, await client.outcome(self.txn.id))

    def taken_for_gone(self) -> None:
        self.connection.crash()  # a database ends the transaction of a suspended process

    def check(self) -> None:
        committed = any(state is State.COMMITTED for state, _ in self.story.decided.values())
        rows = self.world.space.database.rows
        assert rows == ({(TABLE, "0"): b"invoice"} if committed else {}), (
            f"committed: {committed}, and the rows: {rows}"
        )


class CommitWithRows(_WithRows):
    """The COMMIT of the database that decides all of it."""

    async def arrange(self, client: Client) -> None:
        await super().arrange(client)
        await self.txn.begin()
        await self.write()

    async def operate(self, client: Client) -> None:
        await self.story.commit(self.txn)


class AbortWithRows(CommitWithRows):
    """The rollback of the rows, and the abort."""

    async def operate(self, client: Client) -> None:
        await self.story.abort(self.txn)


class RowsInOnePiece(_WithRows):
    """The same in one ``async with``."""

    composed = True

    async def operate(self, client: Client) -> None:
        async with self.txn:
            await self.write()
        self.story.promise(self.txn.id, State.COMMITTED)

    async def carry_on(self, client: Client, failed: bool) -> None:
        if "not begun" not in repr(self.txn):
            await super().carry_on(client, failed)


SCENARIOS = (CommitWithRows, AbortWithRows, RowsInOnePiece)
