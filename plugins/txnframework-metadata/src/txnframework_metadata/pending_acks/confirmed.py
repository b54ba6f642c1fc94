"""Acknowledgments that this process has confirmed to its callers, and the records that may grow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from txnframework.model.ack_overlap import AckIndex
from txnframework.model.ids import Branch
from txnframework.model.records import AckOperation
from txnframework_metadata.records.views import StoredOperation

_Growing = tuple[Branch, int, bool]
"""Branch, incarnation, and whether the acknowledgments of the record are cumulative."""


class ConfirmedAcks:
    """
    A bounded map of records that passed their check for conflicts, each as last confirmed.

    A record does not show which of its acknowledgments were confirmed: a call may have been cancelled, or have failed
    without withdrawing its part. A forgotten record only costs another check, and another record for later
    acknowledgments.
    """

    def __init__(self, records_max: int, *, admitted_is_confirmed: bool) -> None:
        self._records_max = records_max
        # On a store without atomic batches a record is admitted after the check, so the record itself shows it.
        self._admitted_is_confirmed = admitted_is_confirmed
        self._records: OrderedDict[str, StoredOperation] = OrderedDict()
        self._in_part: set[str] = set()
        self._growing: dict[_Growing, StoredOperation] = {}

    def of(self, operation: StoredOperation) -> AckIndex | None:
        """Return the part of a record that is known to be confirmed, or None."""
        if self._admitted_is_confirmed:
            document = operation.document
            return operation.acks_by_entry if isinstance(document, AckOperation) and document.admitted else None
        known = self._records.get(operation.record.key.path)
        return None if known is None else known.acks_by_entry

    def in_doubt(self, operation: StoredOperation) -> bool:
        """Return whether part of a record may be unconfirmed."""
        if self._admitted_is_confirmed:
            return False  # a record that is not admitted has no effect
        path = operation.record.key.path
        known = self._records.get(path)
        return known is None or path in self._in_part or known.record.version != operation.record.version

    def take_growing(self, branch: Branch, incarnation: int, cumulative: bool) -> StoredOperation | None:
        """
        Return the record of a branch that may be extended, or None, and mark it as no longer extendable.

        Only ``note`` marks it extendable again. If the outcome of an extension is unknown, later acknowledgments get
        another record.
        """
        return self._growing.pop((branch, incarnation, cumulative), None)

    def note(self, operation: StoredOperation, *, may_grow: bool) -> None:
        """Remember a record of which everything is confirmed."""
        self._remember(operation)
        self._in_part.discard(operation.record.key.path)
        if may_grow and not self._admitted_is_confirmed:
            self._growing[_place(operation)] = operation

    def note_part(self, operation: StoredOperation) -> None:
        """Remember the confirmed part of a record that may hold more."""
        self._remember(operation)
        self._in_part.add(operation.record.key.path)

    def forget(self, operations: Iterable[StoredOperation]) -> None:
        """Forget the records of an ended transaction, which are not repeated."""
        for operation in operations:
            self._drop(operation.record.key.path)

    def _remember(self, operation: StoredOperation) -> None:
        """Remember a record, and forget the oldest ones beyond the bound."""
        self._records[operation.record.key.path] = operation
        self._records.move_to_end(operation.record.key.path)
        while len(self._records) > self._records_max:
            self._drop(next(iter(self._records)))

    def _drop(self, path: str) -> None:
        self._in_part.discard(path)
        known = self._records.pop(path, None)
        if known is not None:
            growing = self._growing.get(_place(known))
            if growing is not None and growing.record.key.path == path:
                del self._growing[_place(known)]


def _place(operation: StoredOperation) -> _Growing:
    document = operation.document
    assert isinstance(document, AckOperation)
    return operation.branch, document.incarnation, document.cumulative
