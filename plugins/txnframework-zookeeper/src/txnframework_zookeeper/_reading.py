"""Reading one record, with a value in chunks too."""

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
    """A record and what is known of it; one with chunks has no value until it is completed."""

    record: Record
    standing: Standing


def value_in(key: Key, node: Node) -> bytes | None:
    """Return the value of a record that its node holds; None if it is in chunks, or cannot be read."""
    try:
        record, standing = decode_node(key.path, partition_mark(key.path, key.partition), node)
    except Corrupt:
        return None
    return record.value if standing.chunks is None else None


class Reading:
    """Reads records for one client, and remembers what stands."""

    def __init__(self, zookeeper: ZooKeeper, known: Known, attempts_max: int) -> None:
        self._zookeeper = zookeeper
        self._known = known
        self._attempts_max = attempts_max

    async def record(self, path: str, mark: str, node: str) -> Record | None:
        """Return a record as it is now, None if it is not there; raises what ``completed`` does."""
        head = await self.head(path, mark, node, is_current=True)
        found = None if head is None else await self.completed(mark, node, head)
        return None if found is None else found.record

    async def head(self, path: str, mark: str, node: str, is_current: bool) -> Found | None:
        """
        Return what the node of a record holds, None if it is not there.

        :raises CorruptRecord: it cannot be read.
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
        Return a record with its value, and as it is by now, None if it went.

        The chunks that a head names stand as long as it does: if one is gone, there is another head, or none.

        :raises CorruptRecord: the head names chunks that are not there.
        :raises Unavailable: it was replaced again and again while its chunks were read.
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
        """Return a value, None if a chunk of it is not there; what the head shows, the server of a chunk has seen."""
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
