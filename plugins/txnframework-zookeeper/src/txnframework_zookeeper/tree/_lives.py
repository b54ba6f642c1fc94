"""
Ephemeral nodes: they distinguish successive holders of a lease, and mark clients that stage chunks.

ZooKeeper compares the version of a node, which starts again when the node is created again, and the record of a lease
is never rewritten. So a second node with a unique name is created and deleted with the record. A check of a lease
requires both nodes.
"""

from __future__ import annotations

from txnframework.model.paths import leases_range

LIVES = "/lives"
"""The parent of the ephemeral nodes: one for each lease, and one for each value that is being written in chunks."""

_LEASES = leases_range("").start


def is_lease(path: str) -> bool:
    """Return whether a path is the record of a lease."""
    return path.startswith(_LEASES)


def life_node(token: str) -> str:
    """Return the node that exists while a lease is held, or while chunks are written by a live client."""
    return f"{LIVES}/{token}"
