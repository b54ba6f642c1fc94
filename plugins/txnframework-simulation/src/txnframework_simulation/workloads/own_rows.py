"""Consume, transform, produce, and keep rows: every invoice is a message and a row of the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from txnframework.client import Message, Transaction
from txnframework.errors import Conflict, InvalidInput
from txnframework_memory import MemoryConnection
from txnframework_simulation import history
from txnframework_simulation.checkers import Violation
from txnframework_simulation.history import DrainRows, History, RowsFound
from txnframework_simulation.workloads.chain import ARROW, Chain, ChainOptions, Clerk
from txnframework_simulation.workloads.oracles import drained, sends_of
from txnframework_simulation.workloads.recorded_client import RecordedClient, RecordedConsumer, RecordedProducer
from txnframework_simulation.workloads.workload import ActorContext

TABLE = "invoices"
INVARIANT = "every invoice is a message and a row"

BEGUN, SENT, ACKNOWLEDGED, WRITTEN, ENDED = "begun", "sent", "acknowledged", "written", "ended"
STEPS = (BEGUN, SENT, ACKNOWLEDGED, WRITTEN, ENDED)
"""The steps of a billing, in the order in which a step follows another; the COMMIT is between the last two."""


class RowsConnection(Protocol):
    """A connection of the application to its tables, in the database of the metadata store."""

    @property
    def given(self) -> object:
        """The object that a transaction commits with."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The errors of the driver, after which the transaction is rolled back."""

    async def put(self, table: str, key: str, value: bytes) -> None:
        """Insert a row in the open transaction."""

    async def scan(self, table: str) -> dict[str, bytes]:
        """Return the committed rows by key."""

    async def close(self) -> None:
        """Roll back and close."""


Connect = Callable[[RecordedClient], Awaitable[RowsConnection]]
"""Opens a connection for a client; the tables exist."""

AtStep = Callable[[str], None]
"""Called at each step of a billing; it may end the process."""


class RowsRefused(Conflict):
    """The application's driver refused a statement; the transaction is rolled back."""


class OwnRowsOptions(ChainOptions, frozen=True, kw_only=True):
    """
    The options of the chain with rows.

    ``rows_last``: rows are written after all sends and acknowledgments, as a store with one writer needs it.
    """

    rows_last: bool = False


async def connect_in_memory(recorded: RecordedClient) -> RowsConnection:
    """
    Open a connection to the rows beside the metadata store of a client.

    :raises InvalidInput: the store is not the one in memory.
    """
    connect = getattr(recorded.client.host.metadata, "connect", None)
    if connect is None:
        raise InvalidInput("the workload own_rows needs the metadata store in memory")
    return _InMemory(connect())


def _ignore_step(_: str) -> None:
    pass


class OwnRows(Chain):
    """
    The chain, with a row of the application for every invoice, which commits with the transaction.

    In the end the invoices in the topic are exactly those in the table.
    """

    options_type = OwnRowsOptions
    options: OwnRowsOptions

    def __init__(
        self, options: OwnRowsOptions, connect: Connect = connect_in_memory, at_step: AtStep = _ignore_step
    ) -> None:
        super().__init__(options)
        self._connect = connect
        self._at_step = at_step

    def clerk(self, context: ActorContext) -> Clerk:
        """Return one actor."""
        return Bookkeeper(context, self.options, self._connect, self._at_step)

    async def finish(self, context: ActorContext) -> None:
        """Read the rows; no transaction is open any more."""
        await self.drain_rows(context.recorded)
        await super().finish(context)

    async def drain_rows(self, recorded: RecordedClient) -> None:
        """Read the committed rows."""
        connection = await self._connect(recorded)
        try:
            await recorded.record(
                DrainRows(TABLE),
                lambda: connection.scan(TABLE),
                lambda rows: RowsFound({key: value.decode() for key, value in rows.items()}),
            )
        finally:
            await connection.close()

    def violations(self, history: History) -> list[Violation]:
        """Compare the rows with the messages, and the chain with itself."""
        return [*super().violations(history), *_differences(history, self.options.invoices_topic)]


class Bookkeeper(Clerk):
    """An actor that writes a row for each invoice."""

    def __init__(self, context: ActorContext, options: OwnRowsOptions, connect: Connect, at_step: AtStep) -> None:
        super().__init__(context, options)
        self._rows_last = options.rows_last
        self._connect = connect
        self._at_step = at_step
        self._connection: RowsConnection | None = None

    @property
    def _open_connection(self) -> RowsConnection:
        assert self._connection is not None, "it was opened when the transaction began"
        return self._connection

    async def begin_billing(self, timeout_ms: int) -> Transaction:
        """Begin the transaction of some invoices, with a new connection."""
        await self._let_go()
        self._connection = await self._connect(self._recorded)
        txn = await self._recorded.begin(timeout_ms=timeout_ms, commit_with=self._connection.given)
        self._at_step(BEGUN)
        return txn

    async def transact(
        self,
        sends: Sequence[tuple[RecordedProducer, str, str]],
        acks: Sequence[tuple[RecordedConsumer, tuple[Message, ...]]],
    ) -> None:
        """Write rows with a new connection, and let one call commit them with the invoices."""
        await self._let_go()
        connection = self._connection = await self._connect(self._recorded)
        for _, invoice, _ in sends:
            await self._write_row(invoice)
        try:
            await self._recorded.transact(sends, acks, commit_with=connection.given)
        except connection.errors as error:
            raise RowsRefused(str(error)) from error

    async def transform(
        self, received: tuple[Message, ...], consumer: RecordedConsumer, invoices: RecordedProducer, txn: Transaction
    ) -> None:
        """Write rows and invoices, and acknowledge the orders."""
        written = self.invoices_of(received)
        for invoice in written:
            if not self._rows_last:
                await self._write_row(invoice)
            await self.write_invoice(invoice, invoices, txn)
        self._at_step(SENT)
        await consumer.ack(*received, txn=txn)
        self._at_step(ACKNOWLEDGED)
        for invoice in written if self._rows_last else ():
            await self._write_row(invoice)
        self._at_step(WRITTEN)

    async def end_billing(self, txn: Transaction) -> None:
        """End the transaction; a store with one writer cannot write until the connection is closed."""
        try:
            await super().end_billing(txn)
        except self._open_connection.errors as error:
            raise RowsRefused(str(error)) from error
        finally:
            if self._rows_last:
                await self._let_go()
        self._at_step(ENDED)

    async def _write_row(self, invoice: str) -> None:
        connection = self._open_connection
        try:
            await connection.put(TABLE, invoice, invoice.partition(ARROW)[0].encode())
        except connection.errors as error:
            raise RowsRefused(str(error)) from error

    async def _let_go(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class _InMemory:
    """A connection to the tables beside the metadata store in memory."""

    errors: tuple[type[Exception], ...] = ()

    def __init__(self, connection: MemoryConnection) -> None:
        self.given = connection
        self.put = connection.put
        self.scan = connection.scan
        self.close = connection.close


def _differences(history: History, topic: str) -> list[Violation]:
    invoices, rows = drained(history, topic), _rows(history)
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
