"""Admission to a topic: the family is registered in the topic's record, and branches enlist the topic."""

from __future__ import annotations

from collections import OrderedDict

from txnframework.errors import (
    LedgerSealed,
    NotTransactionOwner,
    OutcomeUnknown,
    TransactionDomainMismatch,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import IManagedLedger, IMetadataStore, ITransactionCoordinator
from txnframework.model import Branch, Participant, Put, State
from txnframework.model.ids import LOG_FAMILY
from txnframework.model.layout import from_record, to_record
from txnframework.model.layout_changes import with_family
from txnframework.model.names import TopicName
from txnframework.model.paths import topic_key
from txnframework.model.records import TopicRecord, decode, encode


class FamilyRegistration:
    """
    Registers the family in one topic's record. A process checks it once.

    The family is stored there before the first entry or acknowledgment of a transaction. Hosts without this family, or
    configured with another one, refuse such a topic. Otherwise they would show open and aborted messages, and deliver
    messages whose acknowledgment is pending.
    """

    def __init__(self, store: IMetadataStore, topic: str, attempts_max: int) -> None:
        self._store = store
        self._topic = TopicName.parse(topic)
        self._attempts_max = attempts_max
        self._is_registered = False

    async def register(self) -> None:
        """
        Add this family to the topic's record unless it is listed already. A topic without a record is left alone.

        :raises Unavailable: concurrent changes of the record exhausted the attempts.
        """
        if self._is_registered:
            return
        for _ in range(self._attempts_max):
            if await self._register_once():
                self._is_registered = True
                return
        reason = f"the record of {self._topic} changed {self._attempts_max} times while it was being changed"
        raise Unavailable(reason)

    async def _register_once(self) -> bool:
        record = await self._store.get(topic_key(self._topic))
        if record is None:
            return True
        layout = from_record(self._topic, decode(TopicRecord, record))
        if LOG_FAMILY in layout.families:
            return True
        try:
            await self._store.put(Put(record.key, encode(to_record(with_family(layout, LOG_FAMILY))), record.version))
        except (VersionMismatch, OutcomeUnknown):
            return False
        return True


class EnlistedBranches:
    """
    Admits a branch to the open ledger once its transaction has enlisted the topic.

    The open ledger is read before the transaction's state. A branch is therefore admitted only to a ledger that was
    open while the transaction was. So no entry of a transaction is in a later ledger than its marker.
    """

    def __init__(
        self,
        segment: str,
        ledger: IManagedLedger,
        coordinator: ITransactionCoordinator,
        registration: FamilyRegistration,
        branches_max: int,
    ) -> None:
        self._segment = segment
        self._registration = registration
        self._ledger = ledger
        self._coordinator = coordinator
        self._branches_max = branches_max
        self._admitted: OrderedDict[Branch, int] = OrderedDict()

    async def admit(self, branch: Branch, principal: str) -> int:
        """
        Return the id of the ledger that a branch may append to; a send in an ended transaction is refused.

        :raises TransactionDomainMismatch: the transaction belongs to another family.
        :raises LedgerSealed: the topic is sealed.
        :raises NotTransactionOwner: the transaction belongs to another principal.
        :raises TransactionConflict: the transaction has ended.
        """
        txn_id = branch.txn_id
        if txn_id.family != LOG_FAMILY:
            raise TransactionDomainMismatch(
                txn_id,
                txn_id.family,
                self._segment,
                "the log family serves it; name its domain or namespace, as in client.transaction(domain='persistent')",
            )
        known = self._admitted.get(branch)
        tail = None if known is not None else await self._ledger.tail()
        if tail is not None and tail.sealed:
            raise LedgerSealed(self._segment)
        transaction = await self._coordinator.describe(txn_id)
        if transaction.principal and transaction.principal != principal:
            raise NotTransactionOwner(txn_id, principal)
        participant = Participant(self._segment)
        if transaction.state is not State.OPEN or participant not in transaction.participants:
            await self._coordinator.enlist(txn_id, frozenset({participant}))
        if known is not None:
            return known
        await self._registration.register()
        assert tail is not None
        self._admitted[branch] = tail.open_ledger_id
        if len(self._admitted) > self._branches_max:
            self._admitted.popitem(last=False)
        return tail.open_ledger_id

    def closed(self, branch: Branch) -> None:
        """Forget the admission of a branch whose ledger was closed."""
        self._admitted.pop(branch, None)
