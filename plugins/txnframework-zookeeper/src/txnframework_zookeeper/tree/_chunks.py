"""
Values that are too large for one request: where their chunks stand, and which values are written so; pure.

The chunks of a value are the children of a node of its own, ``/chunks/<as the record's>/<token>/00000``, and the head
of the record names that node. Its data says what it is, and ZooKeeper's version of it decides who was first:

* ``staged`` (version 0): being written. As long as its writer's session lives, a node below ``/lives`` does as well.
* ``named`` (1): the multi that wrote the record's head made it so. Only such chunks are ever read.
* ``over``: the multi that replaced or removed the record made it so, or whoever found it staged by nobody who lives.
  Nothing names it and nothing ever will, so its chunks may be deleted by anybody, in any number of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from txnframework.model import Key
from txnframework_zookeeper.connection._requests import CreateNode, DeleteNode, Op, SetNode
from txnframework_zookeeper.tree._layout import RECORDS, node_of
from txnframework_zookeeper.tree._lives import life_node

CHUNKS = "/chunks"
"""The node that all chunks stand below."""

STAGED, NAMED, OVER = b"staged", b"named", b"over"
STAGED_VERSION, NAMED_VERSION = 0, 1
# A server keeps its last 500 changes in memory, whatever their size (commitLogCount).
CHUNK_BYTES = 131_072


class Chunks(NamedTuple):
    """The node that the chunks of a value stand below, how many there are, and how many bytes they are together."""

    node: str
    number: int
    size: int

    @property
    def life(self) -> str:
        """The node that stands while they are staged by somebody who lives."""
        return life_node(self.node.rpartition("/")[2])

    @property
    def nodes(self) -> list[str]:
        """The node of each chunk."""
        return [f"{self.node}/{number:05d}" for number in range(self.number)]


def home_of(key: Key) -> str:
    """Return the node that everything staged for a record stands below; for one with a number, that of its prefix."""
    return CHUNKS + node_of(key).removeprefix(RECORDS)


def chunks_of(value: bytes, node: str) -> tuple[Chunks, list[bytes]]:
    """Return a value in chunks."""
    data = [value[at : at + CHUNK_BYTES] for at in range(0, len(value), CHUNK_BYTES)]
    return Chunks(node, len(data), len(value)), data


def begun(chunks: Chunks) -> list[Op]:
    """Return what is made before the first chunk."""
    return [CreateNode(chunks.node, STAGED), CreateNode(chunks.life, is_ephemeral=True)]


def named(chunks: Chunks) -> list[Op]:
    """Return what the multi does that writes the head; it is refused if the chunks may have gone."""
    return [SetNode(chunks.node, NAMED, STAGED_VERSION), DeleteNode(chunks.life)]


def ended(chunks: Chunks) -> Op:
    """Return what the multi does after which no head names them."""
    return SetNode(chunks.node, OVER, NAMED_VERSION)


def to_stage(sizes: Sequence[int], one_max: int, together_max: int) -> set[int]:
    """Return which values of a batch are written in chunks: those above a size, and the largest of too many others."""
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
