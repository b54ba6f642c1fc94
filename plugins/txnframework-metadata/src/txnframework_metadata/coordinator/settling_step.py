"""
Settling by what this process wrote: cursors move and operations are removed in one step of several partitions.

These are the steps that otherwise follow each other, with nothing between them, each under its own condition: the
version of the cursor, and that of each operation. If one of them is not met, such as after another process moved the
cursor, nothing is written, and the usual settling follows.

* Only operations of branches that count are included. Those of other branches need abort records first, and those that
  other processes wrote are not known here.
* Cumulative acknowledgments, and those of a query's batch, are settled by the rules that they have elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from txnframework.errors import TxnFrameworkError
from txnframework.model.acks import Ack
from txnframework.model.cursor import CursorMove
from txnframework.model.ids import Branch, TxnID
from txnframework.model.metadata import Delete, Put, Record
from txnframework.model.records import AckOperation, WriteOperation
from txnframework.model.steps import Step
from txnframework_metadata.records.own_operations import AckSettler, Written
from txnframework_metadata.records.shared_operations import SharedOperations
from txnframework_metadata.records.views import StoredOperation


@dataclass(frozen=True, slots=True)
class OwnOutcome:
    """A committed transaction: the branches that count, and what this process wrote in it."""

    txn_id: TxnID
    branches: Collection[int]
    written: Written


@dataclass(slots=True)
class _Move:
    """A planned move of a cursor, with the operations that it settles."""

    place: AckSettler
    planned: CursorMove
    operations: Sequence[StoredOperation]


class SettlingStep:
    """One step that settles transactions, as far as their operations are known; ``finish`` ends it in any case."""

    def __init__(self, shared: SharedOperations) -> None:
        self._shared = shared
        self._writes: dict[TxnID, list[StoredOperation]] = {}
        self._moves: list[_Move] = []

    async def plan(self, outcomes: Iterable[OwnOutcome]) -> None:
        """Add what can be settled; each cursor moves once, by the acknowledgments of all transactions."""
        acks: dict[tuple[str, str], list[StoredOperation]] = {}
        places: dict[tuple[str, str], AckSettler] = {}
        for one in outcomes:
            for operation in one.written.operations.values():
                document = operation.document
                if document.branch not in one.branches:
                    continue
                if isinstance(document, WriteOperation):
                    if self._shared.is_open_here(document.segment):
                        self._writes.setdefault(one.txn_id, []).append(operation)
                elif isinstance(document, AckOperation):
                    name = (document.segment, document.subscription)
                    acks.setdefault(name, []).append(operation)
                    places[name] = one.written.places[name]
        # In one order, so that two such steps never wait for each other's cursors.
        for name, operations in sorted(acks.items(), key=lambda one: one[0]):
            move = await _move(places[name], operations)
            if move is not None:
                self._moves.append(move)

    def step(self, *headers: Put) -> Step | None:
        """Return the step, with the headers of the transactions that it commits; None if it settles nothing."""
        settled = [one for some in self._writes.values() for one in some]
        settled += [one for move in self._moves for one in move.operations]
        if not settled:
            return None
        deletes = tuple(Delete(one.record.key, one.record.version) for one in settled)
        return Step(puts=(*headers, *(move.planned.put for move in self._moves)), deletes=deletes)

    async def finish(self, records: Sequence[Record] | None) -> None:
        """
        End the plans of the cursors, and tell those who hold what was settled.

        :param records: what the step wrote; None: nothing, or that is not known.
        """
        first = 0 if records is None else len(records) - len(self._moves)
        for number, move in enumerate(self._moves, first):
            await move.place.cursor.finish(move.planned, None if records is None else records[number])
        if records is None:
            return
        for move in self._moves:
            move.place.forget(move.operations)
        for txn_id, writes in self._writes.items():
            self._shared.tell_ended(txn_id, writes)


async def _move(place: AckSettler, operations: Sequence[StoredOperation]) -> _Move | None:
    """Plan the move of one cursor; None: its operations are settled later."""
    incarnations: set[int] = set()
    parts: dict[Branch, tuple[Ack, ...]] = {}
    for operation in operations:
        document = operation.document
        if not isinstance(document, AckOperation) or document.cumulative or document.processed is not None:
            return None
        incarnations.add(document.incarnation)
        parts[operation.branch] = (*parts.get(operation.branch, ()), *operation.acks)
    if len(incarnations) > 1:
        return None
    try:
        planned = await place.cursor.plan(incarnations.pop(), tuple(parts.items()))
    except TxnFrameworkError:
        return None  # the settling reports it
    return None if planned is None else _Move(place, planned, operations)
