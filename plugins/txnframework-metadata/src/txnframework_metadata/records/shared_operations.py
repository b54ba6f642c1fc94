"""What a coordinator of this family shares with the buffers and pending-ack stores of the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

from zope.interface import Attribute, Interface

from txnframework.errors import InvalidInput, TxnFrameworkError
from txnframework.interfaces import IMetadataStore, ITransactionCoordinator
from txnframework.model.ids import TxnID
from txnframework.model.metadata import Key
from txnframework.model.records import WriteOperation
from txnframework.model.transactions import Transaction
from txnframework.runtime.call_groups import Answers, CallGroups, GroupRules
from txnframework_metadata.records.headers import Header
from txnframework_metadata.records.operations import STEPS_TOGETHER_MAX, HeaderCache, forget, put_operations
from txnframework_metadata.records.own_operations import OwnOperations
from txnframework_metadata.records.views import StoredOperation


@dataclass(frozen=True, slots=True)
class _Intent:
    header: Header
    document: WriteOperation


_Forgotten = Sequence[StoredOperation]


class SharedOperations:
    """
    Operations that concurrent calls for many segments of a transaction write and remove in few steps.

    Nothing of this is needed for correctness: each call has the same effect alone.
    """

    def __init__(self, store: IMetadataStore, begun_max: int, page_records: int) -> None:
        self.begun: HeaderCache = HeaderCache(begun_max)
        self.own: OwnOperations = OwnOperations(store, self.begun, begun_max)
        self.settle_own: Callable[[Transaction], Awaitable[int]] = _settle_nothing
        """
        Settle an ended transaction by what this process wrote in it, together with others; set by the coordinator.

        Return the number of operations, if nothing of the transaction is left, of any process. Otherwise return 0: it
        is settled by reading.
        """
        self._store = store
        self._page_records = page_records
        # A transaction's groups exist while a caller waits in them.
        self._intents: WeakValueDictionary[Key, CallGroups[_Intent]] = WeakValueDictionary()
        self._removals: WeakValueDictionary[TxnID, CallGroups[_Forgotten]] = WeakValueDictionary()
        self._settling: dict[TxnID, dict[str, list[StoredOperation]]] = {}
        self._taking_effect: dict[TxnID, asyncio.Event] = {}
        self._listeners: dict[str, list[Callable[[TxnID], None]]] = {}

    def listen(self, segment: str, ended: Callable[[TxnID], None]) -> None:
        """Call ``ended`` with each transaction that takes effect on a segment through ``tell_committed``."""
        self._listeners.setdefault(segment, []).append(ended)

    def ignore(self, segment: str, ended: Callable[[TxnID], None]) -> None:
        """Stop calling ``ended``; if it is not called, do nothing."""
        listeners = self._listeners.get(segment, [])
        if ended in listeners:
            listeners.remove(ended)
        if not listeners:
            self._listeners.pop(segment, None)

    async def put_intent(self, header: Header, document: WriteOperation) -> None:
        """Write an intent; raises as ``put_operations`` does."""
        groups = self._intents.get(header.key)
        if groups is None:
            self._intents[header.key] = groups = CallGroups(self._put_all, _INTENT_RULES)
        await groups.add(_Intent(header, document))

    @contextmanager
    def settling(self, txn_id: TxnID, operations: Sequence[StoredOperation]) -> Iterator[None]:
        """
        Give the operations of an ended transaction to the buffers that settle it within the block.

        They were read after the end, so no operation was added since.
        """
        if txn_id in self._settling:
            yield
            return
        by_segment: dict[str, list[StoredOperation]] = {}
        for operation in operations:
            if isinstance(operation.document, WriteOperation):
                by_segment.setdefault(operation.document.segment, []).append(operation)
        self._settling[txn_id] = by_segment
        try:
            yield
        finally:
            del self._settling[txn_id]

    @contextmanager
    def taking_effect(self, txn_id: TxnID) -> Iterator[None]:
        """Let ``until_taken_effect`` wait for this block, in which a subscription settles an ended transaction."""
        if txn_id in self._taking_effect:
            yield
            return
        done = self._taking_effect[txn_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._taking_effect[txn_id]
            done.set()

    async def until_taken_effect(self, txn_id: TxnID) -> None:
        """
        Wait while a subscription of this process settles a transaction, so that its operations are not settled twice.

        Such a subscription waits for nothing but the store.
        """
        under_way = self._taking_effect.get(txn_id)
        if under_way is not None:
            await under_way.wait()

    def tell_committed(
        self, ended: Transaction, operations: Sequence[StoredOperation]
    ) -> tuple[list[StoredOperation], list[StoredOperation]]:
        """
        Tell the open buffers of this process whose writes all count that a transaction has ended.

        Return the write operations of their segments, which can be removed without a further step, and all other
        operations. On a segment with a branch that does not count, abort records come first. A segment that is not open
        here is settled by its participant.
        """
        uncounted = {_segment_of(one) for one in operations if not ended.counts(one.document.branch)}
        told = {segment for one in operations if (segment := _segment_of(one)) in self._listeners} - uncounted
        if not told:
            return [], list(operations)
        for segment in sorted(told):
            for listener in tuple(self._listeners[segment]):
                listener(ended.txn_id)
        removable: list[StoredOperation] = []
        others: list[StoredOperation] = []
        for one in operations:
            (removable if _segment_of(one) in told else others).append(one)
        return removable, others

    def is_open_here(self, segment: str) -> bool:
        """Return whether a buffer of this process listens to a segment, so that its writes can be removed."""
        return segment in self._listeners

    def tell_ended(self, txn_id: TxnID, writes: Sequence[StoredOperation]) -> None:
        """Tell the open buffers of this process that these writes were committed and removed."""
        for segment in sorted({_segment_of(one) for one in writes}):
            for listener in tuple(self._listeners.get(segment, ())):
                listener(txn_id)

    def writes_of(self, txn_id: TxnID, segment: str) -> Sequence[StoredOperation] | None:
        """Return the write operations of a transaction that is being settled on a segment; None if they are unread."""
        by_segment = self._settling.get(txn_id)
        return None if by_segment is None else by_segment.get(segment)

    async def forget(self, txn_id: TxnID, operations: Sequence[StoredOperation]) -> None:
        """Remove operations of one transaction whose effect is durable; see ``forget`` of operations."""
        if txn_id not in self._settling:
            await forget(self._store, operations)
            return
        groups = self._removals.get(txn_id)
        if groups is None:
            self._removals[txn_id] = groups = CallGroups(self._forget_all, _REMOVAL_RULES)
        await groups.add(operations)

    async def _put_all(self, intents: list[_Intent]) -> Answers:
        documents = [one.document for one in intents]
        try:
            stored = await put_operations(self._store, intents[0].header, documents, self._page_records)
        except InvalidInput as error:
            # An intent that the store cannot take, such as one with a very long name, must not fail the others.
            return [error] if len(intents) == 1 else [await self._answer_of(one) for one in intents]
        for operation in stored:
            self.own.note(operation)
        return [None] * len(intents)

    async def _answer_of(self, intent: _Intent) -> Exception | None:
        try:
            await put_operations(self._store, intent.header, [intent.document], self._page_records)
        except TxnFrameworkError as error:
            return error
        return None

    async def _forget_all(self, removals: list[_Forgotten]) -> Answers:
        # Two settlings of one transaction may remove the same record, and a batch may name it only once.
        by_key = {operation.record.key: operation for operations in removals for operation in operations}
        await forget(self._store, tuple(by_key.values()))
        return [None] * len(removals)


async def _settle_nothing(_: Transaction) -> int:
    return 0


# One batch of a store is bounded, but many stores apply several batches in one step and one commit.
_GROUPS_MAX = 16
_INTENT_RULES: GroupRules[_Intent] = GroupRules(
    lambda one, first: one.header.version == first.header.version,
    lambda _: 1,
    STEPS_TOGETHER_MAX,
    "an intent",
    _GROUPS_MAX,
)
_REMOVAL_RULES: GroupRules[_Forgotten] = GroupRules(
    lambda *_: True, len, STEPS_TOGETHER_MAX, "a removal of operations", _GROUPS_MAX
)


def _segment_of(operation: StoredOperation) -> str:
    """Return the segment of a write operation; empty for other operations."""
    return operation.document.segment if isinstance(operation.document, WriteOperation) else ""


class ISharedOperationsOwner(Interface):
    """A coordinator of this family."""

    operations: SharedOperations = Attribute("What it shares with buffers and pending-ack stores of the same process.")


def operations_shared_by(
    coordinator: ITransactionCoordinator, store: IMetadataStore, page_records: int
) -> SharedOperations:
    """Return what a coordinator shares; something of the caller's own if the coordinator belongs to another family."""
    owner = ISharedOperationsOwner(coordinator, None)
    return SharedOperations(store, 0, page_records) if owner is None else owner.operations
