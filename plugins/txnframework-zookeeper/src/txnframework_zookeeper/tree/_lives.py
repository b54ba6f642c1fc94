"""
Nodes that live as long as a session: what tells one holder of a lease from the next, and who stages chunks.

ZooKeeper compares the version of a node, which starts over when the node is made again, and the record of a lease is
never written twice. Beside it stands a node that nobody will have again, made and removed with it; a check of a lease
requires both.
"""

from __future__ import annotations

from txnframework.model.paths import leases_range

LIVES = "/lives"
"""The node that one node stands below for each lease, and for each value that is being written in chunks."""

_LEASES = leases_range("").start


def is_lease(path: str) -> bool:
    """Whether a record is that of a lease."""
    return path.startswith(_LEASES)


def life_node(token: str) -> str:
    """Return the node that stands as long as the holder of a lease has it, or chunks are being written by who lives."""
    return f"{LIVES}/{token}"
