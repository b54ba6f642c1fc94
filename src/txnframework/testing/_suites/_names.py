"""The longest names that can be made, in the keys that grow most with them; a backend's limits must not be met."""

from __future__ import annotations

from typing import Final

from txnframework.model.names import NAME_BYTES_MAX

_FIRST, _COUNT = 0x4E00, 20_000
_BYTES_EACH: Final = 3


def longest_name(number: int) -> str:
    """Return a name of NAME_BYTES_MAX bytes, each of which is escaped; other numbers give other names of that kind."""
    # Scattered over the script, so that no store makes them short by compressing them.
    state = number + 1
    characters: list[str] = []
    while len(characters) < NAME_BYTES_MAX // _BYTES_EACH:
        state = (state * 1_103_515_245 + 12_345) % (1 << 31)
        characters.append(chr(_FIRST + (state >> 8) % _COUNT))
    return "".join(characters)


def longest_segment(number: int) -> str:
    """Return the name of a segment of such a topic: ``tenant/namespace/name`` together has NAME_BYTES_MAX bytes."""
    name = longest_name(number)
    tenant, namespace, rest = name[:28], name[28:56], name[56:]
    # Two of its bytes are the slashes, and one is left over.
    return f"segment://{tenant}/{namespace}/{rest[:-1]}a/0000-ffff-{2**63 - 1}"
