"""
The outcome of a multi whose reply was lost, determined by reading the records that it writes.

Every record holds the token of the multi that wrote it last. After the reconnection, the multi was applied before the
first read, or never will be. So a record with the token, or one without a change, proves the outcome. If other clients
have since overwritten or deleted the record, the outcome stays unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from txnframework.errors import OutcomeUnknown, TxnFrameworkError
from txnframework.model import Expect
from txnframework_zookeeper._steps import Plan, Step
from txnframework_zookeeper.connection._requests import Node
from txnframework_zookeeper.connection._zookeeper import ZooKeeper
from txnframework_zookeeper.tree._records import Standing, token_of


async def settled(
    zookeeper: ZooKeeper, plan: Plan, steps: Sequence[Step], seen_zxid: int, lost: OutcomeUnknown
) -> int | None:
    """
    Return the transaction number of the multi; None: it was not applied, or changes nothing.

    A single deletion with ``Expect.ANY`` succeeded if the record is absent, whichever client deleted it. Otherwise it
    is not retried: a client that saw no record may have created a new one.

    :param seen_zxid: the last transaction that this client had seen before it sent the multi.
    :raises OutcomeUnknown: reading does not show the outcome; the error is ``lost``.
    """
    if not any(step.writes for step in steps):
        return None
    try:
        found = await asyncio.gather(*map(zookeeper.get, plan.before))
        for node, (record, before) in zip(found, plan.before.items(), strict=True):
            is_removed = plan.records[record] is None
            if node is not None and not is_removed and token_of(node) == plan.token:
                return int(node.stat.mzxid)
            if node is not None and before is not None and _is_kept(node, before, is_removed):
                return None
            if node is None and before is None and await _is_untouched(zookeeper, record, seen_zxid):
                return None
    except TxnFrameworkError as error:
        raise lost from error
    if len(steps) == 1 and steps[0].removes and steps[0].expected is Expect.ANY and found == [None]:
        return seen_zxid
    raise lost


def _is_kept(node: Node, before: Standing, is_removed: bool) -> bool:
    """Return whether a record is unchanged, or, if the multi was to delete it, still in its earlier life."""
    return node.stat.mzxid == before.version or (is_removed and node.stat.czxid <= before.version)


async def _is_untouched(zookeeper: ZooKeeper, node: str, seen_zxid: int) -> bool:
    """Return whether no node was created or deleted below the remaining ancestors of a node."""
    stat = None
    while stat is None and node:
        node = node[: node.rfind("/")]
        stat = await zookeeper.exists(node or "/")
    return stat is not None and stat.pzxid <= seen_zxid
