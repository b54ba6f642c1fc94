"""
Writing and removal of the chunks of large values; see ``tree._records`` for the rules of access.

Crash windows: a writer that dies before the multi that names its staged chunks leaves the chunks behind. Its life node
is deleted with its session. A writer that dies after a multi that replaced or deleted a record leaves chunks marked
``over``. Both are removed by the next client that stages a value for the same record, and with the first write of each
opening of the store.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from txnframework.errors import OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.runtime.tasks import start_task
from txnframework_zookeeper._nodes import EmptyNodeCollector, NodeCache
from txnframework_zookeeper.connection._client import ZooKeeperClient
from txnframework_zookeeper.connection._requests import CreateNode, DeleteNode, MultiFailed, NodeExists, Op, SetNode
from txnframework_zookeeper.tree._layout import RECORD, liveness_node
from txnframework_zookeeper.tree._records import CHUNKS, OVER, STAGED, STAGED_VERSION, Chunks, begun, chunks_of

_WRITTEN_TOGETHER_MAX = 8
_REMOVED_TOGETHER_MAX = 100


class ChunkWriter:
    """The chunks that one client writes, and the known leftover chunks; ``client`` is a name unique to this client."""

    def __init__(
        self,
        zookeeper: ZooKeeperClient,
        cache: NodeCache,
        empty_nodes: EmptyNodeCollector,
        client: str,
        attempts_max: int,
        nodes_max: int,
    ) -> None:
        self._zookeeper = zookeeper
        self._cache = cache
        self._empty_nodes = empty_nodes
        self._client, self._tokens = client, 0
        self._attempts_max = attempts_max
        self._nodes_max = nodes_max
        # Nodes to check, and whether this client staged them and no longer needs them.
        self._due: OrderedDict[str, bool] = OrderedDict({CHUNKS: False})
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def stage(self, home: str, value: bytes) -> Chunks:
        """
        Write a value in chunks that no record names yet.

        :raises Unavailable: the write failed; nothing was changed.
        """
        for _ in range(self._attempts_max):
            self._tokens += 1
            chunks, data = chunks_of(value, f"{home}/{self._client}.{self._tokens:x}")
            try:
                if not await self._begin(chunks):
                    continue
                self._add_due(home, False)
                self.start_due()
                for at in range(0, chunks.number, _WRITTEN_TOGETHER_MAX):
                    some = slice(at, at + _WRITTEN_TOGETHER_MAX)
                    await asyncio.gather(*map(self._write, chunks.nodes[some], data[some]))
            except MultiFailed:
                # The session ended, and its claim on the node ended with it. Then another client marked the chunks as
                # over.
                self.discard(chunks)
            except BaseException:
                self.discard(chunks)
                raise
            else:
                return chunks
        raise self._exhausted(home)

    async def is_staged(self, chunks: Chunks) -> bool:
        """Return whether chunks that this client staged may still be named."""
        node, life = await asyncio.gather(self._zookeeper.get(chunks.node), self._zookeeper.exists(chunks.life))
        return node is not None and node.data == STAGED and life is not None

    def discard(self, chunks: Chunks) -> None:
        """Remove chunks that this client staged, unless a record names them."""
        self._add_due(chunks.node, True)
        self.start_due()

    def remove(self, ended: Iterable[Chunks]) -> None:
        """Remove chunks that no record names any more."""
        for chunks in ended:
            self._add_due(chunks.node, False)
        self.start_due()

    def start_due(self) -> None:
        """Remove leftover chunks in a background task."""
        if self._due and self._task is None and not self._is_closed:
            self._task = start_task(self._remove_due())
            self._task.add_done_callback(self._done)

    async def close(self) -> None:
        """Stop; idempotent. Other clients remove the leftover chunks."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # -- writing --------------------------------------------------------------------------------------

    async def _begin(self, chunks: Chunks) -> bool:
        """Create the parent node of the chunks; return False if the caller must retry with another node."""
        unknown = self._cache.missing_parents(chunks.node.rpartition("/")[0])[::-1]
        found = await asyncio.gather(*map(self._zookeeper.exists, unknown))
        missing = [node for node, stat in zip(unknown, found, strict=True) if stat is None]
        try:
            await self._zookeeper.multi([*map(CreateNode, missing), *begun(chunks)])
        except MultiFailed:
            # An ancestor was created or deleted meanwhile.
            self._cache.discard_nodes([chunks.node])
            return False
        except OutcomeUnknown:
            self.discard(chunks)
            return False
        for node in unknown:
            self._cache.parents.put(node, True)
        return True

    async def _write(self, node: str, data: bytes) -> None:
        """Create the node of a chunk; retry after lost connections."""
        is_unsure = False
        for _ in range(self._attempts_max):
            try:
                await self._zookeeper.multi([CreateNode(node, data)])
            except OutcomeUnknown:
                is_unsure = True
            except MultiFailed as failed:
                if is_unsure and isinstance(failed.cause, NodeExists):
                    return
                raise
            else:
                return
        raise self._exhausted(node)

    def _exhausted(self, node: str) -> Unavailable:
        return Unavailable(
            f"{self._zookeeper.shown_url}: a large value could not be written to {node} in {self._attempts_max}"
            " attempts; try again"
        )

    # -- removing -------------------------------------------------------------------------------------

    def _add_due(self, node: str, is_unneeded: bool) -> None:
        self._due[node] = self._due.get(node, False) or is_unneeded
        if len(self._due) > self._nodes_max:
            self._due.popitem(last=False)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()
            self.start_due()

    async def _remove_due(self) -> None:
        while self._due:
            node, is_unneeded = self._due.popitem()
            try:
                if _is_home_or_above(node):
                    await self._find_chunks(node)
                else:
                    await self._remove(node, is_unneeded)
            except (MultiFailed, TxnFrameworkError):
                continue  # The next client that stages a value there retries.

    async def _find_chunks(self, node: str) -> None:
        """Register the chunks below a node, except those that this client stages and clears itself."""
        names = await self._zookeeper.children(node, is_current=False)
        if not names:
            self._empty_nodes.add(node)
        for name in names or ():
            if not name.startswith(f"{self._client}."):
                self._add_due(f"{node}/{name}", False)

    async def _remove(self, node: str, is_unneeded: bool) -> None:
        """Remove the chunks below a node that no record names or will name."""
        found = await self._zookeeper.get(node)
        if found is None:
            return
        life = liveness_node(node.rpartition("/")[2])
        if found.data == STAGED:
            if not is_unneeded and await self._zookeeper.exists(life) is not None:
                return
            await self._zookeeper.multi([SetNode(node, OVER, STAGED_VERSION)])
        elif found.data != OVER:
            return
        names = await self._zookeeper.children(node) or []
        for at in range(0, len(names), _REMOVED_TOGETHER_MAX):
            gone: list[Op] = [DeleteNode(f"{node}/{name}") for name in names[at : at + _REMOVED_TOGETHER_MAX]]
            await self._zookeeper.multi(gone)
        await self._zookeeper.multi([DeleteNode(node)])
        self._empty_nodes.add(node.rpartition("/")[0])
        if is_unneeded and await self._zookeeper.exists(life) is not None:
            await self._zookeeper.multi([DeleteNode(life)])


def _is_home_or_above(node: str) -> bool:
    """Return whether a node is one that has homes, or staged chunks, below it."""
    return node == CHUNKS or RECORD not in node.rpartition("/")[0]
