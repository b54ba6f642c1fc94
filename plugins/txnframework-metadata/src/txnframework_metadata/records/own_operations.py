"""Operations that this process wrote in transactions that it may end, so that it can settle them as it ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from txnframework.interfaces import ICursor, IMetadataStore
from txnframework.model.ids import TxnID
from txnframework.model.records import AckOperation
from txnframework.model.steps import Reach
from txnframework_metadata.records.headers import TransactionCache
from txnframework_metadata.records.operations import HeaderCache
from txnframework_metadata.records.views import StoredOperation

TOGETHER_MAX = 10
"""The most operations that are settled as their transaction ends; the cost of an end must not grow with them."""

Forget = Callable[[Iterable[StoredOperation]], None]


@dataclass(frozen=True, slots=True)
class AckSettler:
    """A subscription on a segment: its cursor, and how to forget operations that were settled."""

    cursor: ICursor
    forget: Forget


@dataclass(slots=True)
class Written:
    """Operations of one transaction, by key as last written, and the places of the acknowledgments among them."""

    operations: dict[str, StoredOperation] = field(default_factory=dict)
    places: dict[tuple[str, str], AckSettler] = field(default_factory=dict)


class OwnOperations:
    """
    A bounded map of written operations by transaction.

    Nothing of it is needed, and nothing of it is believed: an operation is removed only if it is stored as noted here.
    What is missing here is settled after the end, as are all operations on a store whose steps have one partition.
    So only transactions that this process began are noted: the others are never taken from here, and would keep
    operations and segments in memory.
    """

    def __init__(self, store: IMetadataStore, begun: HeaderCache, transactions_max: int) -> None:
        self._is_used = store.reach >= Reach.STORE
        self._begun = begun
        self._written: TransactionCache[Written] = TransactionCache(transactions_max)

    def note(self, operation: StoredOperation, place: AckSettler | None = None) -> None:
        """Note an operation that was written or changed; ``place``: where it acknowledges."""
        if not self._is_used:
            return
        if self._begun.known(operation.txn_id) is None:
            return
        written = self._written.known(operation.txn_id)
        if written is None:
            written = Written()
            self._written.note(operation.txn_id, written)
        path = operation.record.key.path
        # One more than the limit shows that there are too many.
        if path in written.operations or len(written.operations) <= TOGETHER_MAX:
            written.operations[path] = operation
        document = operation.document
        if place is not None and isinstance(document, AckOperation):
            written.places[document.segment, document.subscription] = place

    def take(self, txn_id: TxnID) -> Written | None:
        """Return what was noted of a transaction, unless it is too much, and forget it."""
        written = self._written.take(txn_id)
        return None if written is None or len(written.operations) > TOGETHER_MAX else written
