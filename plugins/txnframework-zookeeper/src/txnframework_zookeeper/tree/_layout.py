"""
The layout of records: the node of a key, the meaning of a node's name, and the node above a range of keys.

A listing of children has no pages, so no node may have many children, whatever the keys are. A key's path is therefore
cut into short pieces, each the name of a node below that of the previous piece:

* A component of 20 digits or of 32 hexadecimal ones is a number. It is cut into groups of three digits counted from its
  end, so that neighbours share all but the last group. Groups of zeros are joined to the group before them.
* Any other text is cut after three of the usual characters, two of the less usual ones, or one unusual one.

Fewer than 80,000 different pieces can be below one node, of about seven bytes each, whatever the number of keys. Each
is escaped to what ZooKeeper allows.

The last character of a node's name shows what follows: ``+`` means that the component continues, ``:`` that a slash
comes next. In the name of a record itself, ``=`` comes before its partition. Only nodes with ``=`` hold records, and
those have no children. Every key at or below a node begins with the text of the names down to the node. So a search
that always opens the node with the lowest text finds the keys in order.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

import msgspec

from txnframework.errors import InvalidInput
from txnframework.model import Key, KeyRange
from txnframework.model.paths import leases_range
from txnframework.model.paths import unescape as unescape_component

_CACHED = 16_384
_NUMBER = re.compile(r"[0-9]{20}|[0-9a-f]{32}")
_GROUP = 3
_ID_DIGITS = 32

_PLAIN = re.compile(r"[0-9A-Za-z.%_~-]*")
_NOT_PLAIN = re.compile(r"[^0-9A-Za-z.%_~-]+")
_ESCAPED = re.compile(r"(?:![0-9a-f]{2})+")

_USUAL = frozenset("0123456789abcdefghijklmnopqrstuvwxyz.%-")
_LESS_USUAL = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_~")
# The maximum weight of a piece, and the weight of each kind of character.
_WEIGHT_MAX = 6
_USUAL_WEIGHT, _LESS_USUAL_WEIGHT, _UNUSUAL_WEIGHT = 2, 3, 4


def is_number(component: str) -> bool:
    """Return whether a component is a number of 20 digits or an id of 32 hexadecimal digits."""
    return _NUMBER.fullmatch(component) is not None


def is_id(component: str) -> bool:
    """Return whether a component is an id of 32 hexadecimal digits."""
    return len(component) == _ID_DIGITS and is_number(component)


def pieces(component: str) -> tuple[str, ...]:
    """Return the pieces of one component, at least one; joined, they are the component."""
    return number_pieces(component) if is_number(component) else _text_pieces(component)


@lru_cache(_CACHED)
def names(component: str) -> tuple[str, ...]:
    """Return the pieces of one component, each escaped."""
    return number_pieces(component) if is_number(component) else tuple(map(escape, _text_pieces(component)))


def number_pieces(digits: str) -> tuple[str, ...]:
    """Return groups of three digits counted from the end; zeros join the group before, except the last group."""
    first = len(digits) % _GROUP or _GROUP
    found = [digits[:first]]
    for at in range(first, len(digits) - _GROUP, _GROUP):
        group = digits[at : at + _GROUP]
        if group == "000":
            found[-1] += group
        else:
            found.append(group)
    if len(digits) > first:
        found.append(digits[-_GROUP:])
    return tuple(found)


def _text_pieces(text: str) -> tuple[str, ...]:
    found: list[str] = []
    start = weight = 0
    for at, character in enumerate(text):
        more = _weight(character)
        if weight + more > _WEIGHT_MAX:
            found.append(text[start:at])
            start, weight = at, 0
        weight += more
    found.append(text[start:])
    return tuple(found)


def _weight(character: str) -> int:
    if character in _USUAL:
        return _USUAL_WEIGHT
    return _LESS_USUAL_WEIGHT if character in _LESS_USUAL else _UNUSUAL_WEIGHT


def escape(text: str) -> str:
    """
    Return text as part of a name: ASCII letters, digits and ``.%_~-`` unchanged, other bytes as ``!2f``.

    ZooKeeper refuses ``/``, NUL, other control characters, surrogates and some more.

    :raises UnicodeEncodeError: the text has no UTF-8 form.
    """
    if (text.isascii() and text.isalnum()) or _PLAIN.fullmatch(text):
        return text
    return _NOT_PLAIN.sub(lambda found: "".join(f"!{byte:02x}" for byte in found[0].encode()), text)


def unescape(name: str) -> str:
    """Return the text that ``escape`` received."""
    if "!" not in name:
        return name
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("!", "")).decode(), name)


RECORDS = "/records"
"""The parent node of all records."""

GOES_ON, SLASH, RECORD = "+", ":", "="
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
        raise not_utf8(f"the key {path!r}") from error


def not_utf8(what: str) -> InvalidInput:
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
    return names(component)


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
        raise not_utf8(f"the partition {partition!r}") from error


def partition_of(path: str, mark: str, stored: str | None) -> str:
    """Return the partition of a record by its mark; ``stored``: the partition that the record stores, if any."""
    if not mark:
        return ""
    if mark.startswith(_HASH):
        return stored or ""
    return unescape_component(components_of(path)[int(mark)])


def stores_partition(mark: str) -> bool:
    """Return whether the record must store the partition of a mark."""
    return mark.startswith(_HASH)


def _unescaped(component: str) -> str | None:
    if component.isascii() and component.isalnum():
        return component
    try:
        return unescape_component(component)
    except (ValueError, UnicodeError):
        return None


# -- ephemeral nodes ----------------------------------------------------------------------------------

# They distinguish successive holders of a lease, and mark clients that stage chunks. ZooKeeper compares the version of
# a node, which starts again when the node is created again, and the record of a lease is never rewritten. So a second
# node with a unique name is created and deleted with the record. A check of a lease requires both nodes.

LIVENESS = "/lives"
"""The parent of the ephemeral nodes: one for each lease, and one for each value that is being written in chunks."""

_LEASES = leases_range("").start


def is_lease(path: str) -> bool:
    """Return whether a path is the record of a lease."""
    return path.startswith(_LEASES)


def liveness_node(token: str) -> str:
    """Return the node that exists while a lease is held, or while chunks are written by a live client."""
    return f"{LIVENESS}/{token}"


# -- names and ranges --------------------------------------------------------------------------------


class RecordTreeNode(NamedTuple):
    """A node of the tree of records, located by ``text``; with ``mark`` it is a record, and ``text`` its path."""

    text: str
    mark: str | None
    node: str

    @property
    def order(self) -> tuple[str, ...]:
        """The position among the nodes of the tree."""
        return self.text, self.mark or ""


def open_record_child(parent: RecordTreeNode, name: str) -> RecordTreeNode:
    """Return the child ``name`` of a node."""
    body, is_record, mark = name.rpartition(RECORD)
    if is_record:
        return RecordTreeNode(parent.text + unescape(body), mark, f"{parent.node}/{name}")
    text = unescape(name[:-1]) + ("/" if name.endswith(SLASH) else "")
    return RecordTreeNode(parent.text + text, None, f"{parent.node}/{name}")


def record_range_start(keys: KeyRange) -> RecordTreeNode:
    """Return the lowest node above the whole range."""
    common = common_start(keys.start, keys.stop)
    head, slash, _ = common.rpartition("/")
    if not slash or not head:
        return RecordTreeNode("/", None, RECORDS)
    # The pieces of components before a slash are the same whatever follows the slash.
    try:
        names = cut_path(f"{head}/").names[:-1]
    except UnicodeEncodeError as error:
        raise not_utf8(f"the range of keys from {keys.start!r}") from error
    return RecordTreeNode(f"{head}/", None, f"{RECORDS}/{'/'.join(names)}")


def common_start(start: str, stop: str) -> str:
    """Return the common start of every text with ``start <= text < stop``."""
    length = next((at for at, (one, two) in enumerate(zip(start, stop, strict=False)) if one != two), None)
    if length is None:
        return min(start, stop, key=len)
    # Extend by at most one character: every text has the lower one there.
    if len(stop) == length + 1 and ord(stop[length]) == ord(start[length]) + 1:
        length += 1
    return start[:length]
