"""
Commits that settle the transaction in the same step of the store.

A small transaction usually has one write operation and one acknowledgment record, both written by the process that
commits. On an ICrossPartitionStore one batch then sets the header to COMMITTED, moves the cursor, and removes the two
records. These are the steps that otherwise follow each other, with nothing between them. So no process sees anything
that it could not see before: either the open transaction with its records, or one that was settled at once.

* Each step keeps its own condition: the header's version, the cursor's, and that of each operation. If one of them is
  not met, such as after another process moved the cursor, nothing is written. The commit is then the usual
  compare-and-set, and the settling follows it.
* Only operations of branches that count are included. Those of other branches need abort records first, and those that
  other processes wrote are not known here. The settling that follows every commit finds them.
* A commit by an operator sets the header only.
* Cumulative acknowledgments, and those of a query's batch, are settled later, by the rules that they have there.
* A lost reply is resolved as for any other commit, by the header: it is COMMITTED if and only if the batch was applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError, VersionMismatch
from txnframework.interfaces import ICrossPartitionStore, IMetadataStore
from txnframework.model.acks import Ack
from txnframework.model.cursor import CursorMove
from txnframework.model.metadata import Batch, Delete, Record
from txnframework.model.records import AckOperation, WriteOperation
from txnframework.model.transactions import Action, End, Transaction
from txnframework_metadata.records.headers import Header, final_put, transaction_of
from txnframework_metadata.records.own_operations import AckSettler, Written
from txnframework_metadata.records.shared_operations import SharedOperations
from txnframework_metadata.records.views import StoredOperation


@dataclass(slots=True)
class _Move:
    """A planned move of a cursor with the operations that it settles; ``written``: the record that it wrote."""

    place: AckSettler
    planned: CursorMove
    operations: Sequence[StoredOperation]
    written: Record | None = None


@dataclass(slots=True)
class _Plan:
    writes: list[StoredOperation] = field(default_factory=list)
    moves: list[_Move] = field(default_factory=list)


async def commit_settled(
    store: IMetadataStore,
    environment: Environment,
    request: End,
    header: Header,
    written: Written,
    shared: SharedOperations,
) -> Transaction | None:
    """
    Commit and settle in one step; return None if nothing was written, because a condition was not met.

    :param header: the header as this process wrote it. :param written: the operations as it wrote them.
    :raises OutcomeUnknown: all or nothing was written; the header shows which.
    """
    begun = header.transaction
    if request.action is not Action.COMMIT or request.operator or begun.co_commit:
        return None
    if begun.principal != request.principal:
        return None
    assert ICrossPartitionStore.providedBy(store)
    plan = _Plan()
    try:
        await _make(plan, request, written, shared)
        removed = [*plan.writes, *(one for move in plan.moves for one in move.operations)]
        if not removed:
            return None
        document, put = final_put(header, request, environment.now_ms())
        deletes = tuple(Delete(one.record.key, one.record.version) for one in removed)
        puts = (put, *(move.planned.put for move in plan.moves))
        try:
            records = await store.apply(Batch((), puts, deletes, across_partitions=True))
        except VersionMismatch:
            return None
        for move, record in zip(plan.moves, records[1:], strict=True):
            move.written = record
    finally:
        for move in plan.moves:
            await move.place.cursor.finish(move.planned, move.written)
    for move in plan.moves:
        move.place.forget(move.operations)
    shared.tell_ended(request.txn_id, plan.writes)
    return transaction_of(request.txn_id, document)


async def _make(plan: _Plan, request: End, written: Written, shared: SharedOperations) -> None:
    """Add to the plan what can be settled."""
    acks: dict[tuple[str, str], list[StoredOperation]] = {}
    for operation in written.operations.values():
        document = operation.document
        if document.branch not in request.branches:
            continue
        if isinstance(document, WriteOperation):
            if shared.is_open_here(document.segment):
                plan.writes.append(operation)
        elif isinstance(document, AckOperation):
            acks.setdefault((document.segment, document.subscription), []).append(operation)
    # In one order, so that two such commits never wait for each other's cursors.
    for name, operations in sorted(acks.items(), key=lambda one: one[0]):
        move = await _move(written.places[name], operations)
        if move is not None:
            plan.moves.append(move)


async def _move(place: AckSettler, operations: Sequence[StoredOperation]) -> _Move | None:
    """Plan the move of one cursor; None: its operations are settled later."""
    incarnations: set[int] = set()
    acks: list[Ack] = []
    for operation in operations:
        document = operation.document
        if not isinstance(document, AckOperation) or document.cumulative or document.processed is not None:
            return None
        incarnations.add(document.incarnation)
        acks += operation.acks
    if len(incarnations) > 1 or len({one.branch for one in operations}) > 1:
        return None
    try:
        planned = await place.cursor.plan(incarnations.pop(), ((operations[0].branch, tuple(acks)),))
    except TxnFrameworkError:
        return None  # the settling reports it
    return None if planned is None else _Move(place, planned, operations)
