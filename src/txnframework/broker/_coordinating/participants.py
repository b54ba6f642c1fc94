"""How a coordinator reaches the buffers and pending-ack stores of this host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from zope.interface import implementer

from txnframework.broker._serving.domains import DomainPlugins, NoPlugins
from txnframework.broker._serving.segments import OpenSegment, SegmentSubscription
from txnframework.errors import LedgerNotFound, Unavailable
from txnframework.interfaces import IParticipants
from txnframework.model.names import topic_of
from txnframework.model.transactions import Participant, Transaction

OpenIt = Callable[[str], Awaitable[OpenSegment]]
Subscribed = Callable[[str, str, str], Awaitable[SegmentSubscription]]


@implementer(IParticipants)
class HostParticipants:
    """Opens what a transaction touched and settles it there, if it is served by the transaction's family."""

    def __init__(
        self,
        segment: OpenIt,
        subscription: Subscribed,
        is_deleted: Callable[[str], Awaitable[bool]],
        plugins_of: Callable[[str], DomainPlugins | NoPlugins],
    ) -> None:
        self._segment = segment
        self._subscription = subscription
        self._is_deleted = is_deleted
        self._plugins_of = plugins_of

    async def settle(self, participant: Participant, ended: Transaction) -> None:
        """Make the outcome take effect on one segment, or on one subscription of it."""
        try:
            await self._settle(participant, ended)
        except LedgerNotFound as error:
            if await self._is_deleted(participant.segment):
                raise
            raise Unavailable(f"segment {participant.segment} cannot be opened") from error

    async def _settle(self, participant: Participant, ended: Transaction) -> None:
        if participant.subscription:
            topic = str(topic_of(participant.segment))
            subscribed = await self._subscription(topic, participant.subscription, participant.segment)
            self._require_family(participant, ended)
            await subscribed.pending_acks.settle(ended)
            return
        segment = await self._segment(participant.segment)
        self._require_family(participant, ended)
        await segment.buffer.settle(ended)

    def _require_family(self, participant: Participant, ended: Transaction) -> None:
        """Leave it to a host that can: plugins of another family find nothing to do, which would pass for done."""
        plugins, family = self._plugins_of(participant.segment), ended.txn_id.family
        if isinstance(plugins, DomainPlugins) and family not in plugins.coordinator.families:
            reason = f"plugins of another family serve {participant.segment} here"
            raise Unavailable(f"transaction {ended.txn_id} of the {family} family cannot be settled: {reason}")
