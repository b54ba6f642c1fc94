"""Application records: they bind a transaction to a batch of an application, across restarts of the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from txnframework.environment import Environment
from txnframework.errors import Closed, OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model.ids import TxnID
from txnframework.model.metadata import Expect, Expected, Put
from txnframework.model.paths import application_key
from txnframework.model.records import (
    ApplicationOperation,
    ApplicationRecord,
    CommittedBatchDocument,
    decode,
    encode,
)
from txnframework.model.transactions import Application, BatchID, Begin, SourceRange, State, Transaction
from txnframework_metadata.coordinator import application_record as pure
from txnframework_metadata.options import CoordinatorOptions
from txnframework_metadata.records.headers import abort_open, read_header
from txnframework_metadata.records.operations import forget, put_operations, require_open, scan_operations, withdraw
from txnframework_metadata.records.views import StoredOperation


class Applications:
    """
    The records of all applications, each changed by compare-and-set only.

    The order of writes is the protocol: the header, its operation of kind app, the application's record that names the
    transaction, then a check that the transaction is still open. A crash in between leaves a transaction that no record
    names; it times out. The operation carries the outcome into the record. The header is kept until then, because
    without the header the outcome is unknown.
    """

    def __init__(
        self,
        store: IMetadataStore,
        environment: Environment,
        options: CoordinatorOptions,
        begin: Callable[[Begin], Awaitable[Transaction]],
    ) -> None:
        self._store = store
        self._environment = environment
        self._options = options
        self._begin = begin
        self._bounds = pure.Bounds(options.past_runs_max, options.committed_batches_max)

    async def application(self, name: str) -> Application | None:
        """Return the application's state, including the outcome of an ended transaction that is not settled yet."""
        for _ in range(self._options.attempts_max):
            record, version = await self._load(name)
            if record is None:
                return None
            if record.txn is None:
                return pure.application_of(name, record)
            header = await read_header(self._store, TxnID.parse(record.txn))
            included = record if header is None else await self._with_outcome(record, header.transaction)
            # If the transaction was settled between the reads, some operations may be gone; the record then changed
            # before that.
            _, again = await self._load(name)
            if again == version:
                return pure.application_of(name, included)
        raise Unavailable(f"the record of application {name} changes too often to be read")

    async def claim(self, name: str, run: str) -> Application:
        """Make ``run`` the current run; the open transaction of the previous run has ended on return."""
        return await self._claim(name, run, None)

    async def _claim(self, name: str, run: str, follows: str | None) -> Application:
        """Claim the application for a run; if ``follows`` is given, only from that run."""
        for _ in range(self._options.attempts_max):
            record, version = await self._load(name)
            if record is None:
                record, expected = ApplicationRecord(run=run), _expected(None)
            else:
                pure.require_current(record, name, run)
                if record.run == run:
                    return pure.application_of(name, record)
                pure.require_followed(record, name, follows)
                # End it before the record changes, so that a transaction named by a record always belongs to the
                # record's run.
                record = pure.claimed(await self._with_ended(record), run, self._bounds)
                expected = _expected(version)
            if await self._put(name, record, expected):
                return pure.application_of(name, record)
        raise Unavailable(f"application {name} could not be claimed: its record changes too often")

    async def begin_batch(self, batch: BatchID, timeout_ms: int) -> Transaction:
        """
        Return the one open transaction of a batch; one of several concurrent callers begins it, and the others find it.

        The first caller of a run claims the application for it, since no earlier step announces a run. Versions do not
        show that a run is older: a newer run may also go back to an earlier batch.
        """
        for _ in range(self._options.attempts_max):
            record, version = await self._load(batch.application)
            if record is None or record.run != batch.run:
                await self._claim(batch.application, batch.run, batch.follows)
                continue
            pure.require_not_older(record, batch)
            current = await self._open_transaction(record)
            if current is not None and (record.query, record.version) == (batch.query, batch.version):
                return current
            carried = await self._with_ended(record)
            began = await self._begin_and_name(carried, _expected(version), batch, timeout_ms)
            if began is not None:
                return began
        raise Unavailable(f"batch {batch.version} of application {batch.application} could not be begun")

    async def finish_batch(self, batch: BatchID, txn_id: TxnID, ranges: tuple[SourceRange, ...]) -> None:
        """Record in the transaction the ranges that the batch consumed; a call with other ranges replaces them."""
        header = await require_open(self._store, txn_id)
        document = pure.operation_of_batch(batch, ranges)
        before = [
            operation
            for operation in await scan_operations(self._store, txn_id, self._options.page_records)
            if isinstance(operation.document, ApplicationOperation) and operation.document.ranges is not None
        ]
        if any(operation.document == document for operation in before):
            return
        await put_operations(self._store, header, [document], self._options.page_records)
        await forget(self._store, before)

    async def settle(self, ended: Transaction, operations: Sequence[StoredOperation]) -> None:
        """Store a transaction's outcome in the application's record, then remove its app operations."""
        mine = [operation for operation in operations if isinstance(operation.document, ApplicationOperation)]
        if not mine:
            return
        found = pure.batch_of(ended, mine)
        if found is not None:
            await self._record_outcome(found[0], ended.txn_id, found[1])
        await forget(self._store, mine)

    # -- steps ----------------------------------------------------------------------------------------

    async def _begin_and_name(
        self, record: ApplicationRecord, expected: Expected, batch: BatchID, timeout_ms: int
    ) -> Transaction | None:
        """
        Begin a transaction and name it in the record.

        If another process changed the record first, the transaction is aborted, and None is returned.
        """
        began = await self._begin(Begin(timeout_ms))
        header = await require_open(self._store, began.txn_id)
        operation = pure.operation_of_batch(batch, None)
        stored = await put_operations(self._store, header, [operation], self._options.page_records)
        named = pure.begun(record, batch, began.txn_id)
        if not await self._put(batch.application, named, expected):
            await self._abort_unnamed(began, stored)
            return None
        # A newer run may have aborted it as soon as the record named it. The next round then finds that run's claim.
        again = await read_header(self._store, began.txn_id)
        if again is None or again.transaction.state is not State.OPEN:
            return None
        return again.transaction

    async def _abort_unnamed(self, began: Transaction, operations: Sequence[StoredOperation]) -> None:
        """
        Abort a transaction that lost the race for the record.

        If this fails, the sweeps repeat it.
        """
        try:
            await abort_open(self._store, self._environment, began, self._options.attempts_max)
            await withdraw(self._store, operations)
        except (Unavailable, OutcomeUnknown):
            return

    async def _open_transaction(self, record: ApplicationRecord) -> Transaction | None:
        """Return the transaction that the record names, if it is open."""
        if record.txn is None:
            return None
        header = await read_header(self._store, TxnID.parse(record.txn))
        if header is None or header.transaction.state is not State.OPEN:
            return None
        return header.transaction

    async def _with_ended(self, record: ApplicationRecord) -> ApplicationRecord:
        """End the transaction that the record names, if it is open, and return the record with its outcome."""
        if record.txn is None:
            return record
        header = await read_header(self._store, TxnID.parse(record.txn))
        ended = None if header is None else header.transaction
        if ended is not None and ended.state is State.OPEN:
            ended = await abort_open(self._store, self._environment, ended, self._options.attempts_max)
        # No header: it was aborted, or the stored record has the outcome and another version, so the compare-and-set
        # fails.
        return record if ended is None else await self._with_outcome(record, ended)

    async def _with_outcome(self, record: ApplicationRecord, ended: Transaction) -> ApplicationRecord:
        """Return the record with the batch that ``ended`` committed, read from its operations."""
        if ended.state is not State.COMMITTED:
            return record
        operations = await scan_operations(self._store, ended.txn_id, self._options.page_records)
        found = pure.batch_of(ended, operations)
        return pure.with_outcome(record, ended.txn_id, None if found is None else found[1], self._bounds)

    async def _record_outcome(self, name: str, txn_id: TxnID, batch: CommittedBatchDocument) -> None:
        """Write a committed batch into the record; it is durable on return."""
        for _ in range(self._options.attempts_max):
            record, version = await self._load(name)
            if record is None:
                return
            included = pure.with_outcome(record, txn_id, batch, self._bounds)
            if included is record or await self._put(name, included, _expected(version)):
                return
        raise Unavailable(f"the outcome of transaction {txn_id} could not be written to application {name}")

    async def _load(self, name: str) -> tuple[ApplicationRecord | None, int | None]:
        """Return an application's record and its version, or ``(None, None)``."""
        found = await self._store.get(application_key(name))
        return (None, None) if found is None else (decode(ApplicationRecord, found), found.version)

    async def _put(self, name: str, record: ApplicationRecord, expected: Expected) -> bool:
        """
        Write the record by compare-and-set; return False if it had changed.

        If the reply is lost, the record is read. A record is unique to its writer, since a run is claimed once and a
        transaction is named once. A stored record that is equal was therefore written by this call.
        """
        try:
            await self._store.put(Put(application_key(name), encode(record), expected))
        except VersionMismatch:
            return False
        except OutcomeUnknown as unknown:
            try:
                found, _ = await self._load(name)
            except (Unavailable, Closed) as error:
                # This error alone would claim that nothing was changed.
                raise OutcomeUnknown(f"the record of application {name} may have changed: {unknown}") from error
            return found == record
        return True


def _expected(version: int | None) -> Expected:
    return Expect.ABSENT if version is None else version
