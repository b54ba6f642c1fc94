"""IPendingAckStore: one subscription's transactional acknowledgments; ICursor: the cursor to which they are applied."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.model.acks import Ack, AckRequest, PendingAcks, ProcessedRange
from txnframework.model.cursor import BranchAcks, Cursor, CursorMove
from txnframework.model.joint import JointAck
from txnframework.model.metadata import Record
from txnframework.model.transactions import Transaction


class ICursor(Interface):
    """
    The durable cursor of one subscription on one segment; the broker provides it.

    It changes only by compare-and-set on its version. After a conflict it is read again and united, never overwritten.
    """

    segment: str = Attribute("Full name of the segment.")
    subscription: str = Attribute("Name of the subscription.")

    async def load() -> Cursor:
        """
        Return the current cursor.

        :raises SubscriptionNotFound: the subscription does not exist or was deleted.
        """

    async def apply(incarnation: int, acks: tuple[Ack, ...], processed: ProcessedRange | None) -> bool:
        """
        Unite ``acks`` with the cursor, durably; ``processed`` is written to the subscription's history *before* that.

        Returns False and changes nothing if the cursor has another incarnation or was deleted: such acks are dropped,
        never united. Idempotent; after a failure or OutcomeUnknown repeat it.
        """

    async def plan(incarnation: int, parts: tuple[BranchAcks, ...]) -> CursorMove | None:
        """
        Return the compare-and-set that unites the acknowledgments of branches with the cursor; nothing is written.

        One step makes ``CursorMove.put`` and everything that commits the transaction; then ``finish`` follows once,
        whatever came of the step. Without a plan the caller commits first, and calls ``apply`` later.

        None if the cursor is not known well enough, if it has another incarnation or was deleted, or while another plan
        is not finished. The put is refused by the store if the cursor has changed since it was read.
        """

    async def finish(move: CursorMove, written: Record | None) -> None:
        """
        Note the record that the put wrote, or None if it wrote nothing or its outcome is unknown.

        With a record, the branches of the move are committed, and their acknowledged messages are finished.
        """


class IPendingAckStore(Interface):
    """
    Durable storage of the pending acknowledgments of one (segment, subscription).

    How it is used: any process adds, by *put, then look*: it stores its record, and then looks for conflicting records
    of other transactions. Of two transactions that acknowledge one message, at most one succeeds. If two processes find
    each other's records, both may fail. After a transaction has ended, any process settles it.
    """

    segment: str = Attribute("Full name of the segment.")
    subscription: str = Attribute("Name of the subscription.")

    async def recover() -> PendingAcks:
        """
        Return the acks of open transactions, and settle those of ended ones: operations, then headers, then the cursor.

        The caller reads the cursor after this returned.
        """

    async def add(request: AckRequest) -> None:
        """
        Record acks that take effect if the branch's commit counts; repeating the same acks in the same branch succeeds.

        The number of records does not depend on the number of calls. All acks of one process in
        a branch need one record for single acks and one for cumulative acks. A further record is needed only when one
        is full; the configuration limits its size. Concurrent calls may be recorded together; each call receives its
        own conflict.

        :raises TransactionConflict: nothing is recorded, and nothing takes effect. The transaction has ended, or acks
            of another transaction overlap, or the cursor has passed, or it has another incarnation. Or a cumulative ack
            names a message that is done. This includes the last message of a batch whose other messages are not done;
            the ack at the end of a pipeline's batch is exempt. Or a message in ``received`` is done, by any process
            and however late: these messages are checked after the put, like the acks of others. A named message that a
            cumulative ack of the same branch covers is checked separately, because that ack may have skipped it.
        :raises NotTransactionOwner: the transaction belongs to another principal; nothing is recorded.
        :raises TransactionDomainMismatch: the transaction is of another family; nothing is recorded.
        :raises OutcomeUnknown: the acks may be recorded, as after a cancelled call. Also raised if the transaction was
            committed before the call completed, so that the acks may have taken effect. Abandon the branch, or repeat
            the call.
        """

    async def settle(ended: Transaction) -> None:
        """
        Make an outcome take effect here: the cursor first, *then* forget the operations.

        Idempotent; repeat it after a failure.
        """

    async def plan_joint(requests: tuple[AckRequest, ...]) -> JointAck | None:
        """
        Return individual acknowledgments, each of another branch, as a part of a step; nothing is written.

        None: plan fewer of them, or call ``add`` for each instead. This is so if a message is acknowledged already, or
        by two of them, which ``add`` reports; or if acknowledgments of this store are never part of a step. Plans for
        one subscription on a segment follow one another: this waits until the plan before it is finished. A caller that
        makes several plans makes them in the order of (segment, subscription), so that two callers never wait for each
        other.
        """

    async def finish_joint(planned: JointAck, written: Record | None) -> None:
        """
        End a plan. ``written``: the cursor's record; None if the step wrote nothing, or it is not known what.

        To be called once for each plan, also after a failure. With a record, the transactions are committed, and the
        messages are finished.
        """

    async def close() -> None:
        """Stop; acks in flight raise OutcomeUnknown; may be repeated."""


class ISealablePendingAcks(IPendingAckStore):
    """A store that can be sealed, so that a store of another family serves the subscription afterwards."""

    async def seal() -> PendingAcks:
        """
        Refuse further acks, in every process; then do as ``recover``.

        Nothing held is missing from the result. Repeat the call after the open transactions in it have ended, until
        there are none. From then on nothing is held here, and ``add`` raises TransactionConflict.
        """
