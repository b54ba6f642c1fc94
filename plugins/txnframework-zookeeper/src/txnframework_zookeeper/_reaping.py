"""Removing nodes that hold nothing any more, some time after they lost their last child, a few at a time.

Nothing waits for it. Whoever adds a child to a node that was just removed is refused by ZooKeeper, looks which of the
nodes above it are there, and makes them again; whoever removes a node to which a child was just added is refused too.
What a process leaves empty when it dies, the next one that lists it removes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework_zookeeper._known import Known
from txnframework_zookeeper.connection._requests import DeleteNode, MultiFailed
from txnframework_zookeeper.connection._zookeeper import ZooKeeper

# One after another tree's own root.
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
        """A node may have lost its last child; it is looked at ``delay_ms`` later, when something goes on here."""
        if node.count("/") <= _ROOT_SLASHES or node in self._due:
            return
        self._due[node] = self._environment.now_ms() + self._delay_ms
        if len(self._due) > self._nodes_max:
            self._due.popitem(last=False)

    def go_on(self) -> None:
        """Look at what is due, beside whatever else goes on."""
        if self._due and self._task is None and not self._is_closed and self._is_due():
            self._task = asyncio.create_task(self._reap())
            self._task.add_done_callback(self._done)

    async def close(self) -> None:
        """Stop; may be repeated."""
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
        """Remove a node if nothing stands below it; one that cannot be asked for is left to who lists it next."""
        try:
            # Reading costs less than a write that is refused, and need not be the latest: the removal decides.
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
