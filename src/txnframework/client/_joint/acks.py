"""The acknowledgments that a step makes on each subscription."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txnframework.broker import AckInProgress, Attachment, SizedPosition, acks_of
from txnframework.client._joint.refusals import REFUSALS, StepsNeeded
from txnframework.client._messages import Message, by_segment
from txnframework.client._planned import PlannedAck
from txnframework.client._subscription.acknowledgments import ConsumerAcks
from txnframework.interfaces import IPendingAckStore
from txnframework.model.acks import AckRequest
from txnframework.model.ids import Branch


class SegmentAcks:
    """Acknowledgments of one consumer on one segment: marked as in progress, then finished by the step."""

    def __init__(
        self, consumer: ConsumerAcks, attached: Attachment, sized: tuple[SizedPosition, ...], request: AckRequest
    ) -> None:
        pending_acks = attached.pending_acks
        self.name: tuple[str, str] = (pending_acks.segment, pending_acks.subscription)
        self.stored: tuple[IPendingAckStore, AckRequest] = (pending_acks, request)
        """The store that plans them, and what it plans."""
        self._consumer = consumer
        self._attached = attached
        self._sized = sized
        self._progress: AckInProgress | None = None

    def begin(self) -> None:
        """Mark the messages; raise StepsNeeded if they cannot be acknowledged now."""
        self._progress = self._attached.begin_joint_ack(self._sized, self.stored[1])
        if self._progress is None:
            raise StepsNeeded

    def committed(self) -> None:
        """Let the transaction hold those messages that the move of the cursor has not finished."""
        assert self._progress is not None, "it has begun"
        self._progress.recorded()
        self._progress = None

    def failed(self, error: BaseException) -> None:
        """Free the messages if nothing was written."""
        progress, self._progress = self._progress, None
        if progress is None:
            return
        if isinstance(error, REFUSALS):
            progress.refused()
        else:
            progress.unsure()

    def end(self) -> None:
        """Let the segment be given up, if that was to wait for these acknowledgments."""
        self._attached.end_joint_ack()

    async def note(self) -> None:
        """Let the consumer note that it has acknowledged the messages."""
        positions = [position for position, _ in self._sized]
        await self._consumer.acknowledged(self.name[0], self._attached, positions, self.stored[1].branch)


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
    messages = [one for one in planned.messages if isinstance(one, Message) and one.subscription]
    if len(messages) < len(planned.messages):
        raise StepsNeeded  # an id, or a message of a reader, does not show what the acknowledgment needs
    for segment, some in by_segment(messages).items():
        attached = planned.acks.feed(segment).present
        incarnations = {one.incarnation for one in some}
        if attached is None or len(incarnations) > 1:
            raise StepsNeeded
        sized = tuple([(one.id.position, one.batch_size) for one in some])
        request = AckRequest(branch, acks_of(sized), incarnations.pop(), principal=principal)
        yield SegmentAcks(planned.acks, attached, sized, request)
