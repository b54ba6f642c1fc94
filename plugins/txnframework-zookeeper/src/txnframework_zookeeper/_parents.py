"""
The nodes that a record stands below, made before the multi that makes the record where they do not fit into it.

A long name is cut into hundreds of nodes, each of which a request names by its whole path, so that all of them together
are larger than any name. An empty node means nothing, so it may be made by itself. The crash window: a process that
dies between these requests and the multi leaves empty nodes, which the next process that lists them removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework_zookeeper.connection._requests import CreateNode
from txnframework_zookeeper.connection._zookeeper import ZooKeeper

# A quarter of what a server takes: the rest is for the multi's own steps.
TOGETHER_BYTES_MAX = 262_144
OP_BYTES = 200
"""What an op takes beside its path and data, the access control list of a login included."""


async def make_ahead(zookeeper: ZooKeeper, missing: Sequence[str], made: Callable[[str], None]) -> list[str]:
    """
    Make so many of the missing nodes, the highest first, that the rest fits into one multi; return the rest.

    ``made`` is told of each. Repeating it after any failure is safe.

    :raises MultiFailed: others made or removed one of them since.
    :raises Unavailable: a reply was lost; nothing was changed but for empty nodes.
    """
    *ahead, rest = _groups(missing, len(zookeeper.full("").encode()) + OP_BYTES)
    for group in ahead:
        try:
            await zookeeper.multi([CreateNode(node) for node in group])
        except OutcomeUnknown as lost:
            raise Unavailable(str(lost)) from lost
        for node in group:
            made(node)
    return rest


def _groups(nodes: Sequence[str], each_bytes: int) -> Iterator[list[str]]:
    """Divide nodes into groups of which each fits one request, at least one group."""
    group: list[str] = []
    size = 0
    for node in nodes:
        size += len(node) + each_bytes
        if group and size > TOGETHER_BYTES_MAX:
            yield group
            group, size = [], len(node) + each_bytes
        group.append(node)
    yield group
