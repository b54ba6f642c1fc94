"""
Watches, built on ZooKeeper's one-time watches.

A record is watched by reading its node. A range is watched by listing the nodes on the paths to its content. Every
change creates or deletes a child of one of them, or writes a record of the range, which is then watched as well. A node
that reported a change is watched again before ``changed`` returns, or in the next call. So a watch without a waiting
caller causes no requests, however often its target changes. After a lost connection every watch wakes.

ZooKeeper and kazoo keep a closed watch until the node changes or the connection is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from zope.interface import implementer

from txnframework.errors import Closed, TxnFrameworkError, Unavailable
from txnframework.interfaces import IValueWatch, IWatch
from txnframework.model import IndexRange, KeyRange
from txnframework_zookeeper.connection._client import ZooKeeperClient
from txnframework_zookeeper.connection._requests import Node, WatchLost
from txnframework_zookeeper.connection._session import SessionState
from txnframework_zookeeper.tree._ranges import TreeNode, TreeRange, tree_range

_AGAIN_S = 1.0


class _Watch:
    """The base of both kinds of watches; ``_arm`` may be called again after any failure."""

    def __init__(self, watches: Watches, zookeeper: ZooKeeperClient) -> None:
        self._watches = watches
        self._zookeeper = zookeeper
        self._may_have_changed = self._is_closed = False
        self._woken = asyncio.Event()

    async def begin(self) -> None:
        """
        Return once no change can be missed.

        :raises Closed, InvalidInput, Unavailable: the target cannot be watched.
        """
        while not await self._is_armed_now():
            self._require_open()
        self._require_open()

    async def changed(self) -> None:
        """Return once anything may have changed since arming or since the last return; see IWatch."""
        has_waited = False
        while True:
            self._require_open()
            self._woken.clear()
            try:
                if await self._has_changed(has_waited):
                    return
            except Closed:
                raise
            except TxnFrameworkError:
                # Without a connection the watch wakes after the reconnection. Otherwise, where a node may not be read
                # or too many are watched, no change would be reported. The watch then wakes at intervals, and the
                # caller's read finds the error or the change.
                if self._zookeeper.session.is_connected:
                    await asyncio.sleep(_AGAIN_S)
                    self._may_have_changed = True
                    return
            await self._woken.wait()
            has_waited = True

    async def close(self) -> None:
        """
        Remove the watch.

        A waiting ``changed`` raises Closed. Idempotent.
        """
        self.end()

    def wake(self) -> None:
        """Make ``changed`` return: a change is possible."""
        self._may_have_changed = True
        self._woken.set()

    def end(self) -> None:
        """Make ``changed`` raise Closed, now and on later calls."""
        if not self._is_closed:
            self._is_closed = True
            self._woken.set()
            self._watches.remove(self)

    def nodes(self) -> Iterable[str]:
        """Return the nodes whose changes the watch receives."""
        raise NotImplementedError

    def node_changed(self, node: str) -> None:
        """Handle the change of a node, whose one-time watch is thereby used up."""
        raise NotImplementedError

    def connection_lost(self) -> None:
        """Handle the loss of all watches with the connection; changes may have been missed."""
        raise NotImplementedError

    async def _arm(self) -> None:
        """
        Watch every node of the target that is not watched.

        :raises WatchLost: the connection was lost.
        """
        raise NotImplementedError

    async def _has_changed(self, has_waited: bool) -> bool:
        """
        Arm the unarmed watches, then return whether ``changed`` must return.

        ``has_waited``: whether ``changed`` has waited since it was called.
        """
        raise NotImplementedError

    async def _is_armed_now(self) -> bool:
        try:
            await self._arm()
        except WatchLost:
            return False
        return True

    def _require_open(self) -> None:
        self._zookeeper.session.require_open()
        if self._is_closed:
            raise Closed("the watch was closed")


@implementer(IWatch)
class RangeWatch(_Watch):
    """An armed watch on a range of keys or of an index."""

    def __init__(self, watches: Watches, zookeeper: ZooKeeperClient, watched: TreeRange) -> None:
        super().__init__(watches, zookeeper)
        self._range = watched
        self._tree_nodes: dict[str, TreeNode] = {}
        self._unarmed: set[str] = set()

    def nodes(self) -> Iterable[str]:
        """Return the nodes whose changes the watch receives."""
        return tuple(self._tree_nodes)

    def node_changed(self, node: str) -> None:
        """Handle the change of a node, whose one-time watch is thereby used up."""
        self._unarmed.add(node)
        self.wake()

    def connection_lost(self) -> None:
        """Handle the loss of all watches with the connection; changes may have been missed."""
        self._unarmed.update(self._tree_nodes)
        self.wake()

    async def _has_changed(self, has_waited: bool) -> bool:  # noqa: ARG002 - nothing is read without being watched
        # Changes reported from here on set the flag again.
        may_have_changed, self._may_have_changed = self._may_have_changed, False
        try:
            is_armed = await self._is_armed_now()
        except BaseException:
            self._may_have_changed = self._may_have_changed or may_have_changed
            raise
        if may_have_changed and not is_armed:
            self._may_have_changed = True
        return may_have_changed and is_armed

    async def _arm(self) -> None:
        if not self._tree_nodes:
            self._enter(self._range.start)
        while self._unarmed:
            nodes, self._unarmed = self._unarmed, set()
            try:
                await asyncio.gather(*map(self._arm_node, nodes))
            except BaseException:
                self._unarmed |= nodes
                raise

    async def _arm_node(self, node: str) -> None:
        opened = self._tree_nodes.get(node)
        if opened is None:
            return
        if opened.mark is not None:
            if await self._zookeeper.watch_stat(node) is None:
                self._leave(node)
            return
        names = await self._zookeeper.watch_children(node)
        while names is None:
            if opened is not self._range.start:
                # Its parent reports if the node is created again.
                self._leave(node)
                return
            if await self._zookeeper.watch_stat(node) is None:
                return
            names = await self._zookeeper.watch_children(node)
        for name in names:
            child = self._range.open_child(opened, name)
            if (child.mark is None or self._range.leaves_change) and self._range.contains(child):
                self._enter(child)

    def _enter(self, entered: TreeNode) -> None:
        if entered.node not in self._tree_nodes and not self._is_closed:
            self._watches.enter(entered.node, self)
            self._tree_nodes[entered.node] = entered
            self._unarmed.add(entered.node)

    def _leave(self, node: str) -> None:
        self._tree_nodes.pop(node, None)
        self._watches.leave(node, self)


@implementer(IValueWatch)
class RecordWatch(_Watch):
    """
    An armed watch on the node of one record; ``value_of`` returns a node's value, or None if it is incomplete.

    The request that arms the watch also reads the node. After a change, another read returns the new state. The next
    call that waits arms the watch again, also by a read. If that read finds another state than the last one, something
    has changed in between. A caller that waits for the end of a transaction therefore costs the servers two reads.
    """

    def __init__(
        self, watches: Watches, zookeeper: ZooKeeperClient, node: str, value_of: Callable[[Node], bytes | None]
    ) -> None:
        super().__init__(watches, zookeeper)
        self.value: bytes | None = None
        self._node = node
        self._value_of = value_of
        self._is_armed = False
        # The number of the transaction that wrote the last seen state; 0: the record did not exist.
        self._seen = 0

    async def begin(self) -> None:
        """Return once no change can be missed, and ``value`` is the value of the record."""
        self._watches.enter(self._node, self)
        await super().begin()

    def nodes(self) -> Iterable[str]:
        """Return the nodes whose changes the watch receives."""
        return (self._node,)

    def node_changed(self, node: str) -> None:  # noqa: ARG002 - there is but one
        """Handle the change of the node, whose one-time watch is thereby used up."""
        self._is_armed = False
        self.wake()

    def connection_lost(self) -> None:
        """Handle the loss of the watch with the connection; changes may have been missed."""
        self._is_armed = False
        self.wake()

    async def _has_changed(self, has_waited: bool) -> bool:
        if self._may_have_changed and has_waited:
            node = await self._zookeeper.get(self._node, is_current=False)
            if node is not None:
                self._see(node)
                return self._tell()
            # Arm it below: a later read could not show that the record was created and deleted in between.
        elif self._is_armed and not self._may_have_changed:
            return False
        may_have_changed, seen = self._may_have_changed, self._seen
        is_armed = await self._is_armed_now()
        return is_armed and (may_have_changed or self._seen != seen) and self._tell()

    async def _arm(self) -> None:
        # Set the mark before the request: a change may be reported before this code continues after the reply.
        self._is_armed = True
        try:
            self._see(await self._zookeeper.watch_node(self._node))
        except BaseException:
            self._is_armed = False
            raise

    def _see(self, node: Node | None) -> None:
        self._seen = 0 if node is None else node.stat.mzxid
        self.value = None if node is None else self._value_of(node)

    def _tell(self) -> bool:
        self._may_have_changed = False
        return True


W = TypeVar("W", RangeWatch, RecordWatch)


class Watches:
    """The armed watches of one client."""

    def __init__(self, zookeeper: ZooKeeperClient, nodes_max: int) -> None:
        self._zookeeper = zookeeper
        self._nodes_max = nodes_max
        # Dicts, so that watches are woken in the order in which they were armed.
        self._by_node: dict[str, dict[_Watch, None]] = {}
        self._is_closed = False
        zookeeper.listen(self)

    async def arm(self, target: KeyRange | IndexRange) -> RangeWatch:
        """
        Return a watch on a range that no later change escapes.

        :raises Unavailable: the maximum number of nodes is watched already.
        """
        return await self._begun(RangeWatch(self, self._zookeeper, tree_range(target)))

    async def arm_record(self, node: str, value_of: Callable[[Node], bytes | None]) -> RecordWatch:
        """Return a watch on the node of a record; otherwise like ``arm``."""
        return await self._begun(RecordWatch(self, self._zookeeper, node, value_of))

    def enter(self, node: str, watch: _Watch) -> None:
        """
        Report the changes of a node to a watch.

        :raises Unavailable: the maximum number of nodes is watched already.
        """
        if node not in self._by_node and len(self._by_node) >= self._nodes_max:
            raise Unavailable(
                f"{self._zookeeper.shown_url}: {self._nodes_max} nodes are watched already;"
                " give metadata.options.watches_max a higher value"
            )
        self._by_node.setdefault(node, {})[watch] = None

    def leave(self, node: str, watch: _Watch) -> None:
        """Stop reporting a node to a watch; an unknown one is ignored."""
        watching = self._by_node.get(node, {})
        watching.pop(watch, None)
        if not watching:
            self._by_node.pop(node, None)

    def remove(self, watch: _Watch) -> None:
        """Remove a watch; an unknown one is ignored."""
        for node in watch.nodes():
            self.leave(node, watch)

    def session_state_changed(self, state: SessionState) -> None:
        """Wake every watch after a reconnection: changes in between were not reported."""
        if state is not SessionState.SUSPENDED:
            for watch in self._all():
                watch.connection_lost()

    def node_changed(self, path: str) -> None:
        """Wake the watches that a change may concern."""
        node = self._zookeeper.without_root(path)
        for watch in tuple(self._by_node.get(node, ())):
            watch.node_changed(node)

    def close(self) -> None:
        """End every watch; idempotent."""
        self._is_closed = True
        for watch in self._all():
            watch.end()

    def _all(self) -> list[_Watch]:
        return list({watch: None for watching in self._by_node.values() for watch in watching})

    async def _begun(self, watch: W) -> W:
        self._zookeeper.session.require_open()
        if self._is_closed:
            raise Closed(f"the store {self._zookeeper.shown_url} is being closed, and its watches with it")
        try:
            await watch.begin()
        except BaseException:
            watch.end()
            raise
        return watch
