"""What is asked of a server, as bytes; kazoo sends a request and hands what came back to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, NamedTuple

import msgspec
from kazoo.exceptions import EXCEPTIONS

_INT = Struct("!i")
_LONG = Struct("!q")
_STAT = Struct("!qqqqiiiqiiq")
_MULTI_HEADER = Struct("!iBi")
_MULTI_END = _MULTI_HEADER.pack(-1, True, -1)
# The header of an op, and how many bytes its path has.
_OP = Struct("!iBii")
# The zxid stands behind the 4 bytes of a reply's xid.
_ZXID_AT = 4
_EPHEMERAL = 1
_CREATE, _DELETE, _SET, _CHECK, _FAILED = 1, 2, 5, 13, -1
_PERSISTENT_RECURSIVE = 1
_ANY_WATCH = 3
ANY_VERSION = -1


class Stat(NamedTuple):
    """What ZooKeeper knows of a node."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    children_count: int
    pzxid: int


class Node(NamedTuple):
    """A node as read."""

    data: bytes
    stat: Stat


# Some of these are made for every step of every transaction: a struct takes a third of a dataclass's time,
# and none of the garbage collector's.
class CreateNode(msgspec.Struct, frozen=True, gc=False):
    """Make a node that is not there, below a parent that is."""

    path: str
    data: bytes = b""
    is_ephemeral: bool = False


class SetNode(msgspec.Struct, frozen=True, gc=False):
    """Write a node's data, if its version is this."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class DeleteNode(msgspec.Struct, frozen=True, gc=False):
    """Remove a node that has no children, if its version is this."""

    path: str
    version: int = ANY_VERSION


class CheckNode(msgspec.Struct, frozen=True, gc=False):
    """Require a node to be there, in this version."""

    path: str
    version: int = ANY_VERSION


Op = CreateNode | SetNode | DeleteNode | CheckNode


def text(value: str) -> bytes:
    """Return a string as the protocol has it."""
    encoded = value.encode()
    return _INT.pack(len(encoded)) + encoded


def acl_bytes(entries: Sequence[tuple[int, str, str]]) -> bytes:
    """Return permissions, scheme and id of each entry of an access control list."""
    return _INT.pack(len(entries)) + b"".join(
        _INT.pack(permissions) + text(scheme) + text(name) for permissions, scheme, name in entries
    )


def _stat(buffer: bytes, offset: int) -> Stat:
    return Stat._make(_STAT.unpack_from(buffer, offset))


def _string_end(buffer: bytes, offset: int) -> int:
    return offset + _INT.size + max(0, int(_INT.unpack_from(buffer, offset)[0]))


@dataclass(frozen=True, slots=True)
class OnPath:
    """A request about one node."""

    path: str
    type: ClassVar[int]
    tail: ClassVar[bytes] = b""

    def serialize(self) -> bytes:
        """Return the request's bytes."""
        return text(self.path) + self.tail

    def deserialize(self, buffer: bytes, offset: int) -> object:  # noqa: ARG002
        """Return what the reply says."""
        return None


class Get(OnPath):
    """Read a node."""

    type = 4
    tail = b"\0"

    def deserialize(self, buffer: bytes, offset: int) -> Node:
        """Return the node."""
        end = _string_end(buffer, offset)
        return Node(bytes(buffer[offset + _INT.size : end]), _stat(buffer, end))


class Exists(OnPath):
    """Read what is known of a node."""

    type = 3
    tail = b"\0"

    def deserialize(self, buffer: bytes, offset: int) -> Stat:
        """Return it."""
        return _stat(buffer, offset)


class GetAndWatch(Get):
    """Read a node, and be told once when it changes; of one that is not there nothing is told."""

    tail = b"\1"


class ExistsAndWatch(Exists):
    """Read what is known of a node, and be told once when it changes, or is made."""

    tail = b"\1"


class Children(OnPath):
    """List the names below a node."""

    type = 8
    tail = b"\0"

    def deserialize(self, buffer: bytes, offset: int) -> list[str]:
        """Return them, in no order."""
        count = _INT.unpack_from(buffer, offset)[0]
        offset += _INT.size
        names = []
        for _ in range(count):
            end = _string_end(buffer, offset)
            names.append(bytes(buffer[offset + _INT.size : end]).decode())
            offset = end
        return names


class Sync(OnPath):
    """Let the server catch up with its leader before it answers what is asked next."""

    type = 9


class Watch(OnPath):
    """Be told of every change of a node and of all below it, until it is taken back or the connection is lost."""

    type = 106
    tail = _INT.pack(_PERSISTENT_RECURSIVE)


class Unwatch(OnPath):
    """Take every watch of a node back."""

    type = 18
    tail = _INT.pack(_ANY_WATCH)


class Multi:
    """Several ops, all or nothing."""

    # kazoo rewrites what a request of the type 14 returns, as a list.
    type = 14

    def __init__(self, ops: Sequence[Op], root: str, acl: bytes) -> None:
        self._ops = ops
        self._root = root
        self._acl = acl

    def serialize(self) -> bytes:
        """Return the request's bytes."""
        root = self._root.encode()
        parts: list[bytes] = []
        for op in self._ops:
            path = root + op.path.encode()
            size = len(path)
            if isinstance(op, CreateNode):
                flags = _INT.pack(_EPHEMERAL if op.is_ephemeral else 0)
                parts += (_OP.pack(_CREATE, 0, -1, size), path, _INT.pack(len(op.data)), op.data, self._acl, flags)
            elif isinstance(op, SetNode):
                parts += (_OP.pack(_SET, 0, -1, size), path, _INT.pack(len(op.data)), op.data, _INT.pack(op.version))
            else:
                kind = _DELETE if isinstance(op, DeleteNode) else _CHECK
                parts += (_OP.pack(kind, 0, -1, size), path, _INT.pack(op.version))
        parts.append(_MULTI_END)
        return b"".join(parts)

    def deserialize(self, buffer: bytes, offset: int) -> list[object]:
        """Return the transaction's number; of a multi that was refused, also the error of each op, in their order."""
        found: list[object] = [_LONG.unpack_from(buffer, _ZXID_AT)[0]]
        kind, is_done, _ = _MULTI_HEADER.unpack_from(buffer, offset)
        # Either all of its results are errors or none is, and of what it did nobody asks more than its number.
        while kind == _FAILED and not is_done:
            offset += _MULTI_HEADER.size
            found.append(EXCEPTIONS[_INT.unpack_from(buffer, offset)[0]]())
            offset += _INT.size
            kind, is_done, _ = _MULTI_HEADER.unpack_from(buffer, offset)
        return found
