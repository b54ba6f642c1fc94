"""Messages that a consumer was given and has not acknowledged, under the ids that its client holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from txnframework.client import Message, MessageID
from txnframework.errors import InvalidInput
from txnframework.model.layout import Layout
from txnframework_pulsar.ids import SegmentPosition, place_of, pulsar_id, segment_id_of
from txnframework_pulsar.wire import messages_pb2 as pb

Given = Message | MessageID
Key = tuple[int, int]


class Deliveries:
    """
    The unacknowledged messages in the order in which they were given, without their contents.

    The framework bounds them, by ``subscriptions.unacknowledged_messages_max``. A message that is not among them, as it
    was given before the client lost its connection, is acknowledged by its id.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._given: dict[Key, Message] = {}
        self._segments = {one: str(layout.name_of(one)) for one in layout.segments}

    def __len__(self) -> int:
        return len(self._given)

    def give(self, message: Message) -> pb.MessageId:
        """
        Return the id of a message that is given now.

        :raises InvalidInput: a number of it does not fit into an id of Pulsar.
        """
        given = pulsar_id(message.id)
        if given is None:
            raise InvalidInput(f"the id of {message.id} does not fit into an id of Pulsar")
        key = (given.ledger_id, given.entry_id)
        self._given.pop(key, None)  # a message that is given again comes last
        self._given[key] = dataclasses.replace(message, value=None, headers={}, key=None)
        self._segments.setdefault(segment_id_of(message.id.segment), message.id.segment)
        return given

    def resolve(self, given: pb.MessageId) -> Given:
        """
        Return the message of an id, or its id in the framework's form.

        :raises InvalidInput: the topic has no such message.
        """
        known = self._given.get((given.ledger_id, given.entry_id))
        if known is not None:
            return known
        return self.message_id(place_of(given))

    def message_id(self, place: SegmentPosition | str) -> MessageID:
        """Return the id of a message in the framework's form."""
        if isinstance(place, str):
            raise InvalidInput(f"the place {place} is not the id of a message")
        segment = self._segments.get(place.segment_id)
        if segment is None:
            raise InvalidInput(f"{self._layout.topic} has no segment {place.segment_id}")
        return MessageID(segment, place.position)

    def upto(self, given: pb.MessageId) -> list[Given]:
        """
        Return what a cumulative acknowledgment names: of each segment the last message given before it, or it itself.

        Messages of several segments reach a client in one order, in which it acknowledges them cumulatively. If only
        a part of an encrypted batch is named, the batch is not covered, as it is one message here.
        """
        key = (given.ledger_id, given.entry_id)
        in_part = bool(given.ack_set)
        if key not in self._given:
            # What came before a batch of an earlier connection is not known; it is covered when the whole batch is.
            return [] if in_part else [self.resolve(given)]
        last: dict[str, Message] = {}
        for known, message in self._given.items():
            if in_part and known == key:
                break
            earlier = last.get(message.id.segment)
            if earlier is None or earlier.id < message.id:
                last[message.id.segment] = message
            if known == key:
                break
        return list(last.values())

    def forget(self, messages: Iterable[Given]) -> None:
        """Forget messages that are acknowledged or will be given again."""
        for one in messages:
            at = pulsar_id(one.id if isinstance(one, Message) else one)
            if at is not None:
                self._given.pop((at.ledger_id, at.entry_id), None)

    def forget_upto(self, messages: Iterable[Given]) -> None:
        """Forget what cumulative acknowledgments covered."""
        for one in messages:
            upto = one.id if isinstance(one, Message) else one
            covered = [key for key, known in self._given.items() if _covers(upto, known.id)]
            for key in covered:
                del self._given[key]

    def forget_all(self) -> None:
        """Forget all messages: they will be given again."""
        self._given.clear()


def _covers(upto: MessageID, other: MessageID) -> bool:
    return upto.segment == other.segment and other <= upto
