"""The acknowledgments that a step makes on each subscription."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txnframework.broker import AckInProgress, Attachment, SizedPosition, acks_of
from txnframework.client._joint.refusals import REFUSALS, StepsNeeded
from txnframework.client._messages import Message, by_segment
from txnframework.client._planned import PlannedAck
from txnframework.client._subscription.acknowledgments import ConsumerAcks
from txnframework.interfaces import IJointPendingAcks
from txnframework.model.acks import AckRequest
from txnframework.model.ids import Branch
from txnframework.model.joint import JointAck
from txnframework.model.metadata import Record


class SegmentAcks:
    """Acknowledgments of one consumer on one segment: planned, then marked as in progress, then finished."""

    def __init__(
        self, consumer: ConsumerAcks, attached: Attachment, sized: tuple[SizedPosition, ...], request: AckRequest
    ) -> None:
        pending_acks = attached.pending_acks
        if not IJointPendingAcks.providedBy(pending_acks):
            raise StepsNeeded
        self.name: tuple[str, str] = (pending_acks.segment, pending_acks.subscription)
        self._consumer = consumer
        self._attached = attached
        self._pending_acks: IJointPendingAcks = pending_acks
        self._sized = sized
        self._request = request
        self._planned: JointAck | None = None
        self._progress: AckInProgress | None = None
        self._written: Record | None = None

    async def plan(self) -> JointAck:
        """Return the part of the step; raise StepsNeeded if it can be none."""
        self._planned = planned = await self._pending_acks.plan_joint(self._request)
        if planned is None:
            raise StepsNeeded
        return planned

    def begin(self) -> None:
        """Mark the messages; nothing may be waited for between this and the step."""
        self._progress = self._attached.begin_joint_ack(self._sized, self._request)
        if self._progress is None:
            raise StepsNeeded

    def committed(self, written: Record | None) -> None:
        """Let the transaction hold the messages, until the moved cursor finishes them."""
        assert self._progress is not None, "it has begun"
        self._progress.recorded()
        self._progress = None
        self._written = written

    def failed(self, error: BaseException) -> None:
        """Free the messages if nothing was written."""
        progress, self._progress = self._progress, None
        if progress is None:
            return
        if isinstance(error, REFUSALS):
            progress.refused()
        else:
            progress.unsure()

    async def finish(self) -> None:
        """End the plan, whatever came of the step."""
        planned, self._planned = self._planned, None
        if planned is None:
            return
        await self._pending_acks.finish_joint(planned, self._written)
        self._attached.end_joint_ack()

    async def note(self) -> None:
        """Let the consumer note that it has acknowledged the messages."""
        positions = [position for position, _ in self._sized]
        await self._consumer.acknowledged(self.name[0], self._attached, positions, self._request.branch)


def segment_acks(planned: Sequence[PlannedAck], branch: Branch, principal: str) -> list[SegmentAcks]:
    """
    Return acknowledgments by subscription and segment, in the order in which they are planned.

    :raises StepsNeeded: some of them cannot be part of a step.
    """
    found = [one for ack in planned for one in _by_segment(ack, branch, principal)]
    if len({one.name for one in found}) < len(found):
        raise StepsNeeded  # a cursor moves once in a step
    return sorted(found, key=lambda one: one.name)


def _by_segment(planned: PlannedAck, branch: Branch, principal: str) -> Iterable[SegmentAcks]:
    messages = [one for one in planned.messages if isinstance(one, Message)]
    if len(messages) < len(planned.messages):
        raise StepsNeeded  # an id alone does not show how many messages its entry has
    for segment, some in by_segment(messages).items():
        attached = planned.acks.feed(segment).present
        incarnations = {one.incarnation for one in some}
        if attached is None or len(incarnations) > 1:
            raise StepsNeeded
        sized = tuple([(one.id.position, one.batch_size) for one in some])
        request = AckRequest(branch, acks_of(sized), incarnations.pop(), principal=principal)
        yield SegmentAcks(planned.acks, attached, sized, request)
