"""What the gateway stores: this release reads what earlier ones wrote, and writes other bytes only in a new version.

Its documents have the format of the core's documents, which refuses unknown numbers.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from txnframework.model.metadata import Key, Record
from txnframework.model.names import TopicName
from txnframework.model.records import Document, decode, encode
from txnframework.testing.stored_samples import StoredSample, check_read, check_refused, check_written
from txnframework_pulsar import schemas, topic_epochs
from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.batches import METADATA_HEADER, Outgoing, unpack

SAMPLES = Path(__file__).parent / "samples"
TOPIC = TopicName.parse("topic://public/default/orders")
EPOCH = topic_epochs._Epoch(2, 5)
SCHEMA = schemas._Stored(2, 4, "order", b'{"type":"string"}', {"owner": "ada"})
REST = pb.MessageMetadata(
    partition_key_b64_encoded=True,
    compression=pb.ZLIB,
    uncompressed_size=9,
    event_time=1_600_000_000_000,
    encryption_keys=[pb.KeyValue(key="k", value="v")],
    schema_version=b"\0" * 8,
    ordering_key=b"o",
    deliver_at_time=1_700_000_100_000,
    uuid="u",
)
METADATA = pb.MessageMetadata(
    producer_name="printer",
    sequence_id=5,
    publish_time=1_700_000_000_000,
    properties=[pb.KeyValue(key="kind", value="invoice")],
    partition_key="a2V5",
)
METADATA.MergeFrom(REST)


def document(name: str, value: Document, key: Key) -> StoredSample:
    """Return the sample of a document."""
    return StoredSample(
        f"{name}.json",
        value.format,
        value,
        lambda: encode(value),
        lambda data: decode(type(value), Record(key, data, 1)),
        refused_as=f"record {key.path}",
    )


def stored_metadata() -> bytes:
    """Return the header of a message with every field that is stored in it."""
    (outgoing,) = unpack(METADATA, b"compressed", 100)
    assert outgoing == Outgoing(b"compressed", b"key", outgoing.headers, 5, METADATA.deliver_at_time)
    return outgoing.headers[METADATA_HEADER]


PLACES = {
    "epoch": (topic_epochs._key(TOPIC).path, topic_epochs._key(TOPIC).partition),
    "schema": (schemas._key(TOPIC, 3).path, schemas._key(TOPIC, 3).partition),
    "header": METADATA_HEADER,
}
SAMPLED = [
    document("epoch", EPOCH, topic_epochs._key(TOPIC)),
    document("schema", SCHEMA, schemas._key(TOPIC, 3)),
    StoredSample("metadata.bin", 1, REST, stored_metadata, pb.MessageMetadata.FromString),
    StoredSample(
        "places.json",
        1,
        msgspec.json.decode(msgspec.json.encode(PLACES)),
        lambda: msgspec.json.format(msgspec.json.encode(PLACES)),
        msgspec.json.decode,
    ),
]


def test_written() -> None:
    """This release writes the bytes of the files, or a version that has no file yet."""
    check_written(SAMPLES, SAMPLED)


def test_read() -> None:
    """This release reads the files, and finds what was written."""
    check_read(SAMPLES, SAMPLED)


def test_later_versions() -> None:
    """A version that is not known is refused by its name, and each place that refuses one has a sample."""
    check_refused(SAMPLED, "txnframework_pulsar")
