"""Scalable topics for clients of Pulsar 5 (``topic://``), which want to know the segments of a topic."""

from __future__ import annotations

from txnframework.model.layout import HASH_MAX
from txnframework_pulsar.names import pulsar_name, scalable_name
from txnframework_pulsar.topics import ENCRYPTED, Topics
from txnframework_pulsar.transactions import COORDINATOR
from txnframework_pulsar.wire import messages_pb2 as pb

ONLY_SEGMENT = 0
ACTIVE = 0
"""The state of a segment that accepts messages."""


class ScalableTopics:
    """
    Shows each topic as one segment that has every key, and is a topic of an earlier release of Pulsar.

    So these clients send and receive like all others. The gateway routes messages to the real segments and merges them,
    and no client has to follow a split.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def lookup(self, asked: pb.ScalableTopicLookup) -> pb.Command:
        """Answer with the layout of a topic, which never changes."""
        topic, layout = await self._topics.opened(asked.topic)
        url = self._topics.serving_url()
        answer = pb.ScalableTopicUpdate(session_id=asked.session_id, resolved_topic_name=scalable_name(topic))
        shown = answer.layout
        shown.epoch = layout.life
        shown.segments.add(
            segment_id=ONLY_SEGMENT,
            hash_start=0,
            hash_end=HASH_MAX,
            state=ACTIVE,
            created_at_epoch=layout.life,
            created_at_ms=0,
            legacy_topic_name=pulsar_name(topic),
        )
        broker = shown.segment_brokers.add(segment_id=ONLY_SEGMENT, broker_url=url)
        shown.controller_broker_url = url
        if url.startswith(ENCRYPTED):
            broker.broker_url_tls = shown.controller_broker_url_tls = url
        return pb.Command(scalable_topic_update=answer)

    async def coordinators(self, asked: pb.WatchCoordinators) -> pb.Command:
        """Answer that the one coordinator is here; while another gateway serves, its clients are refused before."""
        url = self._topics.serving_url()
        answer = pb.WatchCoordinatorsUpdate(watch_id=asked.watch_id)
        answer.snapshot.parallelism = 1
        one = answer.snapshot.assignments.add(tc_id=COORDINATOR, broker_service_url=url)
        if url.startswith(ENCRYPTED):
            one.broker_service_url_tls = url
        return pb.Command(watch_tc_assignments_update=answer)

    async def assignment(self, asked: pb.ScalableTopicSubscribe) -> pb.Command:
        """Answer that a stream consumer receives the whole topic; those of one subscription stand by for each other."""
        topic, layout = await self._topics.opened(asked.topic)
        answer = pb.ScalableTopicSubscribeResponse(request_id=asked.request_id)
        answer.assignment.layout_epoch = layout.life
        answer.assignment.segments.add(
            segment_id=ONLY_SEGMENT, hash_start=0, hash_end=HASH_MAX, segment_topic=pulsar_name(topic)
        )
        return pb.Command(scalable_topic_subscribe_response=answer)
