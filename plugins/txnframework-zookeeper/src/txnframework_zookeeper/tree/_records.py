"""
The data of a record's node: a head of one line, then the value, or nothing if the value is in chunks.

The head is a JSON list:

* the format,
* the partition, if the node's name does not contain it,
* the record's index entries, each as index, key in hexadecimal digits, and depth (see ``_index``),
* a token unique to the write, which identifies a write whose reply was lost.

An example is ``[1,null,[["txn-by-deadline","3006019a…",0]],"5d0c1be7a9f2.1c"]``.

A value that is too large for one request is written in chunks. The head then has format 2; the node of the chunks,
their number and their bytes are appended. The chunks are the children of one node, ``/chunks/<as the
record's>/<token>/00000``. The node's data is its state, and ZooKeeper's version of the node decides which change is
first:

* ``staged`` (version 0): being written. A node below ``/lives`` exists as long as its writer's session.
* ``named`` (1): set by the multi that wrote the record's head. Only such chunks are ever read.
* ``over``: set by the multi that replaced or deleted the record, or by a client that found staged chunks without a live
  writer. No record names or will name the node, so any client may delete its chunks, in any number of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from txnframework.errors import CorruptRecord, UnknownFormat
from txnframework.model import Key, Record
from txnframework.model.records import UNREADABLE
from txnframework_zookeeper.connection._requests import CreateNode, DeleteNode, Node, Op, SetNode
from txnframework_zookeeper.tree._layout import RECORDS, liveness_node, node_of, partition_of

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
        return liveness_node(self.node.rpartition("/")[2])

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


def select_chunked(sizes: Sequence[int], one_max: int, together_max: int) -> set[int]:
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


FORMAT = 1
FORMAT_WITH_CHUNKS = 2
_END = b"\n"

Entries = tuple[tuple[str, bytes, int], ...]
"""The index entries of a record: index, key, and depth of each."""


class _Head(msgspec.Struct, array_like=True):
    format: int
    partition: str | None
    entries: list[tuple[str, str, int]]
    token: str
    chunks: Chunks | None = None


_HEAD = msgspec.json.Decoder(_Head)


class RecordState(msgspec.Struct, frozen=True, gc=False):
    """
    The known state of an existing record: enough to replace the record and its index entries.

    The cache holds many of these, so they are exempt from garbage collection; they contain no reference cycle.

    ``version`` is the one that callers see: the number of the transaction that wrote the record last. It is not reused
    when the record is created again. ``node_version`` is the version that ZooKeeper compares. ``token`` is that of the
    last write. ``chunks`` are those of its value, if the value is not in the node.
    """

    version: int
    node_version: int
    entries: Entries
    token: str = ""
    chunks: Chunks | None = None


def encode_node(
    value: bytes, partition: str | None, entries: Entries, token: str, chunks: Chunks | None = None
) -> bytes:
    """Return the data of a node; it includes the value only if that is not in chunks."""
    written = [(index, key.hex(), depth) for index, key, depth in entries]
    if chunks is None:
        return msgspec.json.encode((FORMAT, partition, written, token)) + _END + value
    return msgspec.json.encode((FORMAT_WITH_CHUNKS, partition, written, token, chunks)) + _END


def token_of(node: Node) -> str | None:
    """Return the token of the last write of a node, or None if it cannot be read."""
    try:
        return _HEAD.decode(node.data.partition(_END)[0]).token
    except UNREADABLE:
        return None


def decode_node(path: str, mark: str, node: Node) -> tuple[Record, RecordState]:
    """
    Return the record at ``path`` in a node, and its known state; the value is empty if it is in chunks.

    :raises CorruptRecord: the head cannot be read.
    :raises UnknownFormat: the record was written by a later release.
    """
    line, _, value = node.data.partition(_END)
    head = _decode_head(path, line)
    key = Key(path, partition_of(path, mark, head.partition))
    entries = _entries(path, head) if head.entries else ()
    state = RecordState(node.stat.mzxid, node.stat.version, entries, head.token, head.chunks)
    return Record(key, value, state.version), state


def _decode_head(path: str, line: bytes) -> _Head:
    try:
        head = _HEAD.decode(line)
    except UNREADABLE as error:
        version = _format_of(line)
        if version is not None and version not in (FORMAT, FORMAT_WITH_CHUNKS):
            raise UnknownFormat(f"record {path}", version) from error
        raise CorruptRecord(path, "its head", str(error)) from error
    if head.format != (FORMAT if head.chunks is None else FORMAT_WITH_CHUNKS):
        raise UnknownFormat(f"record {path}", head.format)
    return head


def _format_of(line: bytes) -> int | None:
    """Return the unknown format that a head names."""
    try:
        found = msgspec.json.decode(line)
    except UNREADABLE:
        return None
    return found[0] if isinstance(found, list) and found and isinstance(found[0], int) else None


def _entries(path: str, head: _Head) -> Entries:
    try:
        return tuple([(index, bytes.fromhex(key), depth) for index, key, depth in head.entries])
    except ValueError as error:
        raise CorruptRecord(path, "its index entries", str(error)) from error
