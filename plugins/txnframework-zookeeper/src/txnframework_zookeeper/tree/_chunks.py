"""
Values that are too large for one request: the nodes of their chunks, and which values are chunked; pure functions.

The chunks of a value are the children of one node, ``/chunks/<as the record's>/<token>/00000``, and the head of the
record names that node. The node's data is its state, and ZooKeeper's version of the node decides which change is first:

* ``staged`` (version 0): being written. A node below ``/lives`` exists as long as its writer's session.
* ``named`` (1): set by the multi that wrote the record's head. Only such chunks are ever read.
* ``over``: set by the multi that replaced or deleted the record, or by a client that found staged chunks without a live
  writer. No record names or will name the node, so any client may delete its chunks, in any number of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from txnframework.model import Key
from txnframework_zookeeper.connection._requests import CreateNode, DeleteNode, Op, SetNode
from txnframework_zookeeper.tree._layout import RECORDS, node_of
from txnframework_zookeeper.tree._lives import life_node

CHUNKS = "/chunks"
"""The parent node of all chunks."""

STAGED, NAMED, OVER = b"staged", b"named", b"over"
STAGED_VERSION, NAMED_VERSION = 0, 1
# A server keeps its last 500 changes in memory, whatever their size (commitLogCount).
CHUNK_BYTES = 131_072


class Chunks(NamedTuple):
    """The parent node of a value's chunks, the number of chunks, and their total bytes."""

    node: str
    number: int
    size: int

    @property
    def life(self) -> str:
        """The node that exists while the chunks are staged by a live writer."""
        return life_node(self.node.rpartition("/")[2])

    @property
    def nodes(self) -> list[str]:
        """The node of each chunk."""
        return [f"{self.node}/{number:05d}" for number in range(self.number)]


def home_of(key: Key) -> str:
    """Return the parent node of all staged chunks of a record; for a record with a number, the one of its prefix."""
    return CHUNKS + node_of(key).removeprefix(RECORDS)


def chunks_of(value: bytes, node: str) -> tuple[Chunks, list[bytes]]:
    """Return the description of a value's chunks, and the chunks."""
    data = [value[at : at + CHUNK_BYTES] for at in range(0, len(value), CHUNK_BYTES)]
    return Chunks(node, len(data), len(value)), data


def begun(chunks: Chunks) -> list[Op]:
    """Return the ops that run before the first chunk is written."""
    return [CreateNode(chunks.node, STAGED), CreateNode(chunks.life, is_ephemeral=True)]


def named(chunks: Chunks) -> list[Op]:
    """Return the ops for the multi that writes the head; they are refused if the chunks may have been deleted."""
    return [SetNode(chunks.node, NAMED, STAGED_VERSION), DeleteNode(chunks.life)]


def ended(chunks: Chunks) -> Op:
    """Return the op for the multi after which no head names the chunks."""
    return SetNode(chunks.node, OVER, NAMED_VERSION)


def to_stage(sizes: Sequence[int], one_max: int, together_max: int) -> set[int]:
    """Return which values of a batch are chunked: those above a size, and the largest others above a total size."""
    found = {number for number, size in enumerate(sizes) if size > one_max}
    together = sum(size for number, size in enumerate(sizes) if number not in found)
    if together <= together_max:
        return found
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        if together <= together_max:
            break
        if number not in found:
            found.add(number)
            together -= sizes[number]
    return found
