"""The stored acknowledgment records of one subscription on one segment."""

from __future__ import annotations

from collections.abc import Iterable

from txnframework.interfaces import IMetadataStore
from txnframework.model import index_keys
from txnframework.model.ids import TxnID
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
