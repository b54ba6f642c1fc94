"""The longest possible names: keys that are made of them must not exceed a backend's limits."""

from __future__ import annotations

from typing import Final

from txnframework.model.names import NAME_BYTES_MAX

_FIRST, _COUNT = 0x4E00, 20_000
_BYTES_EACH: Final = 3


def longest_name(number: int) -> str:
    """Return a name of NAME_BYTES_MAX bytes in which every byte is escaped; each ``number`` gives another name."""
    # Characters from all over the script, so that no store can shorten the names by compression.
    state = number + 1
    characters: list[str] = []
    while len(characters) < NAME_BYTES_MAX // _BYTES_EACH:
        state = (state * 1_103_515_245 + 12_345) % (1 << 31)
        characters.append(chr(_FIRST + (state >> 8) % _COUNT))
    return "".join(characters)


def longest_segment(number: int) -> str:
    """Return a segment name of such a topic: ``tenant/namespace/name`` has NAME_BYTES_MAX bytes in all."""
    name = longest_name(number)
    tenant, namespace, rest = name[:28], name[28:56], name[56:]
    # The two slashes count towards the bytes, and one byte remains.
    return f"segment://{tenant}/{namespace}/{rest[:-1]}a/0000-ffff-{2**63 - 1}"
