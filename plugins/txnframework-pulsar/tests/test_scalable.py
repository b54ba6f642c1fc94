"""What clients of Pulsar 5 ask, and how their stream consumers share a subscription."""

from __future__ import annotations

import pytest
from gateway_world import NOTHING_MS, World

from txnframework_pulsar.wire import messages_pb2 as pb

NAME = "topic://public/default/orders"
SERVED = "persistent://public/default/orders"


def test_layout_is_one_segment(world: World) -> None:
    """Whatever segments the topic has; it is created if it does not exist."""
    wire = world.wire()
    wire.greet()
    wire.send(pb.Command(scalable_topic_lookup=pb.ScalableTopicLookup(session_id=7, topic=NAME)))
    found = wire.answer("scalable_topic_update")
    (segment,) = found.layout.segments
    assert (found.session_id, found.resolved_topic_name) == (7, NAME)
    assert (segment.hash_start, segment.hash_end, segment.legacy_topic_name) == (0, 0xFFFF, SERVED)
    # Clients close the connection if one of these is left out.
    assert all(segment.HasField(name) for name in ("segment_id", "state", "created_at_epoch", "created_at_ms"))
    assert [one.broker_url for one in found.layout.segment_brokers] == [world.url]
    assert found.layout.controller_broker_url == world.url
    wire.send(pb.Command(scalable_topic_close=pb.ScalableTopicClose(session_id=7)))
    assert wire.request("partition_metadata", "partition_metadata_response", topic=SERVED).partitions == 0
    assert len(world.run(world.client.list_topics())) == 1


@pytest.mark.parametrize("name", ["", "non-persistent://public/default/orders", "topic://public/default/__internal"])
def test_lookup_of_what_is_not_served(world: World, name: str) -> None:
    wire = world.wire()
    wire.greet()
    wire.send(pb.Command(scalable_topic_lookup=pb.ScalableTopicLookup(session_id=7, topic=name)))
    found = wire.answer("scalable_topic_update")
    assert (found.session_id, found.error) == (7, pb.INVALID_TOPIC_NAME)
    assert found.message


def test_coordinator(world: World) -> None:
    wire = world.wire()
    wire.greet()
    wire.send(pb.Command(watch_tc_assignments=pb.WatchCoordinators(watch_id=3)))
    found = wire.answer("watch_tc_assignments_update")
    assert (found.watch_id, found.snapshot.parallelism) == (3, 1)
    assert [(one.tc_id, one.broker_service_url) for one in found.snapshot.assignments] == [(0, world.url)]
    wire.send(pb.Command(watch_tc_assignments_close=pb.WatchCoordinatorsClose(watch_id=3)))
    wire.send(pb.Command(ping=pb.Ping()))
    wire.answer("pong")


def test_gateway_that_does_not_serve(scalable: World) -> None:
    """It says where topics are served, and leaves transactions and stream consumers to the other one."""
    other, _ = scalable.add_gateway()
    wire = scalable.wire(other)
    wire.greet()
    wire.send(pb.Command(scalable_topic_lookup=pb.ScalableTopicLookup(session_id=7, topic=NAME)))
    assert wire.answer("scalable_topic_update").layout.controller_broker_url == scalable.url
    wire.send(pb.Command(watch_tc_assignments=pb.WatchCoordinators(watch_id=3)))
    assert wire.answer("watch_tc_assignments_update").error == pb.TRANSACTION_COORDINATOR_NOT_FOUND
    asked = {"topic": NAME, "subscription": "stream", "consumer_id": 1}
    refused = wire.request("scalable_topic_subscribe", "scalable_topic_subscribe_response", **asked)
    assert refused.error == pb.SERVICE_NOT_READY


def test_stream_consumers_stand_by_for_each_other(scalable: World) -> None:
    """Each stream consumer subscribes exclusively; another consumer of that type is refused."""
    sender = scalable.connect().create_producer(SERVED)
    streams = [scalable.wire() for _ in range(2)]
    for number, wire in enumerate(streams, 1):
        wire.greet()
        asked = {"topic": NAME, "subscription": "stream", "consumer_id": number}
        answer = wire.request("scalable_topic_subscribe", "scalable_topic_subscribe_response", **asked)
        (segment,) = answer.assignment.segments
        assert (segment.hash_start, segment.hash_end, segment.segment_topic) == (0, 0xFFFF, SERVED)
        subscribed = {"topic": segment.segment_topic, "subscription": "stream", "consumer_id": number + 10}
        wire.request("subscribe", "success", **subscribed)
        wire.send(pb.Command(flow=pb.Flow(consumer_id=number + 10, message_permits=10)))
    alone = scalable.wire()
    alone.greet()
    refused = alone.request("subscribe", "error", topic=SERVED, subscription="stream", consumer_id=1)
    assert refused.error == pb.CONSUMER_BUSY
    sender.send(b"1")
    assert streams[0].message().rest.tobytes().endswith(b"1")
    assert streams[1].is_silent(NOTHING_MS)
    streams[0].shut()
    assert streams[1].message().rest.tobytes().endswith(b"1")


def test_stream_consumers_are_bounded(scalable: World) -> None:
    wire = scalable.wire()
    wire.greet()
    asked = {"topic": NAME, "subscription": "s" * 1_000, "consumer_id": 1}
    refused = wire.request("scalable_topic_subscribe", "scalable_topic_subscribe_response", **asked)
    assert refused.error == pb.NOT_ALLOWED_ERROR
