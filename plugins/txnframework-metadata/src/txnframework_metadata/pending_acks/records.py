"""Acknowledgment records of one subscription on one segment, and those that this process has confirmed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from txnframework.interfaces import IMetadataStore
from txnframework.model import index_keys
from txnframework.model.ack_overlap import AckIndex
from txnframework.model.ids import Branch, TxnID
from txnframework.model.indexes import ACKS_BY_SEGMENT_SUBSCRIPTION
from txnframework.model.metadata import Record
from txnframework.model.records import AckOperation
from txnframework_metadata.records.operations import scan_index_all
from txnframework_metadata.records.views import StoredOperation, operation_of


class AckRecords:
    """
    Reads all records each time, because every acknowledgment is judged against all of them, and decodes each once.

    The decoded records of the last reading are kept: as many as open transactions hold.
    """

    def __init__(self, store: IMetadataStore, segment: str, subscription: str, page_records: int) -> None:
        self._store = store
        self._place = segment, subscription
        self._page_records = page_records
        self._decoded: dict[str, StoredOperation] = {}

    async def by_txn(self) -> dict[TxnID, list[StoredOperation]]:
        """Return the operations of this subscription on this segment, by transaction."""
        entries = index_keys.prefix_range(ACKS_BY_SEGMENT_SUBSCRIPTION, *self._place)
        decoded = {}
        found: dict[TxnID, list[StoredOperation]] = {}
        for record in await scan_index_all(self._store, entries, self._page_records):
            operation = self._decode(record)
            decoded[record.key.path] = operation
            if self.has(operation):
                found.setdefault(operation.txn_id, []).append(operation)
        self._decoded = decoded
        return found

    def remember(self, operations: Iterable[StoredOperation]) -> None:
        """Remember records that were just written, so that they need not be decoded when they are read."""
        self._decoded.update((operation.record.key.path, operation) for operation in operations)

    def has(self, operation: StoredOperation) -> bool:
        """Return whether an operation acknowledges on this subscription and segment."""
        document = operation.document
        return isinstance(document, AckOperation) and (document.segment, document.subscription) == self._place

    def _decode(self, record: Record) -> StoredOperation:
        known = self._decoded.get(record.key.path)
        if known is not None and (known.record.version, known.record.value) == (record.version, record.value):
            return known
        return operation_of(record)


_Growing = tuple[Branch, int, bool]
"""Branch, incarnation, and whether the acknowledgments of the record are cumulative."""


class ConfirmedAcks:
    """
    A bounded map of records that passed their check for conflicts, each as last confirmed.

    A record does not show which of its acknowledgments were confirmed: a call may have been cancelled, or have failed
    without withdrawing its part. A forgotten record only costs another check, and another record for later
    acknowledgments.
    """

    def __init__(self, records_max: int) -> None:
        self._records_max = records_max
        self._records: OrderedDict[str, StoredOperation] = OrderedDict()
        self._in_part: set[str] = set()
        self._growing: dict[_Growing, StoredOperation] = {}

    def of(self, operation: StoredOperation) -> AckIndex | None:
        """Return the part of a record that is known to be confirmed, or None."""
        known = self._records.get(operation.record.key.path)
        return None if known is None else known.acks_by_entry

    def in_doubt(self, operation: StoredOperation) -> bool:
        """Return whether part of a record may be unconfirmed."""
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
        if may_grow:
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
