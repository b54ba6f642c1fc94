"""Appends to many ledgers with a batch of records: one statement, which is one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from txnframework.errors import LedgerSealed, OutcomeUnknown, SequenceStored, TxnFrameworkError, Unavailable
from txnframework.model import Append, Batch, JointAppend, JointAppended, LedgerAppend, Position, Put, PutSequential
from txnframework_sql._options import LedgerOptions
from txnframework_sql.postgresql._append_columns import AppendCall, LedgerGroup, PendingCall, SharedAppend
from txnframework_sql.postgresql._executor import PostgresqlExecutor
from txnframework_sql.postgresql._payloads import BYTES_MAX, PAYLOADS_MAX, payloads
from txnframework_sql.postgresql._record_writes import BatchGroup, Step, require_storable
from txnframework_sql.postgresql._schema import APPEND_JOINTLY
from txnframework_sql.steps import ledgers
from txnframework_sql.steps.appends import is_full, newest_copy
from txnframework_sql.steps.joint_appends import ledger_of
from txnframework_sql.steps.ledgers import LedgerRef
from txnframework_sql.steps.statements import Change, LedgerChange, RecordChange, Steps, partition_of

_ATTEMPTS_MAX = 10
# The columns of apply_batches before its channel.
_RECORD_COLUMNS = 11


class JointAppends:
    """The appends of one store that are one step with records; each is a statement of its own."""

    def __init__(self, executor: PostgresqlExecutor, options: LedgerOptions, forget_every: int) -> None:
        self._executor = executor
        self._pool = executor.pool
        self._options = options
        self._forget_every = forget_every
        self._slots = asyncio.Semaphore(options.queue_max)

    async def append(self, request: JointAppend, now_ms: int) -> JointAppended:
        """Append entries and apply a checked batch, all or nothing; see IColocatedLedgerStore."""
        self._executor.require_open()
        steps = (*request.batch.checks, *request.batch.puts, *request.batch.deletes)
        require_storable(steps, self._executor.shown_url)
        for one in request.appends:
            _require_above(ledger_of(one.ledger), one.entries, {})
        async with self._slots:
            for _ in range(_ATTEMPTS_MAX):
                self._executor.require_open()
                done = await self._send(request, steps, now_ms)
                if done is not None:
                    return done
                await self._executor.write(lambda: self._find_refusal(request.appends))
        raise Unavailable(f"{self._executor.shown_url}: the ledgers of a step are filled by other writers; try again")

    async def _send(self, request: JointAppend, steps: Sequence[Step], now_ms: int) -> JointAppended | None:
        """Send the statement; None: a ledger has refused it, and nothing was written."""
        group = BatchGroup([tuple(steps)] if steps else [])
        records = group.columns(self._pool.channel)[:_RECORD_COLUMNS]
        shared = SharedAppend([_group(ledger_of(one.ledger), one.entries, now_ms) for one in request.appends])
        columns, (*others, _) = shared.columns()
        changes: tuple[Change, ...] = tuple(LedgerChange(ledger_of(one.ledger).id) for one in request.appends)
        options = self._options
        # An empty ledger takes any request, and is full then.
        entries_max = max(options.ledger_entries_max, 1 + max(columns[2], default=0))
        bytes_max = max(options.ledger_bytes_max, 1 + max(columns[3], default=0))
        arguments = (
            *records,
            *columns[:2],
            now_ms,
            *(entries_max, bytes_max, options.deduplication_window_sequences, self._forget_every),
            *columns[2:],
            *others,
            *(self._pool.channel, payloads(changes), BYTES_MAX, PAYLOADS_MAX),
        )
        try:
            async with self._pool.append_slots:
                rows = await self._pool.run(lambda connection: connection.write(APPEND_JOINTLY.call, *arguments))
        except OutcomeUnknown:
            self._executor.changed((*changes, *_changes_of(request.batch)))
            raise
        ledger_ids, entry_ids = rows[-1][4:]
        if rows[-1][0] is None and 0 in ledger_ids:
            return None
        answers, changed = group.answers(tuple(row[:4]) for row in rows if row[0] is not None)
        written = answers[0] if answers else ()
        if isinstance(written, TxnFrameworkError):
            raise written
        self._executor.changed((*changes, *changed))
        positions = [
            tuple(Position(ledger_id, entry_id + number) for number in range(len(one.entries)))
            for one, ledger_id, entry_id in zip(request.appends, ledger_ids, entry_ids, strict=True)
        ]
        return JointAppended(tuple(positions), written)

    def _find_refusal(self, appends: Sequence[LedgerAppend]) -> Steps[None]:
        """
        Raise why a ledger refuses its entries; roll each that is full, so that the next attempt finds it empty.

        A step that rolled a ledger and is then refused, or is lost in a crash, leaves an empty ledger behind.
        """
        for one in sorted(appends, key=lambda append: ledger_of(append.ledger).id):
            managed = ledger_of(one.ledger)
            end = yield from ledgers.locked_end_of(managed)
            if end.is_sealed:
                raise LedgerSealed(managed.name)
            highest = {}
            for producer in {entry.sequence.producer for entry in one.entries if entry.sequence is not None}:
                highest[producer] = (yield from newest_copy(managed.id, producer))[0]
            _require_above(managed, one.entries, highest)
            size = sum(len(entry.data) for entry in one.entries)
            if is_full(end.entries + len(one.entries), end.bytes + size, self._options):
                yield from ledgers.roll(managed)


def _group(managed: LedgerRef, entries: tuple[Append, ...], now_ms: int) -> LedgerGroup:
    call = AppendCall(entries, None, now_ms)
    return LedgerGroup(managed, [PendingCall(call, asyncio.get_running_loop().create_future())])


def _require_above(managed: LedgerRef, entries: Sequence[Append], highest: dict[str, int]) -> None:
    """Raise SequenceStored for a sequence that is not above its producer's ``highest`` one; update ``highest``."""
    for sequence in (entry.sequence for entry in entries if entry.sequence is not None):
        if sequence.first <= highest.get(sequence.producer, sequence.first - 1):
            raise SequenceStored(managed.name, sequence.producer, sequence.last)
        highest[sequence.producer] = sequence.last


def _changes_of(batch: Batch) -> list[Change]:
    """Return the changes of a batch whose outcome is unknown; the earlier index entries of its records are too."""
    return [
        RecordChange(step.key.path, partition_of(step.key), frozenset(step.indexes if isinstance(step, Put) else ()))
        for step in (*batch.puts, *batch.deletes)
        if not isinstance(step, PutSequential)
    ]
