"""Consume, transform, produce, and keep rows: every invoice is a message and a row of the application."""

from __future__ import annotations

from txnframework.client import Transaction
from txnframework.errors import InvalidInput
from txnframework_memory import MemoryConnection
from txnframework_simulation import history
from txnframework_simulation.checkers import Violation
from txnframework_simulation.history import DrainRows, History, RowsFound
from txnframework_simulation.workloads.chain import ARROW, INVOICES, Chain, ChainOptions, Clerk
from txnframework_simulation.workloads.oracles import drained, sends_of
from txnframework_simulation.workloads.recorded_client import RecordedClient, RecordedProducer
from txnframework_simulation.workloads.workload import ActorContext

TABLE = "invoices"
INVARIANT = "every invoice is a message and a row"


class OwnRows(Chain):
    """
    The chain, with a row of the application for every invoice, which commits with the transaction.

    In the end the invoices in the topic are exactly those in the table.
    """

    def clerk(self, context: ActorContext) -> Clerk:
        """Return one actor."""
        return Bookkeeper(context, self.options)

    async def finish(self, context: ActorContext) -> None:
        """Read the rows; no transaction is open any more."""
        connection = connection_of(context.recorded)
        await context.recorded.record(
            DrainRows(TABLE),
            lambda: connection.scan(TABLE),
            lambda rows: RowsFound({key: value.decode() for key, value in rows.items()}),
        )
        await super().finish(context)

    def violations(self, history: History) -> list[Violation]:
        """Compare the rows with the messages, and the chain with itself."""
        return [*super().violations(history), *_differences(history)]


class Bookkeeper(Clerk):
    """An actor that writes a row for each invoice."""

    def __init__(self, context: ActorContext, options: ChainOptions) -> None:
        super().__init__(context, options)
        self._connection: MemoryConnection | None = None

    async def begin_billing(self, timeout_ms: int) -> Transaction:
        """Begin the transaction of some invoices, with a new connection."""
        if self._connection is not None:
            await self._connection.close()
        self._connection = connection_of(self._recorded)
        return await self._recorded.begin(timeout_ms=timeout_ms, commit_with=self._connection)

    async def write_invoice(self, invoice: str, invoices: RecordedProducer, txn: Transaction) -> None:
        """Write one invoice as a row and as a message."""
        assert self._connection is not None, "it was made when the transaction began"
        await self._connection.put(TABLE, invoice, invoice.partition(ARROW)[0].encode())
        await super().write_invoice(invoice, invoices, txn)


def connection_of(recorded: RecordedClient) -> MemoryConnection:
    """
    Return a new connection to the rows beside the metadata store of a client.

    :raises InvalidInput: the store is not the one in memory.
    """
    connect = getattr(recorded.client.host.metadata, "connect", None)
    if connect is None:
        raise InvalidInput("the workload own_rows needs the metadata store in memory")
    made: MemoryConnection = connect()
    return made


def _differences(history: History) -> list[Violation]:
    invoices, rows = drained(history, INVOICES), _rows(history)
    if invoices is None or rows is None:
        return []
    sent = {value for value in invoices if ARROW in value}
    sentences = [(value, f"invoice {value} is a message and no row") for value in sorted(sent - rows)]
    sentences += [(value, f"invoice {value} is a row and no message") for value in sorted(rows - sent)]
    return [Violation(INVARIANT, sentence, sends_of(history, value)) for value, sentence in sentences]


def _rows(found: History) -> set[str] | None:
    for call in reversed(found.calls()):
        if call.kind is history.EventKind.OK and isinstance(call.reply, RowsFound):
            return set(call.reply.rows)
    return None
