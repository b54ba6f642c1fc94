"""What the node of a record holds: a head of one line, then the value as it was put.

The head is a JSON list: the format, the partition if the node's name does not tell it, and the record's index entries
as index, key in hexadecimal digits, and depth (see ``_index``). ``[1,null,[["txn-by-deadline","3006019a…",0]]]``.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from txnframework.errors import CorruptRecord, UnknownFormat
from txnframework.model import IndexEntry, Key, Record
from txnframework_zookeeper._layout import partition_of
from txnframework_zookeeper._requests import Node, Stat

FORMAT = 1
_END = b"\n"
_PLAIN_HEAD = b"[1,null,[]]\n"

Entries = tuple[tuple[IndexEntry, int], ...]
"""The index entries of a record, and how deep each stands."""


class _Head(msgspec.Struct, array_like=True):
    format: int
    partition: str | None
    entries: list[tuple[str, str, int]]


_HEAD = msgspec.json.Decoder(_Head)


class Standing(NamedTuple):
    """
    What is known of a record that stands: enough to replace it and its index entries.

    ``version`` is what callers see: the number of the transaction that wrote it last, so that it does not come back
    when the record is made again. ``node_version`` is what ZooKeeper compares.
    """

    version: int
    node_version: int
    entries: Entries


def encode_node(value: bytes, partition: str | None, entries: Entries) -> bytes:
    """Return what a node is to hold."""
    if not entries and partition is None:
        return _PLAIN_HEAD + value
    head = _Head(FORMAT, partition, [(entry.index, entry.key.hex(), depth) for entry, depth in entries])
    return msgspec.json.encode(head) + _END + value


def standing_of(stat: Stat, entries: Entries) -> Standing:
    """Return what is known of a record after reading or writing its node."""
    return Standing(stat.mzxid, stat.version, entries)


def decode_node(path: str, mark: str, node: Node) -> tuple[Record, Standing]:
    """
    Return the record at ``path`` that a node holds, and what is known of it.

    :raises CorruptRecord: the head cannot be read.
    :raises UnknownFormat: a later release wrote it.
    """
    line, end, value = node.data.partition(_END)
    partition: str | None = None
    entries: Entries = ()
    if line + end != _PLAIN_HEAD:
        head = _decode_head(path, line)
        partition, entries = head.partition, _entries(path, head)
    key = Key(path, partition_of(path, mark, partition))
    standing = standing_of(node.stat, entries)
    return Record(key, value, standing.version), standing


def _decode_head(path: str, line: bytes) -> _Head:
    try:
        head = _HEAD.decode(line)
    except msgspec.DecodeError as error:
        version = _format_of(line)
        if version is not None and version != FORMAT:
            raise UnknownFormat(f"record {path}", version) from error
        raise CorruptRecord(path, "its head", str(error)) from error
    if head.format != FORMAT:
        raise UnknownFormat(f"record {path}", head.format)
    return head


def _format_of(line: bytes) -> int | None:
    """Return the format that a head names which is not of this one."""
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return found[0] if isinstance(found, list) and found and isinstance(found[0], int) else None


def _entries(path: str, head: _Head) -> Entries:
    try:
        return tuple((IndexEntry(index, bytes.fromhex(key)), depth) for index, key, depth in head.entries)
    except ValueError as error:
        raise CorruptRecord(path, "its index entries", str(error)) from error
