"""What became of one message for one subscription, as the stores say."""

from __future__ import annotations

from txnframework.broker._dispatch.open_acks import OpenAcks
from txnframework.broker._serving.segments import SegmentSubscription
from txnframework.model.acks import AckState, AckStatus
from txnframework.model.cursor import state_of
from txnframework.model.positions import Position


async def ack_status(subscription: SegmentSubscription, position: Position) -> AckStatus:
    """
    Return whether a message, or a whole entry, is done, held by an open transaction, or neither.

    The cursor is read last: what was settled between the two readings is found there.

    :raises SubscriptionNotFound: there is no such subscription.
    """
    pending = await subscription.pending_acks.recover()
    cursor = await subscription.cursor.load()
    if state_of(cursor, position) is AckState.DELETED:
        return AckStatus(AckState.DELETED)
    held = OpenAcks(pending.open, cursor.incarnation).holder(position)
    if held is None:
        return AckStatus(AckState.PENDING)
    return AckStatus(AckState.PENDING_ACK, held.branch.txn_id)
