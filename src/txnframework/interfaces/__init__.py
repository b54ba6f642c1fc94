"""
The roles that plugins implement; the docstrings are the specification.

Conventions: every method is ``async def``, except in roles of plain functions, and is called positionally. A method
with more than three parameters takes a frozen dataclass. Cheap facts are attributes. A stronger guarantee is a
sub-interface: its docstring is the promise, and callers test for it with ``providedBy``.
"""

from __future__ import annotations

from txnframework.interfaces._buffer import (
    IAdoptingBuffer,
    ICommitOrderBuffer,
    IInPlaceBuffer,
    IPlannableBuffer,
    ISealableBuffer,
    ITransactionBuffer,
)
from txnframework.interfaces._co_commit import ICoCommitStore, IDatabaseTransaction
from txnframework.interfaces._coordinator import (
    IApplicationCoordinator,
    ICoordinatorShare,
    IParticipants,
    ITransactionCoordinator,
)
from txnframework.interfaces._copyable import ICopyableLedgerStore, ICopyableMetadataStore
from txnframework.interfaces._diagnosable import IDiagnosable
from txnframework.interfaces._dispatcher import IDispatcher, ISingleActiveDispatcher
from txnframework.interfaces._joint import IJointCoordinator
from txnframework.interfaces._ledger import (
    IAppendedWatch,
    ILedgerStore,
    IManagedLedger,
)
from txnframework.interfaces._metadata_store import (
    IDurableStore,
    ILease,
    IMetadataStore,
    INotifyingStore,
    ISharedStore,
    IValueWatch,
    IWatch,
)
from txnframework.interfaces._observer import IObservation, IObserver
from txnframework.interfaces._pending_ack import ICursor, IPendingAckStore, ISealablePendingAcks
from txnframework.interfaces._restorable import IRestorable

__all__ = [
    "IAdoptingBuffer",
    "IAppendedWatch",
    "IApplicationCoordinator",
    "ICoCommitStore",
    "ICommitOrderBuffer",
    "ICoordinatorShare",
    "ICopyableLedgerStore",
    "ICopyableMetadataStore",
    "ICursor",
    "IDatabaseTransaction",
    "IDiagnosable",
    "IDispatcher",
    "IDurableStore",
    "IInPlaceBuffer",
    "IJointCoordinator",
    "ILease",
    "ILedgerStore",
    "IManagedLedger",
    "IMetadataStore",
    "INotifyingStore",
    "IObservation",
    "IObserver",
    "IParticipants",
    "IPendingAckStore",
    "IPlannableBuffer",
    "IRestorable",
    "ISealableBuffer",
    "ISealablePendingAcks",
    "ISharedStore",
    "ISingleActiveDispatcher",
    "ITransactionBuffer",
    "ITransactionCoordinator",
    "IValueWatch",
    "IWatch",
]
