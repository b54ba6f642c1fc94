"""The pending-ack store of a subscription whose domain has no plugins installed: it accepts no acknowledgments."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.errors import TransactionDomainMismatch, Unavailable, WithoutTransactions
from txnframework.interfaces import IMetadataStore, IPendingAckStore
from txnframework.model.acks import AckRequest, PendingAcks
from txnframework.model.index_keys import prefix_range
from txnframework.model.indexes import ACKS_BY_SEGMENT_SUBSCRIPTION
from txnframework.model.names import topic_of
from txnframework.model.paths import topic_key
from txnframework.model.records import TopicRecord, decode
from txnframework.model.transactions import Transaction


@implementer(IPendingAckStore)
class PlainPendingAcks:
    """
    A store in which no acknowledgment is ever pending.

    Another process that has the plugins may acknowledge in transactions. The messages that it holds must not be
    delivered, and the outcomes cannot be decided here. Recovery then fails with an error whose ``reason`` names the
    missing plugins. A family with records of its own is named in the topic's record before it writes the first one.
    """

    def __init__(self, segment: str, subscription: str, store: IMetadataStore, reason: str) -> None:
        self.segment: str = segment
        self.subscription: str = subscription
        self._store = store
        self._reason = reason

    async def recover(self) -> PendingAcks:
        """
        Return that no acknowledgment is pending.

        :raises WithoutTransactions: acknowledgments are, or may be, pending.
        """
        await self._require_no_family()
        held = prefix_range(ACKS_BY_SEGMENT_SUBSCRIPTION, self.segment, self.subscription)
        if (await self._store.scan_index(held, 1)).records:
            what = f"what transactions acknowledged in subscription {self.subscription}"
            raise WithoutTransactions(self.segment, what, self._reason)
        return PendingAcks()

    async def add(self, request: AckRequest) -> None:
        """
        Raise, because there are no transactions here.

        :raises TransactionDomainMismatch: always; nothing is recorded.
        """
        txn_id = request.branch.txn_id
        raise TransactionDomainMismatch(txn_id, txn_id.family, self.segment, self._reason)

    async def settle(self, ended: Transaction) -> None:
        """
        Raise, so that a process with the plugins settles the transaction.

        :raises Unavailable: always; the caller keeps its records of the transaction.
        """
        raise Unavailable(
            f"transaction {ended.txn_id} cannot be settled at subscription {self.subscription} of {self.segment} here: "
            f"{self._reason}"
        )

    async def close(self) -> None:
        """Do nothing; there are no resources."""

    async def _require_no_family(self) -> None:
        topic = topic_of(self.segment)
        record = await self._store.get(topic_key(topic))
        families = [] if record is None else decode(TopicRecord, record).families
        if families:
            what = f"what transactions of the {' and '.join(families)} family may have acknowledged in {topic}"
            raise WithoutTransactions(self.segment, what, self._reason)
