"""Reads of one record, including values stored in chunks."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from txnframework.errors import Corrupt, CorruptRecord, Unavailable
from txnframework.model import Key, Record
from txnframework_zookeeper._known import Known
from txnframework_zookeeper.connection._requests import Node
from txnframework_zookeeper.connection._zookeeper import ZooKeeper
from txnframework_zookeeper.tree._chunks import Chunks
from txnframework_zookeeper.tree._layout import partition_mark
from txnframework_zookeeper.tree._records import Standing, decode_node

_READ_TOGETHER_MAX = 16


class Found(NamedTuple):
    """A record and its cached state; a record with chunks has no value until it is completed."""

    record: Record
    standing: Standing


def value_in(key: Key, node: Node) -> bytes | None:
    """Return the value stored in a record's node; None if it is in chunks, or cannot be read."""
    try:
        record, standing = decode_node(key.path, partition_mark(key.path, key.partition), node)
    except Corrupt:
        return None
    return record.value if standing.chunks is None else None


class Reading:
    """Reads records for one client, and caches their state."""

    def __init__(self, zookeeper: ZooKeeper, known: Known, attempts_max: int) -> None:
        self._zookeeper = zookeeper
        self._known = known
        self._attempts_max = attempts_max

    async def record(self, path: str, mark: str, node: str) -> Record | None:
        """Return the current record, or None if it does not exist; raises the errors of ``completed``."""
        head = await self.head(path, mark, node, is_current=True)
        found = None if head is None else await self.completed(mark, node, head)
        return None if found is None else found.record

    async def head(self, path: str, mark: str, node: str, is_current: bool) -> Found | None:
        """
        Return the content of a record's node, or None if the node does not exist.

        :raises CorruptRecord: the node's data cannot be read.
        """
        found = await self._zookeeper.get(node, is_current)
        if found is None:
            self._known.records.forget(node)
            return None
        record, standing = decode_node(path, mark, found)
        self._known.records.note(node, standing)
        return Found(record, standing)

    async def completed(self, mark: str, node: str, head: Found) -> Found | None:
        """
        Return a record with its current value, or None if it was deleted.

        The chunks that a head names exist as long as the head. If one is missing, the head was replaced or deleted.

        :raises CorruptRecord: the head names chunks that do not exist.
        :raises Unavailable: the record was replaced in every attempt to read its chunks.
        """
        path = head.record.key.path
        for _ in range(self._attempts_max):
            record, standing = head
            if standing.chunks is None:
                return head
            value = await self._value(path, standing.chunks)
            if value is not None:
                return Found(Record(record.key, value, record.version), standing)
            again = await self.head(path, mark, node, is_current=True)
            if again is None:
                return None
            if again.record.version == record.version:
                raise CorruptRecord(path, "its value", f"a chunk below {standing.chunks.node} is not there")
            head = again
        raise Unavailable(f"{self._zookeeper.shown_url}: {path} was replaced again and again while it was read")

    async def _value(self, path: str, chunks: Chunks) -> bytes | None:
        """
        Return a value, or None if a chunk is missing; the server that answers has seen everything that the head shows.
        """
        nodes = chunks.nodes
        parts: list[bytes] = []
        for at in range(0, len(nodes), _READ_TOGETHER_MAX):
            some = nodes[at : at + _READ_TOGETHER_MAX]
            for part in await asyncio.gather(*(self._zookeeper.get(one, is_current=False) for one in some)):
                if part is None:
                    return None
                parts.append(part.data)
        value = b"".join(parts)
        if len(value) != chunks.size:
            raise CorruptRecord(path, "its value", f"the chunks below {chunks.node} are {len(value)} bytes")
        return value
