"""
The layout of index entries: the node of an entry, the meaning of a node's name, and the parent node of a range.

An entry's key is cut into pieces like a record's path, and the path of the record follows. Names show the components of
``model.index_keys``. A text begins with ``$`` and ends with ``;``. A number is ``#`` and its encoding in hexadecimal
digits, and so is any other component. After a name that ends with ``+``, the next name continues the key (or the
record's path). After a name that ends with ``:``, the next name begins the record's path (or its next component).

Few nodes are created for an entry, because the last pieces are joined in the name of its one leaf. The leaf begins

* after the time, to 4.096 seconds, in a key with a time (an int of six bytes, as milliseconds are from 2004 on),
* before the last three digits of the first id in the key or, after the key, in the record's path,
* before the last piece of any other key.

A node must stay small. So a client that has added many entries to one node adds further entries deeper: one, two, ...
more pieces become separate nodes. The record stores the depth of its entries. Readers find entries in order at any
depth.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import msgspec

from txnframework.model import IndexRange
from txnframework_zookeeper.tree._layout import (
    GOES_ON,
    RECORD,
    SLASH,
    PathCut,
    common_start,
    cut_path,
    escape,
    is_id,
    not_utf8,
    unescape,
)
from txnframework_zookeeper.tree._layout import names as component_names

INDEXES = "/indexes"
"""The parent node of all index entries."""

_CACHED = 16_384
_BYTES_TAG, _STR_TAG, _INT_TAG = 0x10, 0x20, 0x30
_GROUP = 3
_TIME_BYTES = 6
# Tag and length of a time, its upper three bytes (4.7 hours); then three digits (to 4.096 seconds).
_TIME_CUT = (10, 13)
_TEXT, _TEXT_END, _HEX, _SAME = "$", ";", "#", "$"
_TOKEN = re.compile(r"#([0-9a-f]*)|(\$)|(;)|([^#$;]+)")


class _Cut(msgspec.Struct, frozen=True, gc=False):
    """
    An index key in pieces, as names; ``inner``: the minimum number of pieces that are nodes, if the key decides it.
    """

    names: tuple[str, ...]
    inner: int | None


class EntryLocation(msgspec.Struct, frozen=True, gc=False):
    """The location of an entry: its leaf, and the parent node of the leaf."""

    parent: str
    leaf: str

    @property
    def path(self) -> str:
        """The path of the leaf."""
        return f"{self.parent}/{self.leaf}"


@lru_cache(_CACHED)
def entry_location(index: str, key: bytes, path: str, mark: str, depth: int) -> EntryLocation | None:
    """
    Return the location of an entry of the record at ``path`` with ``depth`` more separate nodes than needed.

    None: the entry has too few pieces.
    """
    cut, below = _cut(key), cut_path(path)
    names = cut.names + below.names
    inner = depth + _inner(cut, below)
    if inner >= len(names):
        return None
    leaf = _joined(names[inner:])
    text = _last_text(key) if inner < len(cut.names) else None
    if text is not None:
        # The leaf contains the whole path, which often repeats the end of the key.
        head, colon, rest = leaf.partition(SLASH)
        components = [_SAME if one == text else one for one in rest.split(SLASH)]
        leaf = head + colon + SLASH.join(components)
    parent = "/".join((_root(index), *names[:inner]))
    return EntryLocation(parent, f"{leaf}{RECORD}{mark}")


@lru_cache(_CACHED)
def _root(index: str) -> str:
    try:
        return f"{INDEXES}/{escape(index)}{SLASH}"
    except UnicodeEncodeError as error:
        raise not_utf8(f"the name of the index {index!r}") from error


def _inner(key: _Cut, below: PathCut) -> int:
    """Return the minimum number of names above an entry that are nodes."""
    if key.inner is not None:
        return key.inner
    return len(key.names) - 1 if below.before_id is None else len(key.names) + below.before_id


def _joined(names: tuple[str, ...]) -> str:
    return "".join([name[:-1] if name.endswith(GOES_ON) else name for name in names])


# -- keys in pieces -----------------------------------------------------------------------------------


@lru_cache(_CACHED)
def _cut(key: bytes) -> _Cut:
    names: list[str] = []
    inner: int | None = None
    at = 0
    while at < len(key):
        end = _component_end(key, at)
        if end is None:
            names += _hex_names(key[at:].hex())
            break
        part = key[at:end]
        if part[0] == _INT_TAG:
            digits = part.hex()
            if part[1] == _TIME_BYTES:
                first, second = _TIME_CUT
                names += [_HEX + digits[:first], _HEX + digits[first:second], _HEX + digits[second:]]
                inner = len(names) - 1 if inner is None else inner
            else:
                names += _int_names(digits)
        else:
            text = _text_of(part)
            if text is None:
                names += _hex_names(part.hex())
            else:
                names += _text_names(text)
                if inner is None and is_id(text):
                    inner = len(names) - 1
        at = end
    last = names.pop() if names else _HEX
    return _Cut((*[name + GOES_ON for name in names], last + SLASH), inner)


def _component_end(key: bytes, at: int) -> int | None:
    """Return the end of the component that starts at ``at``, or None if it is incomplete."""
    tag = key[at]
    if tag == _INT_TAG and at + 1 < len(key):
        end = at + 2 + key[at + 1]
        return end if end <= len(key) else None
    if tag in (_BYTES_TAG, _STR_TAG):
        return key.find(b"\0", at) + 1 or None
    return None


def _text_of(part: bytes) -> str | None:
    """Return the text of a component; None if it is not a text or contains escapes of the encoding."""
    if part[0] != _STR_TAG or b"\x01" in part:
        return None
    try:
        return part[1:-1].decode()
    except UnicodeDecodeError:
        return None


@lru_cache(_CACHED)
def _text_names(text: str) -> tuple[str, ...]:
    *most, last = component_names(text)
    if not most:
        return (f"{_TEXT}{last}{_TEXT_END}",)
    return (_TEXT + most[0], *most[1:], last + _TEXT_END)


def _int_names(digits: str) -> list[str]:
    """Return the pieces of an int: groups of three digits counted from its end; tag and length join the first group."""
    first = 4 + (len(digits) - 4) % _GROUP
    return [_HEX + digits[:first], *(_HEX + digits[at : at + _GROUP] for at in range(first, len(digits), _GROUP))]


def _hex_names(digits: str) -> list[str]:
    return [_HEX + digits[at : at + _GROUP] for at in range(0, len(digits), _GROUP)]


def _last_text(key: bytes) -> str | None:
    """Return the text at the end of a key, in the form that it has in a name."""
    if not key.endswith(b"\0"):
        return None
    start = key.rfind(b"\0", 0, -1) + 1
    # An earlier int may contain any byte, including this one. Only the id of a transaction is worth optimizing.
    text = _text_of(key[-34:]) if len(key) >= 34 and key[-34] == _STR_TAG else _text_of(key[start:])
    return escape(text) if text else None


# -- names and ranges --------------------------------------------------------------------------------


class EntryTreeNode(NamedTuple):
    """
    A node of an index's tree, located by ``digits`` of the key and ``path`` of the record's key.

    ``path`` is empty while the key continues. A node with ``mark`` is an entry.
    """

    digits: str
    path: str
    mark: str | None
    node: str

    @property
    def order(self) -> tuple[str, ...]:
        """The position among the nodes of the tree."""
        return self.digits, self.path, self.mark or ""


def open_entry_child(parent: EntryTreeNode, name: str) -> EntryTreeNode:
    """Return the child ``name`` of a node."""
    body, is_entry, mark = name.rpartition(RECORD)
    node = f"{parent.node}/{name}"
    if not is_entry:
        body, end = name[:-1], name[-1]
        slash = "/" if end == SLASH else ""
        if parent.path:
            return EntryTreeNode(parent.digits, parent.path + unescape(body) + slash, None, node)
        return EntryTreeNode(parent.digits + _digits_of(body), slash, None, node)
    if parent.path:
        return EntryTreeNode(parent.digits, parent.path + unescape(body.replace(SLASH, "/")), mark, node)
    head, _, rest = body.partition(SLASH)
    digits = parent.digits + _digits_of(head)
    if _SAME in rest:
        text = _last_text(bytes.fromhex(digits)) or ""
        rest = SLASH.join(text if one == _SAME else one for one in rest.split(SLASH))
    return EntryTreeNode(digits, "/" + unescape(rest.replace(SLASH, "/")), mark, node)


def _digits_of(name: str) -> str:
    found: list[str] = []
    for digits, start, end, text in _TOKEN.findall(name):
        if text:
            found.append(unescape(text).encode().hex())
        else:
            found.append(digits or (start and f"{_STR_TAG:02x}") or (end and "00"))
    return "".join(found)


def index_range_start(entries: IndexRange) -> EntryTreeNode:
    """Return the lowest node above the whole range."""
    common = common_start(entries.start.hex(), entries.stop.hex())
    whole = bytes.fromhex(common[: len(common) // 2 * 2])
    at = 0
    while at < len(whole) and (end := _component_end(whole, at)) is not None:
        at = end
    root = _root(entries.index)
    if not at:
        return EntryTreeNode("", "", None, root)
    # The end of the last component may also be the end of the key: its last piece may have "+", ":", or be in a leaf.
    cut = _cut(whole[:at])
    last = len(cut.names) - 1
    names = cut.names[: last if cut.inner is None else min(cut.inner, last)]
    return EntryTreeNode("".join(_digits_of(name[:-1]) for name in names), "", None, "/".join((root, *names)))
