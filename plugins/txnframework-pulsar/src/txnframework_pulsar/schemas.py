"""The schemas of topics, as clients hand them over: stored with a version, and not looked into."""

from __future__ import annotations

import asyncio

from txnframework.client import Client
from txnframework.errors import OutcomeUnknown, VersionMismatch
from txnframework.model.layout import Layout
from txnframework.model.metadata import Expect, Key, KeyRange, Put
from txnframework.model.names import TopicName
from txnframework.model.paths import escape, number20
from txnframework.model.records import Document, decode, encode
from txnframework_pulsar.faults import Refused
from txnframework_pulsar.topics import Topics
from txnframework_pulsar.wire import messages_pb2 as pb

SCHEMA_BYTES_MAX = 256 * 1024
"""The largest schema with its name and properties; every metadata store keeps records of this size."""
VERSIONS_MAX = 1_000
"""The most schemas of one topic."""
PAGE = 8
"""The number of schemas that one request reads at a time."""
READS_MAX = 4
"""The number of requests that compare schemas at a time; with ``PAGE`` it bounds the memory that these take."""
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
        self._reads = asyncio.Semaphore(READS_MAX)

    async def get(self, asked: pb.GetSchema) -> pb.Command:
        """Answer with a schema of a topic: the one of a version, or the latest."""
        topic = self._topics.named(asked.topic)
        origin, life = (await self._client.layout(topic)).created_as
        if asked.schema_version:
            number = int.from_bytes(asked.schema_version, "big")
            found = await self._stored(origin, life, number)
        else:
            number, found = await self._latest(origin, life)
        if found is None:
            raise Refused(pb.TOPIC_NOT_FOUND, f"{topic} has no schema {number if number >= 0 else ''}".rstrip())
        answer = pb.GetSchemaResponse(request_id=asked.request_id, schema_version=_version(number))
        answer.schema.CopyFrom(_to_wire(found))
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
        if _bytes_of(schema) > SCHEMA_BYTES_MAX:
            reason = f"a schema has at most {SCHEMA_BYTES_MAX} bytes, with its name and properties"
            raise Refused(pb.INCOMPATIBLE_SCHEMA, reason)
        origin, life = layout.created_as
        wanted = _of_wire(schema, life)
        store = self._client.host.metadata
        while True:
            # Schemas are only added, so a version that was found stays. Of two processes that add one at a time, the
            # one that is refused reads again.
            async with self._reads:
                found, number, expected = await self._compare(origin, wanted)
            if found is not None:
                return _version(found)
            if first and number:
                return b""
            if number >= VERSIONS_MAX:
                raise Refused(pb.INCOMPATIBLE_SCHEMA, f"{topic} has {VERSIONS_MAX} schemas")
            try:
                await store.put(Put(_key(origin, number), encode(wanted), expected))
            except (VersionMismatch, OutcomeUnknown):
                continue
            return _version(number)

    async def _compare(self, topic: TopicName, wanted: _Stored) -> tuple[int | None, int, int | Expect]:
        """
        Return the version of an equal schema, or None and the number of schemas.

        The third value is the version of the record in the place of the next one: records of an earlier life of the
        topic come after those of this one.
        """
        number, left = 0, KeyRange(_key(topic, 0).path, _key(topic, VERSIONS_MAX).path, str(topic))
        while True:
            page = await self._client.host.metadata.scan(left, PAGE)
            for record in page.records:
                one = decode(_Stored, record)
                if one.life != wanted.life:
                    return None, number, record.version
                if (one.type, one.data) == (wanted.type, wanted.data):
                    return number, number, record.version
                number += 1
            if not isinstance(page.resume, KeyRange):
                return None, number, Expect.ABSENT
            left = page.resume

    async def _stored(self, topic: TopicName, life: int, number: int) -> _Stored | None:
        if not 0 <= number < VERSIONS_MAX:
            return None
        record = await self._client.host.metadata.get(_key(topic, number))
        found = None if record is None else decode(_Stored, record)
        return found if found is not None and found.life == life else None

    async def _latest(self, topic: TopicName, life: int) -> tuple[int, _Stored | None]:
        """Return the last version and its schema, by bisection: one is in memory at a time. -1: there is none."""
        number, latest, step, is_halving = -1, None, 1, False
        while step:
            found = await self._stored(topic, life, number + step)
            if found is None:
                # From the first miss on, the distance to the end is less than the step.
                is_halving, step = True, step // 2
            else:
                number, latest = number + step, found
                step = step // 2 if is_halving else step * 2
        return number, latest


def _key(topic: TopicName, number: int) -> Key:
    return Key(f"/pulsar-schema/{escape(str(topic))}/{number20(number)}", str(topic))


def _version(number: int) -> bytes:
    return number.to_bytes(VERSION_BYTES, "big")


def _bytes_of(schema: pb.Schema) -> int:
    described = sum(len(one.key.encode()) + len(one.value.encode()) for one in schema.properties)
    return len(schema.schema_data) + len(schema.name.encode()) + described


def _of_wire(schema: pb.Schema, life: int) -> _Stored:
    properties = {one.key: one.value for one in schema.properties}
    return _Stored(life, schema.type, schema.name, schema.schema_data, properties)


def _to_wire(stored: _Stored) -> pb.Schema:
    found = pb.Schema(name=stored.name, schema_data=stored.data, type=stored.type)
    for key, value in stored.properties.items():
        found.properties.add(key=key, value=value)
    return found
