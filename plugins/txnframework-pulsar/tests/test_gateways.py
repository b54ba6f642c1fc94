"""Several gateways over the same stores: one serves, and the others send clients to it."""

from __future__ import annotations

import pytest
from gateway_world import PATIENCE_MS, Wire, World

from txnframework.model.paths import lease_key
from txnframework_pulsar.wire import messages_pb2 as pb

TOPIC = "persistent://public/default/orders"


def opened(world: World, url: str) -> Wire:
    wire = world.wire(url)
    wire.greet()
    return wire


def lookup(wire: Wire) -> pb.LookupTopicResponse:
    answer: pb.LookupTopicResponse = wire.request("lookup_topic", "lookup_topic_response", topic=TOPIC)
    return answer


def test_a_gateway_that_does_not_serve(world: World) -> None:
    """It names the one that does, and carries out nothing itself."""
    other, _ = world.add_gateway()
    wire = opened(world, other)
    answer = lookup(wire)
    assert (answer.response, answer.broker_service_url) == (pb.LookupTopicResponse.REDIRECT, world.url)
    here = lookup(opened(world, world.url))
    assert (here.response, here.broker_service_url) == (pb.LookupTopicResponse.CONNECT, world.url)
    assert wire.request("producer", "error", topic=TOPIC, producer_id=1).error == pb.SERVICE_NOT_READY
    refused = wire.request("subscribe", "error", topic=TOPIC, subscription="s", consumer_id=1)
    assert refused.error == pb.SERVICE_NOT_READY
    begun = wire.request("new_txn", "new_txn_response", timeout_ms=60_000)
    assert begun.error == pb.TRANSACTION_COORDINATOR_NOT_FOUND


def test_clients_of_two_gateways(world: World) -> None:
    """They share producers and consumers, as if they had connected to one; and so when the other one serves."""
    other, _ = world.add_gateway()
    producer = world.connect(f"{world.url},{other.removeprefix('pulsar://')}").create_producer(TOPIC)
    consumer = world.connect(f"{other},{world.url.removeprefix('pulsar://')}").subscribe(TOPIC, "s")
    producer.send(b"0")
    consumer.acknowledge(consumer.receive(PATIENCE_MS))
    world.stop()
    producer.send(b"1")
    while consumer.receive(PATIENCE_MS).data() != b"1":
        pass  # the first one comes again if its acknowledgment was lost
    assert lookup(opened(world, other)).response == pb.LookupTopicResponse.CONNECT
    world.start()
    assert lookup(opened(world, world.url)).response == pb.LookupTopicResponse.REDIRECT


@pytest.mark.parametrize("crashes", [True, False])
def test_a_turn_that_is_lost(scalable: World, crashes: bool) -> None:
    """The connections end, and the other gateway serves, whether the session ended or the gateway was stopped."""
    other, _ = scalable.add_gateway()
    wire = opened(scalable, scalable.url)
    wire.request("producer", "producer_success", topic=TOPIC, producer_id=1)
    if crashes:
        (gateway,) = scalable.gateways

        async def end_session() -> None:
            gateway.host.metadata.crash()  # type: ignore[attr-defined]

        scalable.run(end_session())
    else:
        scalable.stop()
    assert wire.read() is None

    lease = lease_key("pulsar-gateway/topic")

    async def wait_for_the_turn() -> None:
        watch = await scalable.client.host.metadata.watch(lease)
        try:
            while [one.holder for one in await scalable.client.leases("pulsar-gateway/")] != [other]:
                await watch.changed()
        finally:
            await watch.close()

    scalable.run(wait_for_the_turn())
    answer = lookup(opened(scalable, other))
    assert answer.broker_service_url == other
