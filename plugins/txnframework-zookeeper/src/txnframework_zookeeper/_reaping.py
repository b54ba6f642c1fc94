"""
Removal of empty nodes, a few at a time, some time after they lost their last child.

No operation waits for it. A client that adds a child to a removed node is refused by ZooKeeper, checks which ancestors
exist, and creates them again. The removal of a node that has just got a child is refused too. Empty nodes of a dead
process are removed by the next process that lists them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework_zookeeper._known import Known
from txnframework_zookeeper.connection._requests import DeleteNode, MultiFailed
from txnframework_zookeeper.connection._zookeeper import ZooKeeper

# The number of slashes in the path of a tree's root.
_ROOT_SLASHES = 1
_TOGETHER_MAX = 64


class Reaping:
    """The nodes that one client may have left empty."""

    def __init__(
        self, zookeeper: ZooKeeper, known: Known, environment: Environment, delay_ms: int, nodes_max: int
    ) -> None:
        self._zookeeper = zookeeper
        self._known = known
        self._environment = environment
        self._delay_ms = delay_ms
        self._nodes_max = nodes_max
        self._due: OrderedDict[str, int] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def note(self, node: str) -> None:
        """
        Register a node that may have lost its last child; it is checked ``delay_ms`` later, with the next activity.
        """
        if node.count("/") <= _ROOT_SLASHES or node in self._due:
            return
        self._due[node] = self._environment.now_ms() + self._delay_ms
        if len(self._due) > self._nodes_max:
            self._due.popitem(last=False)

    def go_on(self) -> None:
        """Check the nodes that are due, in a background task."""
        if self._due and self._task is None and not self._is_closed and self._is_due():
            self._task = asyncio.create_task(self._reap())
            self._task.add_done_callback(self._done)

    async def close(self) -> None:
        """Stop; idempotent."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _is_due(self) -> bool:
        return next(iter(self._due.values())) <= self._environment.now_ms()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()

    async def _reap(self) -> None:
        while self._due and self._is_due():
            some: list[str] = []
            while self._due and len(some) < _TOGETHER_MAX and self._is_due():
                some.append(self._due.popitem(last=False)[0])
            await asyncio.gather(*map(self._reap_one, some))

    async def _reap_one(self, node: str) -> None:
        """Remove a node without children; after an error, the next process that lists the node removes it."""
        try:
            # A read costs less than a refused write, and need not be current: the removal itself is checked.
            stat = await self._zookeeper.exists(node, is_current=False)
            if stat is not None and stat.children_count:
                return
            self._known.parents.forget(node)
            self._known.alone.forget(node)
            if stat is not None:
                await self._zookeeper.multi([DeleteNode(node)])
        except (MultiFailed, TxnFrameworkError):
            return
        self.note(node.rpartition("/")[0])
