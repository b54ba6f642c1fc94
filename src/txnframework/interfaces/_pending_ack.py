"""IPendingAckStore: one subscription's transactional acknowledgments; and the cursor that they end in."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.model.acks import Ack, AckRequest, PendingAcks, ProcessedRange
from txnframework.model.cursor import Cursor
from txnframework.model.transactions import Transaction


class ICursor(Interface):
    """
    The durable cursor of one subscription on one segment; the broker provides it.

    It changes only by compare-and-set on its version; on a conflict it is read again and united, never overwritten.
    """

    segment: str = Attribute("Full name of the segment.")
    subscription: str = Attribute("Name of the subscription.")

    async def load() -> Cursor:
        """
        Return it as it is now.

        :raises SubscriptionNotFound: there is none, or it was given up.
        """

    async def apply(incarnation: int, acks: tuple[Ack, ...], processed: ProcessedRange | None) -> bool:
        """
        Unite ``acks`` with the cursor, durably; ``processed`` goes into the subscription's history *before* that.

        Returns False, changing nothing, when the cursor has another incarnation or is gone: such acks are dropped,
        never united. Idempotent; after a failure or OutcomeUnknown repeat it.
        """


class IPendingAckStore(Interface):
    """
    Durable memory of the pending acknowledgments of (segment, subscription).

    How it is used: any process adds, by *put, then look*: of two transactions that acknowledge one message at most one
    succeeds (of two processes that see each other both may fail). When a transaction has ended anyone settles it.
    """

    segment: str = Attribute("Full name of the segment.")
    subscription: str = Attribute("Name of the subscription.")

    async def recover() -> PendingAcks:
        """
        Return what is held by open transactions, and settle what has ended: operations, then headers, then the cursor
        last.

        The caller reads the cursor after this returned.
        """

    async def add(request: AckRequest) -> None:
        """
        Record that the acks take effect if the branch's commit counts; repeating the same in the same branch succeeds.

        In however many calls they come: where the store is an IAtomicBatchStore, what one process acknowledges in a
        branch costs a record for single acks and one for cumulative ones, and another only when one is full, which is a
        bound that configuration names. Calls that come at the same time may be recorded together; each is told of its
        own conflict.

        :raises TransactionConflict: the transaction has ended, or another one's acks overlap, or the cursor has
            passed, or it has another incarnation, or a cumulative one names a message that is done (unless it ends
            what a pipeline consumed), be it the last one of a batch whose others are not, or one of ``received`` is
            done, whoever did it and however late: they are looked at after what was put, like the others' acks. A
            message that is named, and that an own cumulative one covers, is judged by itself: that one may have passed
            over it. Nothing is recorded, and nothing of it takes effect.
        :raises NotTransactionOwner: the transaction belongs to another principal; nothing is recorded.
        :raises TransactionDomainMismatch: the transaction is of another family; nothing is recorded.
        :raises OutcomeUnknown: as for a cancelled call, it may be recorded; also when somebody committed the
            transaction before the call was over, so that it may have taken effect. Give the branch up, or repeat it.
        """

    async def settle(ended: Transaction) -> None:
        """
        Make an outcome take effect here: the cursor first, *then* forget the operations; idempotent; after a failure
        repeat it.
        """

    async def close() -> None:
        """Stop; acks in flight end as OutcomeUnknown; may be repeated."""
