"""Schemas: stored with a version, and returned as they were."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from gateway_world import PATIENCE_MS, Wire, World
from pulsar.schema import Integer, JsonSchema, Record, String

from txnframework.model.metadata import Key, KeyRange, Put
from txnframework_pulsar.schemas import PAGE, SCHEMA_BYTES_MAX
from txnframework_pulsar.wire import messages_pb2 as pb

TOPIC = "persistent://public/default/orders"
JSON, AVRO = 2, 4


def opened(world: World) -> Wire:
    wire = world.wire()
    wire.greet()
    return wire


def schema(data: bytes, kind: int = AVRO) -> pb.Schema:
    found = pb.Schema(name="orders", schema_data=data, type=kind)
    found.properties.add(key="owner", value="shop")
    return found


def create(wire: Wire, asked: pb.Schema) -> Any:
    wire.send(pb.Command(get_or_create_schema=pb.GetOrCreateSchema(request_id=7, topic=TOPIC, schema=asked)))
    return wire.answer("get_or_create_schema_response")


def get(wire: Wire, version: bytes | None = None) -> Any:
    wire.send(pb.Command(get_schema=pb.GetSchema(request_id=8, topic=TOPIC, schema_version=version)))
    return wire.answer("get_schema_response")


def test_versions(world: World) -> None:
    """A schema that is known keeps its version, also at the next gateway and for another client."""
    wire = opened(world)
    assert get(wire).error_code == pb.TOPIC_NOT_FOUND
    first = create(wire, schema(b"one")).schema_version
    assert create(wire, schema(b"one")).schema_version == first
    second = create(opened(world), schema(b"one", JSON)).schema_version
    assert second > first
    world.restart()
    wire = opened(world)
    assert create(wire, schema(b"one")).schema_version == first
    latest, earlier = get(wire), get(wire, first)
    assert (latest.schema_version, latest.schema) == (second, schema(b"one", JSON))
    assert (earlier.schema_version, earlier.schema) == (first, schema(b"one"))
    assert get(wire, (2).to_bytes(8, "big")).error_code == pb.TOPIC_NOT_FOUND
    assert get(wire, b"x" * 100).error_code == pb.TOPIC_NOT_FOUND


@pytest.mark.parametrize("world", ["persistent"], indirect=True)
def test_a_topic_that_migrates_keeps_its_schemas(world: World) -> None:
    """Stored messages name their versions, and consumers ask for them."""
    wire = opened(world)
    first, second = (create(wire, schema(one)).schema_version for one in (b"one", b"two"))
    world.migrate("orders")
    assert get(wire, first).schema == schema(b"one")
    assert create(wire, schema(b"two")).schema_version == second
    assert create(wire, schema(b"three")).schema_version > second


def test_what_is_not_stored(world: World) -> None:
    """Bytes have no schema; one that is too large is refused; those of an earlier topic of this name are gone."""
    wire = opened(world)
    assert create(wire, schema(b"", 0)).schema_version == b""
    assert create(wire, schema(b"x" * (SCHEMA_BYTES_MAX + 1))).error_code == pb.INCOMPATIBLE_SCHEMA
    assert create(wire, schema(b"one")).schema_version == bytes(8)
    world.run(world.client.delete_topic(world.topic("orders")))
    assert create(wire, schema(b"two")).schema_version == bytes(8)
    assert get(wire).schema == schema(b"two")


def test_names_and_properties_count(world: World) -> None:
    """A schema is bounded as a whole."""
    wire = opened(world)
    half = "x" * (SCHEMA_BYTES_MAX // 2)
    for asked in (
        pb.Schema(name=half + half, schema_data=b"x", type=AVRO),
        pb.Schema(name="n", type=AVRO, properties=[pb.KeyValue(key=half, value=half)]),
    ):
        refused = create(wire, asked)
        assert (refused.error_code, "properties" in refused.error_message) == (pb.INCOMPATIBLE_SCHEMA, True)


def test_the_latest_of_many(scalable: World) -> None:
    """Whatever their number is; each keeps its version."""
    wire = opened(scalable)
    for number in range(2 * PAGE + 2):
        version = create(wire, schema(b"%d" % number)).schema_version
        assert version == number.to_bytes(8, "big")
        latest = get(wire)
        assert (latest.schema_version, latest.schema) == (version, schema(b"%d" % number))
    for number in (0, PAGE - 1, PAGE, 2 * PAGE):
        assert create(wire, schema(b"%d" % number)).schema_version == number.to_bytes(8, "big")


def test_answers_wait_for_their_reader(scalable: World) -> None:
    """A client that asks for large schemas and does not read them lets the gateway read and keep only a few."""
    asks, size = 50, SCHEMA_BYTES_MAX - 100
    wire = opened(scalable)
    create(wire, schema(b"x" * size))
    store = scalable.gateways[0].host.metadata
    reads, get_record = 0, store.get

    async def counted(key: Key) -> Any:
        nonlocal reads
        reads += key.path.startswith("/pulsar-schema/")
        return await get_record(key)

    store.get = counted  # type: ignore[method-assign]
    wire.hold_little()
    other = opened(scalable)
    for number in range(asks):
        wire.send(pb.Command(get_schema=pb.GetSchema(request_id=number, topic=TOPIC)))
    for _ in range(asks):  # meanwhile the gateway could have read them all
        other.request("partition_metadata", "partition_metadata_response", topic=TOPIC)
    assert reads < asks
    for _ in range(asks):
        assert len(wire.answer("get_schema_response").schema.schema_data) == size
    assert reads >= asks


def test_producers_and_consumers_bring_schemas(world: World) -> None:
    """A producer stores its schema, and a consumer only if the topic has none."""
    wire = opened(world)

    def subscribe(number: int, data: bytes) -> None:
        command = pb.Subscribe(topic=TOPIC, subscription=f"s{number}", consumer_id=number, request_id=number)
        command.schema.CopyFrom(schema(data))
        wire.send(pb.Command(subscribe=command))
        wire.answer("success")

    subscribe(1, b"one")
    subscribe(2, b"two")
    assert get(wire).schema == schema(b"one")
    command = pb.Producer(topic=TOPIC, producer_id=1, request_id=3, schema=schema(b"three"))
    wire.send(pb.Command(producer=command))
    assert wire.answer("producer_success").schema_version == (1).to_bytes(8, "big")
    assert get(wire).schema == schema(b"three")


class Order(Record):
    item = String()
    count = Integer()


def test_the_client_for_python(world: World) -> None:
    """A message names the version of its schema."""
    client = world.connect()
    consumer = client.subscribe(TOPIC, "s", schema=JsonSchema(Order))
    producer = client.create_producer(TOPIC, schema=JsonSchema(Order))
    producer.send(Order(item="pen", count=3))
    received = consumer.receive(PATIENCE_MS)
    assert (received.value().item, received.value().count) == ("pen", 3)
    stored = get(opened(world))
    assert stored.schema.type == JSON
    assert {one["name"] for one in json.loads(stored.schema.schema_data)["fields"]} == {"item", "count"}


def test_records_of_a_later_release(scalable: World) -> None:
    """They are refused, whatever they contain, and not overwritten."""

    async def raise_formats() -> dict[str, bytes]:
        store = scalable.client.host.metadata
        found = {}
        for prefix in ("/pulsar-schema/", "/pulsar-epoch/"):
            partition = str(scalable.topic("orders"))
            (record,) = (await store.scan(KeyRange(prefix, f"{prefix}~", partition), 10)).records
            value = json.dumps({**json.loads(record.value), "format": 99}).encode()
            await store.put(Put(record.key, value, record.version))
            found[record.key.path] = value
        return found

    async def values(paths: Iterable[str]) -> dict[str, bytes]:
        store, found = scalable.client.host.metadata, {}
        for path in paths:
            record = await store.get(Key(path, str(scalable.topic("orders"))))
            assert record is not None
            found[path] = bytes(record.value)
        return found

    wire = opened(scalable)
    create(wire, schema(b"one"))
    exclusive = {"topic": TOPIC, "producer_access_mode": pb.Producer.EXCLUSIVE}
    wire.request("producer", "producer_success", producer_id=1, **exclusive)
    wire.request("close_producer", "success", producer_id=1)
    stored = scalable.run(raise_formats())
    refused = create(wire, schema(b"two"))
    assert (refused.error_code, "99" in refused.error_message) == (pb.UNKNOWN_ERROR, True)
    assert "99" in wire.request("producer", "error", producer_id=2, **exclusive).message
    assert scalable.run(values(stored)) == stored
