"""
Names of nodes: text cut into pieces, so that few share one parent, each escaped to what ZooKeeper allows.

A listing of children has no pages, so no node may have many children, whatever the keys are. Text is therefore cut into
short pieces, each the name of a node below that of the previous piece:

* A component of 20 digits or of 32 hexadecimal ones is a number. It is cut into groups of three digits counted from its
  end, so that neighbours share all but the last group. Groups of zeros are joined to the group before them.
* Any other text is cut after three of the usual characters, two of the less usual ones, or one unusual one.

Fewer than 80,000 different pieces can be below one node, of about seven bytes each, whatever the number of keys.
"""

from __future__ import annotations

import re
from functools import lru_cache

_CACHED = 8_192
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
