"""Topics that are deleted and created again under the same name: the history without the deleted topics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from txnframework.model.names import topic_of
from txnframework_simulation.history import (
    Acknowledge,
    AskAck,
    Call,
    Compact,
    Consume,
    DeleteTopic,
    DrainCompacted,
    DrainConsumer,
    Drained,
    DrainSubscription,
    DrainTopic,
    EventKind,
    Read,
    Receive,
    Received,
    Seek,
    Send,
    Subscribe,
    Unsubscribe,
)

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(slots=True)
class _Deletions:
    """
    The deletions of one name that may have happened.

    ``surely_from``: the start of the last certain deletion. ``over_at``: the event at which all of them had ended.
    """

    surely_from: int = -1
    over_at: int = -1

    def note(self, call: Call) -> None:
        self.over_at = max(self.over_at, call.ended)
        if call.ok:
            self.surely_from = max(self.surely_from, call.began)


def without_deleted_topics(calls: list[Call]) -> list[Call]:
    """
    Return the calls without their parts about topics that were certainly or possibly deleted later.

    A former topic and its successor may have the same places. So messages that were received before the last deletion
    ended are left out, because they may be from either topic. A call that began before that, and had not ended when the
    last certain deletion began, may have been applied to the successor.
    """
    deletions: dict[str, _Deletions] = {}
    for call in calls:
        if isinstance(call.operation, DeleteTopic) and call.possible:
            deletions.setdefault(call.operation.topic, _Deletions()).note(call)
    if not deletions:
        return calls
    former = _Former(deletions)
    return [kept for call in calls if (kept := former.without(call)) is not None]


class _Former:
    def __init__(self, deletions: dict[str, _Deletions]) -> None:
        self._deletions = deletions
        # By consumer and topic: the event at which it had joined, if it may have joined a former topic. Such a consumer
        # may return messages of the former topic late.
        self._joined: dict[tuple[str, str], int] = {}

    def without(self, call: Call) -> Call | None:
        """Return a call without its parts about earlier topics of a name; None: nothing remains."""
        match call.operation:
            case Acknowledge():
                return self._acknowledged(call, call.operation)
            case Consume(topics=topics, consumer=consumer):
                for topic in map(str, map(topic_of, topics)):
                    if self._may_be_former(call, topic):
                        self._joined[consumer, topic] = call.ended
                return self._in_doubt(call, *map(str, map(topic_of, topics)))
            case Send(topic=topic) | Subscribe(topic=topic) | Unsubscribe(topic=topic):
                return self._in_doubt(call, topic)
            case Seek(topic=topic) | Compact(topic=topic):
                return self._in_doubt(call, topic)
            case DrainTopic(topic=topic) | DrainCompacted(topic=topic) | DrainSubscription(topic=topic):
                return None if self._may_be_former(call, topic) else call
            case Read(topic=topic):
                return None if self._may_be_former(call, topic) else call
            case AskAck(place=place):
                return None if self._may_be_former(call, place.topic) else call
            case Receive(consumer=consumer) | DrainConsumer(consumer=consumer):
                return self._received(call, consumer)
        return call

    def _in_doubt(self, call: Call, *topics: str) -> Call | None:
        """Return a call with an unknown outcome if it may be about an earlier topic of the name."""
        if not any(self._may_be_former(call, topic) for topic in topics):
            return call
        if all(self._is_over(call.ended, topic) for topic in topics):
            return None
        return replace(call, kind=EventKind.UNKNOWN, reply=None)

    def _received(self, call: Call, consumer: str) -> Call:
        reply = call.reply
        if not isinstance(reply, Received | Drained):
            return call
        new = tuple(seen for seen in reply.messages if not self._may_be_of_former(call, consumer, seen.place.topic))
        return replace(call, reply=_with(reply, messages=new))

    def _acknowledged(self, call: Call, ack: Acknowledge) -> Call | None:
        """
        Drop acknowledgments of messages of an earlier topic.

        If a message may also be of the last topic, the outcome of its acknowledgment is unknown.
        """
        topics = {one.place.topic for one in ack.messages}
        if not any(self._may_be_of_former(call, ack.consumer, topic) for topic in topics):
            return call
        kept = tuple(
            one
            for one in ack.messages
            if not self._is_over(
                min(call.ended, self._joined.get((ack.consumer, one.place.topic), call.ended)), one.place.topic
            )
        )
        return replace(call, operation=_with(ack, messages=kept), kind=EventKind.UNKNOWN, reply=None) if kept else None

    def _may_be_of_former(self, call: Call, consumer: str, topic: str) -> bool:
        return (consumer, topic) in self._joined or self._may_be_former(call, topic)

    def _may_be_former(self, call: Call, topic: str) -> bool:
        deletions = self._deletions.get(topic)
        return deletions is not None and call.began <= deletions.over_at

    def _is_over(self, ended: int, topic: str) -> bool:
        """Whether an operation that ended at ``ended`` was over when the last certain deletion began."""
        deletions = self._deletions.get(topic)
        return deletions is not None and ended < deletions.surely_from


def _with(struct: S, **changes: object) -> S:
    return msgspec.structs.replace(struct, **changes)


def deleted_topics(calls: Iterable[Call]) -> frozenset[str]:
    """Return the topics that were certainly or possibly deleted."""
    return frozenset(
        call.operation.topic for call in calls if isinstance(call.operation, DeleteTopic) and call.possible
    )
