"""
What became of a multi whose reply was lost, by reading what it was to write.

Every record holds the token of the multi that wrote it last. Once there is a connection again, the multi was applied
before anything is read, or never will be; so whatever shows the token, or shows that nothing happened, is certain. What
others wrote over it in between, or removed, cannot be told any more.
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
    Return the number of the multi's transaction, None: it was not applied, or changes nothing.

    Removing whatever there is has been done if there is nothing, whoever did it. Otherwise it is not done again:
    somebody who saw that there was nothing may have made the record anew.

    ``seen_zxid``: what this client had seen before it sent the multi.

    :raises OutcomeUnknown: ``lost``, if reading does not tell.
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
    """Whether a record is as it was, or, if the multi was to remove it, still in the life that it had."""
    return node.stat.mzxid == before.version or (is_removed and node.stat.czxid <= before.version)


async def _is_untouched(zookeeper: ZooKeeper, node: str, seen_zxid: int) -> bool:
    """Whether nothing was made or removed below what is left of the nodes that a node stands below."""
    stat = None
    while stat is None and node:
        node = node[: node.rfind("/")]
        stat = await zookeeper.exists(node or "/")
    return stat is not None and stat.pzxid <= seen_zxid
