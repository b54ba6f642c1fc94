"""Pulsar's own client for Python, unchanged, against the gateway."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable

import pulsar
import pytest
from gateway_world import NOTHING_MS, PATIENCE_MS, World
from pulsar import CompressionType, ConsumerType, InitialPosition

from txnframework_pulsar.wire import messages_pb2 as pb

TOPIC = "persistent://public/default/orders"


def subscribe(client: pulsar.Client, name: str = "s", **options: object) -> pulsar.Consumer:
    return client.subscribe(TOPIC, name, initial_position=InitialPosition.Earliest, **options)


def received(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """Receive and acknowledge so many messages."""
    found = []
    for _ in range(count):
        message = consumer.receive(PATIENCE_MS)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


def nothing(consumer: pulsar.Consumer) -> bool:
    """Return whether no message comes."""
    try:
        consumer.receive(NOTHING_MS)
    except pulsar.Timeout:
        return True
    return False


def send_all(producer: pulsar.Producer, contents: Iterable[bytes], **options: object) -> None:
    """Send without waiting for each message, so that they are batched where the producer does that."""
    failed: list[object] = []
    for one in contents:
        producer.send_async(
            one, lambda result, _: failed.append(result) if result != pulsar.Result.Ok else None, **options
        )
    producer.flush()
    assert not failed


def test_a_message_arrives_with_what_belongs_to_it(world: World) -> None:
    client = world.connect()
    consumer = subscribe(client)
    producer = client.create_producer(TOPIC, "shop")
    sent = producer.send(b"a", properties={"colour": "red"}, partition_key="k", event_timestamp=7, ordering_key="o")
    message = consumer.receive(PATIENCE_MS)
    assert (message.data(), message.properties(), message.partition_key()) == (b"a", {"colour": "red"}, "k")
    assert (message.event_timestamp(), message.ordering_key(), message.producer_name()) == (7, "o", "shop")
    assert (message.topic_name(), message.redelivery_count(), message.message_id()) == (TOPIC, 0, sent)
    consumer.acknowledge(message)
    assert nothing(consumer)


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_batches_arrive_in_order(world: World, compression: str) -> None:
    """Compressed or not; each message has its own key, as the framework's consumers see it too."""
    client = world.connect()
    producer = client.create_producer(
        TOPIC, batching_enabled=True, compression_type=getattr(CompressionType, compression)
    )
    contents = [b"%d" % number for number in range(50)]
    send_all(producer, contents, partition_key="k", properties={"p": "q"})
    assert received(subscribe(client), 50) == contents

    async def read() -> list[tuple[bytes | None, bytes | None, bytes]]:
        reader = await world.client.reader(world.topic("orders"))
        return [(one.value, one.key, one.headers["p"]) async for one in reader]

    assert world.run(read()) == [(one, b"k", b"q") for one in contents]


@pytest.mark.parametrize("compression", ["LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_a_compressed_message_is_passed_on(world: World, compression: str) -> None:
    client = world.connect()
    consumer = subscribe(client)
    client.create_producer(TOPIC, compression_type=getattr(CompressionType, compression)).send(b"a" * 10_000)
    assert received(consumer, 1) == [b"a" * 10_000]


def test_clients_of_both_kinds_share_a_topic(world: World) -> None:
    """Headers and keys that are not text arrive encoded; a null is a null."""

    async def send() -> None:
        await world.client.create_topic(world.topic("orders"), exist_ok=True)
        async with await world.client.producer(world.topic("orders"), name="native") as producer:
            await producer.send(b"a", key=b"\xff", headers={"h": b"text", "b": b"\xff"})
            await producer.send_many([b"b", b"c"], key=b"k")

    world.run(send())
    client = world.connect()
    consumer = subscribe(client)
    first = consumer.receive(PATIENCE_MS)
    consumer.acknowledge(first)
    assert (first.data(), first.properties(), first.producer_name()) == (b"a", {"h": "text", "b": "\\xff"}, "native")
    assert received(consumer, 2) == [b"b", b"c"]


def test_acknowledged_messages_do_not_come_again(world: World) -> None:
    """Not after the consumer left, and not from another gateway; the others do, with the same ids."""
    client = world.connect()
    producer = client.create_producer(TOPIC)
    for number in range(4):
        producer.send(b"%d" % number)
    consumer = subscribe(client, consumer_type=ConsumerType.Shared)
    given = [consumer.receive(PATIENCE_MS) for _ in range(4)]
    consumer.acknowledge(given[0])
    consumer.acknowledge(given[2])
    consumer.close()
    client.close()
    world.restart()
    again = subscribe(world.connect(), consumer_type=ConsumerType.Shared)
    left = [again.receive(PATIENCE_MS) for _ in range(2)]
    assert [one.data() for one in left] == [b"1", b"3"]
    assert [one.message_id() for one in left] == [given[1].message_id(), given[3].message_id()]
    assert nothing(again)


def test_a_client_survives_a_restart_of_the_gateway(world: World) -> None:
    """It connects again by itself; messages in flight are stored once, and acknowledgments by old ids count."""
    client = world.connect()
    producer = client.create_producer(TOPIC)
    consumer = subscribe(client)
    producer.send(b"before")
    message = consumer.receive(PATIENCE_MS)
    world.restart()
    producer.send(b"after")
    found = [consumer.receive(PATIENCE_MS) for _ in range(2)]
    assert [one.data() for one in found] == [b"before", b"after"]
    assert found[0].message_id() == message.message_id()
    for one in (message, found[1]):
        consumer.acknowledge(one)
    consumer.close()
    assert nothing(subscribe(client))


def test_a_cumulative_acknowledgment_covers_what_came_before(world: World) -> None:
    client = world.connect()
    producer = client.create_producer(TOPIC, batching_enabled=True)
    send_all(producer, [b"%d" % number for number in range(20)])
    consumer = subscribe(client, consumer_type=ConsumerType.Failover)
    given = [consumer.receive(PATIENCE_MS) for _ in range(20)]
    consumer.acknowledge_cumulative(given[14])
    consumer.close()
    assert received(subscribe(client, consumer_type=ConsumerType.Failover), 5) == [
        b"%d" % number for number in range(15, 20)
    ]


def test_messages_come_again_on_request(world: World) -> None:
    """In order, with a count, for a negative acknowledgment and for all that is not acknowledged."""
    client = world.connect()
    producer = client.create_producer(TOPIC)
    for number in range(5):
        producer.send(b"%d" % number)
    consumer = subscribe(client, negative_ack_redelivery_delay_ms=100)
    for number in range(5):
        assert consumer.receive(PATIENCE_MS).data() == b"%d" % number
    consumer.redeliver_unacknowledged_messages()
    given = [consumer.receive(PATIENCE_MS) for _ in range(5)]
    assert [one.data() for one in given] == [b"%d" % number for number in range(5)]
    for one in given[1:]:
        consumer.acknowledge(one)
    consumer.negative_acknowledge(given[0])
    again = consumer.receive(PATIENCE_MS)
    assert again.data() == b"0"
    assert again.redelivery_count() > 0
    consumer.acknowledge(again)
    assert nothing(consumer)


@pytest.mark.parametrize("kind", ["Shared", "KeyShared"])
def test_consumers_share_a_subscription(scalable: World, kind: str) -> None:
    """Each message goes to one of them; with KeyShared, each key too."""
    client = scalable.connect()
    type_ = getattr(ConsumerType, kind)
    consumers = [subscribe(client, consumer_type=type_, receiver_queue_size=1) for _ in range(2)]
    producer = client.create_producer(TOPIC)
    for number in range(40):
        producer.send(b"%d" % number, partition_key=f"k{number % 8}")
    found: list[list[tuple[str, bytes]]] = [[], []]
    done = threading.Semaphore(0)

    def work(at: int) -> None:
        with contextlib.suppress(pulsar.PulsarException):
            while True:
                message = consumers[at].receive()
                consumers[at].acknowledge(message)
                found[at].append((message.partition_key(), message.data()))
                done.release()

    threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
    for one in threads:
        one.start()
    for _ in range(40):
        assert done.acquire(timeout=PATIENCE_MS / 1_000)
    for consumer in consumers:
        consumer.close()
    for one in threads:
        one.join()
    assert sorted(int(data) for _, data in found[0] + found[1]) == list(range(40))
    if kind == "KeyShared":
        assert not {key for key, _ in found[0]} & {key for key, _ in found[1]}


def test_an_exclusive_subscription_has_one_consumer(world: World) -> None:
    client = world.connect()
    first = subscribe(client)
    with pytest.raises(pulsar.ConsumerBusy):
        subscribe(world.connect())
    first.close()
    subscribe(world.connect())


def test_a_second_failover_consumer_takes_over(world: World) -> None:
    client, other = world.connect(), world.connect()
    first, second = (subscribe(one, consumer_type=ConsumerType.Failover) for one in (client, other))
    producer = other.create_producer(TOPIC)
    producer.send(b"a")
    producer.send(b"b")
    assert received(first, 1) == [b"a"]
    first.close()
    assert received(second, 1) == [b"b"]


def test_a_subscription_is_moved(world: World) -> None:
    """To an end, to a message, and to a time."""
    client = world.connect()
    producer = client.create_producer(TOPIC)
    sent = [producer.send(b"%d" % number) for number in range(5)]
    consumer = subscribe(client, start_message_id_inclusive=True)
    assert received(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
    consumer.seek(sent[3])
    assert received(consumer, 2) == [b"3", b"4"]
    consumer.seek(pulsar.MessageId.earliest)
    assert received(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
    consumer.seek(0)
    assert received(consumer, 1) == [b"0"]
    consumer.seek(pulsar.MessageId.latest)
    assert nothing(consumer)
    producer.send(b"5")
    assert received(consumer, 1) == [b"5"]


def test_a_reader_begins_where_it_is_told(world: World) -> None:
    """It knows whether there is more, and leaves no subscription."""
    client = world.connect()
    producer = client.create_producer(TOPIC, batching_enabled=True)
    send_all(producer, [b"a", b"b", b"c"])
    sent = client.create_producer(TOPIC).send(b"d")

    def read(start: pulsar.MessageId, **options: object) -> list[bytes]:
        reader = client.create_reader(TOPIC, start, **options)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(PATIENCE_MS).data())
        reader.close()
        return found

    assert read(pulsar.MessageId.earliest) == [b"a", b"b", b"c", b"d"]
    assert read(sent) == []
    assert read(sent, start_message_id_inclusive=True) == [b"d"]
    assert read(pulsar.MessageId.latest) == []
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    first = [reader.read_next(PATIENCE_MS) for _ in range(3)]
    reader.seek(first[0].message_id())
    assert reader.read_next(PATIENCE_MS).data() == b"b"
    reader.seek(1)
    assert reader.has_message_available()
    assert reader.read_next(PATIENCE_MS).data() == b"a"
    reader.close()
    assert world.run(world.client.layout(world.topic("orders"))).subscriptions == ()


def test_a_producer_with_a_name_counts_on(world: World) -> None:
    """Another program that sends under the name loses no message to the check for copies."""
    client = world.connect()
    producer = client.create_producer(TOPIC, "shop")
    for one in (b"a", b"b"):
        producer.send(one)
    with pytest.raises(pulsar.ProducerBusy):
        world.connect().create_producer(TOPIC, "shop")
    producer.close()
    later = client.create_producer(TOPIC, "shop")
    assert later.last_sequence_id() == 1
    later.send(b"c")
    assert received(subscribe(client), 3) == [b"a", b"b", b"c"]
    later.close()
    # A program that counts by itself sends a message again: it is stored once.
    client.create_producer(TOPIC, "shop", initial_sequence_id=1).send(b"c")
    assert received(subscribe(client, "other"), 3) == [b"a", b"b", b"c"]
    assert nothing(subscribe(client, "other2")) is False


def test_a_null_deletes_its_key(world: World) -> None:
    """A table keeps the last value of each key, and nothing for a null."""
    client = world.connect()
    producer = client.create_producer(TOPIC)
    for key, value in (("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"")):
        producer.send(value, partition_key=key)
    table = client.create_table_view(TOPIC)
    assert table.get("a") == b"3"
    table.close()


def test_patterns_find_topics(world: World) -> None:
    client = world.connect()
    for name in ("orders-1", "orders-2", "invoices"):
        client.create_producer(f"persistent://public/default/{name}").send(name.encode())
    consumer = client.subscribe(
        re.compile("persistent://public/default/orders-.*"), "s", initial_position=InitialPosition.Earliest
    )
    assert sorted(received(consumer, 2)) == [b"orders-1", b"orders-2"]
    assert nothing(consumer)


def test_a_deleted_subscription_begins_anew(world: World) -> None:
    client = world.connect()
    client.create_producer(TOPIC).send(b"a")
    consumer = subscribe(client)
    assert received(consumer, 1) == [b"a"]
    consumer.unsubscribe()
    assert received(subscribe(client), 1) == [b"a"]


def test_keys_keep_their_order_while_a_topic_is_split(scalable: World) -> None:
    """Segments do not show: the client has one topic, and acknowledges cumulatively in the order it received."""
    client = scalable.connect()
    producer = client.create_producer(TOPIC, batching_enabled=True)
    consumer = subscribe(client)
    keys = [f"k{number}" for number in range(8)]
    for number in range(0, 40):
        if number == 20:
            scalable.run(scalable.client.split("topic://public/default/orders", 0))
        send_all(producer, [b"%d" % number] * 1, partition_key=keys[number % 8])
    found: dict[str, list[int]] = {}
    ids = set()
    for number in range(40):
        message = consumer.receive(PATIENCE_MS)
        found.setdefault(message.partition_key(), []).append(int(message.data()))
        ids.add(str(message.message_id()))
        if number == 29:
            consumer.acknowledge_cumulative(message)
    assert found == {key: list(range(at, 40, 8)) for at, key in enumerate(keys)}
    assert len(ids) == 40
    consumer.close()
    again = subscribe(client)
    assert len(received(again, 10)) == 10
    assert nothing(again)


def test_names_that_are_refused(world: World) -> None:
    """Those of topics that are not stored, and of internal ones."""
    wire = world.wire()
    wire.greet()
    for name in ("non-persistent://public/default/a", "persistent://public/default/__internal", "a/b", ""):
        answer = wire.request("producer", "error", topic=name, producer_id=1)
        assert answer.error == pb.INVALID_TOPIC_NAME
