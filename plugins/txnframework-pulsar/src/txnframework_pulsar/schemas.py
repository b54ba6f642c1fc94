"""The schemas of topics, as clients hand them over: stored with a version, and not looked into."""

from __future__ import annotations

from txnframework.client import Client
from txnframework.errors import OutcomeUnknown, VersionMismatch
from txnframework.model.layout import Layout
from txnframework.model.metadata import Expect, Key, KeyRange, Put, Record
from txnframework.model.names import TopicName
from txnframework.model.paths import escape, number20
from txnframework.model.records import Document, decode, encode
from txnframework_pulsar.faults import Refused
from txnframework_pulsar.topics import Topics
from txnframework_pulsar.wire import messages_pb2 as pb

SCHEMA_BYTES_MAX = 256 * 1024
"""The largest schema; every metadata store keeps records of this size."""
VERSIONS_MAX = 1_000
"""The most schemas of one topic."""
VERSION_BYTES = 8
BYTES_TYPE = 0
AUTO_CONSUME_TYPE = 21
_NOT_STORED = frozenset({BYTES_TYPE, AUTO_CONSUME_TYPE})
"""Types that say nothing about the contents."""


class _Stored(Document):
    """``life``: the first life of the topic that the schema belongs to."""

    life: int
    type: int
    name: str
    data: bytes
    properties: dict[str, str]


class Schemas:
    """
    Stores the schemas of topics; a schema that is stored already keeps its version, also when the topic migrates.

    Whether a new schema fits the earlier ones is not checked: clients read each message by the version that it names.
    """

    def __init__(self, client: Client, topics: Topics) -> None:
        self._client = client
        self._topics = topics

    async def get(self, asked: pb.GetSchema) -> pb.Command:
        """Answer with a schema of a topic: the one of a version, or the latest."""
        topic = self._topics.named(asked.topic)
        layout = await self._client.layout(topic)
        stored = await self._all(layout)
        number = len(stored) - 1
        if asked.schema_version:
            number = int.from_bytes(asked.schema_version, "big")
        if not 0 <= number < len(stored):
            raise Refused(pb.TOPIC_NOT_FOUND, f"{topic} has no schema {number if stored else ''}".rstrip())
        answer = pb.GetSchemaResponse(request_id=asked.request_id, schema_version=_version(number))
        answer.schema.CopyFrom(_to_wire(stored[number]))
        return pb.Command(get_schema_response=answer)

    async def get_or_create(self, asked: pb.GetOrCreateSchema) -> pb.Command:
        """Answer with the version of a schema, and store it if the topic does not have it."""
        topic, layout = await self._topics.opened(asked.topic)
        version = await self.version_of(topic, layout, asked.schema)
        answer = pb.GetOrCreateSchemaResponse(request_id=asked.request_id, schema_version=version)
        return pb.Command(get_or_create_schema_response=answer)

    async def version_of(self, topic: TopicName, layout: Layout, schema: pb.Schema, *, first: bool = False) -> bytes:
        """
        Return the version of a schema, and store it if the topic does not have it; empty: contents are bytes.

        :param first: store the schema only if the topic has none, as for consumers, which write nothing.
        :raises Refused: the schema is too large, or the topic has too many.
        """
        if schema.type in _NOT_STORED:
            return b""
        if len(schema.schema_data) > SCHEMA_BYTES_MAX:
            raise Refused(pb.INCOMPATIBLE_SCHEMA, f"a schema has at most {SCHEMA_BYTES_MAX} bytes")
        origin, life = layout.created_as
        wanted = _of_wire(schema, life)
        store = self._client.host.metadata
        while True:
            # Schemas are only added, so a version that was found stays. Of two processes that add one at a time, the
            # one that is refused reads again.
            records = await self._records(origin)
            stored = [one for one in (decode(_Stored, one) for one in records) if one.life == life]
            for number, one in enumerate(stored):
                if (one.type, one.data) == (wanted.type, wanted.data):
                    return _version(number)
            if first and stored:
                return b""
            if len(stored) >= VERSIONS_MAX:
                raise Refused(pb.INCOMPATIBLE_SCHEMA, f"{topic} has {VERSIONS_MAX} schemas")
            number = len(stored)
            expected = records[number].version if number < len(records) else Expect.ABSENT
            try:
                await store.put(Put(_key(origin, number), encode(wanted), expected))
            except (VersionMismatch, OutcomeUnknown):
                continue
            return _version(number)

    async def _all(self, layout: Layout) -> list[_Stored]:
        origin, life = layout.created_as
        return [one for one in (decode(_Stored, one) for one in await self._records(origin)) if one.life == life]

    async def _records(self, topic: TopicName) -> tuple[Record, ...]:
        """Return the records in the order of their versions; those of an earlier life of the topic come last."""
        start = _key(topic, 0)
        page = await self._client.host.metadata.scan(
            KeyRange(start.path, _key(topic, VERSIONS_MAX).path, start.partition), VERSIONS_MAX
        )
        return page.records


def _key(topic: TopicName, number: int) -> Key:
    return Key(f"/pulsar-schema/{escape(str(topic))}/{number20(number)}", str(topic))


def _version(number: int) -> bytes:
    return number.to_bytes(VERSION_BYTES, "big")


def _of_wire(schema: pb.Schema, life: int) -> _Stored:
    properties = {one.key: one.value for one in schema.properties}
    return _Stored(life, schema.type, schema.name, schema.schema_data, properties)


def _to_wire(stored: _Stored) -> pb.Schema:
    found = pb.Schema(name=stored.name, schema_data=stored.data, type=stored.type)
    for key, value in stored.properties.items():
        found.properties.add(key=key, value=value)
    return found
