"""
The layout of records: the node of a key, the meaning of a node's name, and the node above a range of keys.

A key's path is cut into pieces (see ``_names``), each a node below the previous one. The last character of a node's
name shows what follows: ``+`` means that the component continues, ``:`` that a slash comes next. In the name of a
record itself, ``=`` comes before its partition.

Only nodes with ``=`` hold records, and those have no children. Every key at or below a node begins with the text of the
names down to the node. So a search that always opens the node with the lowest text finds the keys in order.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

import msgspec

from txnframework.errors import InvalidInput
from txnframework.model import Key, KeyRange
from txnframework.model.paths import unescape as unescape_component
from txnframework_zookeeper.tree._names import is_id, is_number, unescape
from txnframework_zookeeper.tree._names import names as names_of_component

RECORDS = "/records"
"""The parent node of all records."""

GOES_ON, SLASH, RECORD = "+", ":", "="
_CACHED = 16_384
_HASH = "~"

# The first component of a key that a part of the framework puts; written in one piece. Their number is fixed by code.
_FAMILIES = frozenset(
    (
        "txn", "txn-op", "txn-aborted", "txn-trimmed", "txn-app", "subscription", "cursor", "compacted", "lease",
        "topic", "persistent", "ids",
    )
)  # fmt: skip
_OPERATIONS, _ABORT_RECORDS = "txn-op", "txn-aborted"
_PRIVATE = f"{RECORDS}/{_OPERATIONS}{SLASH}/"
# The first digit of an operation's number: operations with the second one are spread over nodes of a thousand.
FLAT_DIGIT, SPREAD_DIGIT = "0", "1"
_SPREAD_DIGITS = 3


def node_of(key: Key) -> str:
    """Return the node of a record; raise InvalidInput for a key that cannot be stored."""
    return _node_of(key.path, key.partition)


@lru_cache(_CACHED)
def _node_of(path: str, partition: str) -> str:
    try:
        return node_at(path, partition_mark(path, partition))
    except UnicodeEncodeError as error:
        raise no_utf8(f"the key {path!r}") from error


def no_utf8(what: str) -> InvalidInput:
    """Return the error to raise, ``from`` the original, for text that cannot be stored."""
    return InvalidInput(f"{what} has no UTF-8 form: half of a surrogate pair is no character; leave it out")


def node_at(path: str, mark: str) -> str:
    """Return the node of a record, by its key's path and the mark of its partition."""
    return f"{RECORDS}/{'/'.join(cut_path(path).names)}{RECORD}{mark}"


class PathCut(msgspec.Struct, frozen=True, gc=False):
    """The names of the nodes down to a record, the last without its mark; ``before_id``: up to the first id's end."""

    names: tuple[str, ...]
    before_id: int | None


@lru_cache(_CACHED)
def cut_path(path: str) -> PathCut:
    """Return the path of a key, cut into pieces."""
    components = components_of(path)
    names: list[str] = []
    before_id = None
    last = len(components) - 1
    for at, component in enumerate(components):
        cut = _names_of(components, at)
        if len(cut) > 1:
            names += [piece + GOES_ON for piece in cut[:-1]]
        if before_id is None and is_id(component):
            before_id = len(names)
        names.append(cut[-1] + SLASH if at < last else cut[-1])
    return PathCut(tuple(names), before_id)


def components_of(path: str) -> list[str]:
    """Return the components of a key's path."""
    if not path.startswith("/"):
        raise InvalidInput(f"the path of a key begins with a slash, and {path!r} does not")
    return path[1:].split("/")


def _names_of(components: list[str], at: int) -> tuple[str, ...]:
    component = components[at]
    if at == 0 and len(components) > 1 and component in _FAMILIES:
        return (component,)
    if at and at == len(components) - 1 and is_number(component):
        family = components[0]
        # A transaction's operations are direct siblings, and so are the branches of one transaction and ledger.
        if family == _ABORT_RECORDS or (family == _OPERATIONS and component[0] == FLAT_DIGIT):
            return (component,)
        if family == _OPERATIONS:
            return component[:-_SPREAD_DIGITS], component[-_SPREAD_DIGITS:]
    return names_of_component(component)


def is_private(parent: str) -> bool:
    """
    Return whether a node only holds the operations of one transaction, and therefore exists only while it has children.
    """
    return parent.startswith(_PRIVATE) and parent.endswith(SLASH)


# -- partitions ---------------------------------------------------------------------------------------


@lru_cache(_CACHED)
def partition_mark(path: str, partition: str) -> str:
    """
    Return the form of a partition in the name of a record.

    An empty mark is the path's own partition. A number is the component of the path with that index, unescaped. Any
    other mark is a hash, and the record stores the partition itself.
    """
    if partition in ("", path):
        return ""
    for at, component in enumerate(components_of(path)):
        if _unescaped(component) == partition:
            return str(at)
    try:
        return _HASH + hashlib.blake2b(partition.encode(), digest_size=8).hexdigest()
    except UnicodeEncodeError as error:
        raise no_utf8(f"the partition {partition!r}") from error


def partition_of(path: str, mark: str, stored: str | None) -> str:
    """Return the partition that a mark names; ``stored``: the partition stored in the record."""
    if not mark:
        return ""
    if mark.startswith(_HASH):
        return stored or ""
    return unescape_component(components_of(path)[int(mark)])


def names_itself(mark: str) -> bool:
    """Return whether the record must store the partition of a mark."""
    return mark.startswith(_HASH)


def _unescaped(component: str) -> str | None:
    if component.isascii() and component.isalnum():
        return component
    try:
        return unescape_component(component)
    except (ValueError, UnicodeError):
        return None


# -- names and ranges --------------------------------------------------------------------------------


class Below(NamedTuple):
    """A node of the tree of records, located by ``text``; with ``mark`` it is a record, and ``text`` its path."""

    text: str
    mark: str | None
    node: str


def below(parent: Below, name: str) -> Below:
    """Return the child ``name`` of a node."""
    body, is_record, mark = name.rpartition(RECORD)
    if is_record:
        return Below(parent.text + unescape(body), mark, f"{parent.node}/{name}")
    text = unescape(name[:-1]) + ("/" if name.endswith(SLASH) else "")
    return Below(parent.text + text, None, f"{parent.node}/{name}")


def start_of(keys: KeyRange) -> Below:
    """Return the lowest node above the whole range."""
    common = common_start(keys.start, keys.stop)
    head, slash, _ = common.rpartition("/")
    if not slash or not head:
        return Below("/", None, RECORDS)
    # The pieces of components before a slash are the same whatever follows the slash.
    try:
        names = cut_path(f"{head}/").names[:-1]
    except UnicodeEncodeError as error:
        raise no_utf8(f"the range of keys from {keys.start!r}") from error
    return Below(f"{head}/", None, f"{RECORDS}/{'/'.join(names)}")


def common_start(start: str, stop: str) -> str:
    """Return the common start of every text with ``start <= text < stop``."""
    length = next((at for at, (one, two) in enumerate(zip(start, stop, strict=False)) if one != two), None)
    if length is None:
        return min(start, stop, key=len)
    # Extend by at most one character: every text has the lower one there.
    if len(stop) == length + 1 and ord(stop[length]) == ord(start[length]) + 1:
        length += 1
    return start[:length]
