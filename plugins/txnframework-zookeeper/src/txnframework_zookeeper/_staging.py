"""
Writing and removing the chunks of large values; see ``_chunks`` for who may do what with them.

The crash windows: a writer that dies before the multi that names what it staged leaves it behind, and with its session
goes the node that says it lives; one that dies after a multi that replaced or removed a record leaves chunks that are
``over``. Both are removed by the next one who stages a value for the same record, and beside the first write of whoever
opens the store.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from txnframework.errors import OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework_zookeeper._known import Known
from txnframework_zookeeper._reaping import Reaping
from txnframework_zookeeper.connection._requests import AlreadyThere, CreateNode, DeleteNode, MultiFailed, Op, SetNode
from txnframework_zookeeper.connection._zookeeper import ZooKeeper
from txnframework_zookeeper.tree._chunks import CHUNKS, OVER, STAGED, STAGED_VERSION, Chunks, begun, chunks_of
from txnframework_zookeeper.tree._layout import RECORD
from txnframework_zookeeper.tree._lives import life_node

_WRITTEN_TOGETHER_MAX = 8
_REMOVED_TOGETHER_MAX = 100


class Staging:
    """The chunks that one client writes, and those that it knows to be left over; ``client``: nobody else's name."""

    def __init__(
        self, zookeeper: ZooKeeper, known: Known, reaping: Reaping, client: str, attempts_max: int, nodes_max: int
    ) -> None:
        self._zookeeper = zookeeper
        self._known = known
        self._reaping = reaping
        self._client, self._tokens = client, 0
        self._attempts_max = attempts_max
        self._nodes_max = nodes_max
        # Nodes to look at, and whether it is this client that staged them and does not want them any more.
        self._due: OrderedDict[str, bool] = OrderedDict({CHUNKS: False})
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def stage(self, home: str, value: bytes) -> Chunks:
        """
        Write a value in chunks that nothing names yet.

        :raises Unavailable: it could not be done; nothing was changed.
        """
        for _ in range(self._attempts_max):
            self._tokens += 1
            chunks, data = chunks_of(value, f"{home}/{self._client}.{self._tokens:x}")
            try:
                if not await self._begin(chunks):
                    continue
                self._look_at(home)
                for at in range(0, chunks.number, _WRITTEN_TOGETHER_MAX):
                    some = slice(at, at + _WRITTEN_TOGETHER_MAX)
                    await asyncio.gather(*map(self._write, chunks.nodes[some], data[some]))
            except MultiFailed:
                # With the session, its right to the node went, and somebody took that away.
                self.discard(chunks)
            except BaseException:
                self.discard(chunks)
                raise
            else:
                return chunks
        raise self._exhausted(home)

    async def is_staged(self, chunks: Chunks) -> bool:
        """Whether chunks that this client staged may still be named."""
        node, life = await asyncio.gather(self._zookeeper.get(chunks.node), self._zookeeper.exists(chunks.life))
        return node is not None and node.data == STAGED and life is not None

    def discard(self, chunks: Chunks) -> None:
        """Let chunks go that this client staged, unless they were named after all."""
        self._note(chunks.node, True)
        self.go_on()

    def clear(self, ended: Iterable[Chunks]) -> None:
        """Remove chunks that are over."""
        for chunks in ended:
            self._note(chunks.node, False)
        self.go_on()

    def go_on(self) -> None:
        """Remove what is left over, beside whatever else goes on."""
        if self._due and self._task is None and not self._is_closed:
            self._task = asyncio.create_task(self._clear_all())
            self._task.add_done_callback(self._done)

    async def close(self) -> None:
        """Stop; may be repeated. What is left over is removed by others."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # -- writing --------------------------------------------------------------------------------------

    async def _begin(self, chunks: Chunks) -> bool:
        """Make the node that chunks stand below; return False where it is to be tried again with another one."""
        unknown = self._known.missing(chunks.node.rpartition("/")[0])[::-1]
        found = await asyncio.gather(*map(self._zookeeper.exists, unknown))
        missing = [node for node, stat in zip(unknown, found, strict=True) if stat is None]
        try:
            await self._zookeeper.multi([*map(CreateNode, missing), *begun(chunks)])
        except MultiFailed:
            # A node above it was made or removed meanwhile.
            self._known.forget_nodes([chunks.node])
            return False
        except OutcomeUnknown:
            self.discard(chunks)
            return False
        for node in unknown:
            self._known.parents.note(node, True)
        return True

    async def _write(self, node: str, data: bytes) -> None:
        """Make the node of a chunk, whatever is lost meanwhile."""
        is_unsure = False
        for _ in range(self._attempts_max):
            try:
                await self._zookeeper.multi([CreateNode(node, data)])
            except OutcomeUnknown:
                is_unsure = True
            except MultiFailed as failed:
                if is_unsure and isinstance(failed.cause, AlreadyThere):
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

    def _look_at(self, home: str) -> None:
        self._note(home, False)
        self.go_on()

    def _note(self, node: str, is_own: bool) -> None:
        self._due[node] = self._due.get(node, False) or is_own
        if len(self._due) > self._nodes_max:
            self._due.popitem(last=False)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()
            self.go_on()

    async def _clear_all(self) -> None:
        while self._due:
            node, is_own = self._due.popitem()
            try:
                if _is_home_or_above(node):
                    await self._find_below(node)
                else:
                    await self._clear(node, is_own)
            except (MultiFailed, TxnFrameworkError):
                continue  # Left to who comes there next.

    async def _find_below(self, node: str) -> None:
        """Note what stands below a node, but for what this client stages and clears itself."""
        names = await self._zookeeper.children(node, is_current=False)
        if not names:
            self._reaping.note(node)
        for name in names or ():
            if not name.startswith(f"{self._client}."):
                self._note(f"{node}/{name}", False)

    async def _clear(self, node: str, is_own: bool) -> None:
        """Remove what stands below a node that nothing names and nothing will."""
        found = await self._zookeeper.get(node)
        if found is None:
            return
        life = life_node(node.rpartition("/")[2])
        if found.data == STAGED:
            if not is_own and await self._zookeeper.exists(life) is not None:
                return
            await self._zookeeper.multi([SetNode(node, OVER, STAGED_VERSION)])
        elif found.data != OVER:
            return
        names = await self._zookeeper.children(node) or []
        for at in range(0, len(names), _REMOVED_TOGETHER_MAX):
            gone: list[Op] = [DeleteNode(f"{node}/{name}") for name in names[at : at + _REMOVED_TOGETHER_MAX]]
            await self._zookeeper.multi(gone)
        await self._zookeeper.multi([DeleteNode(node)])
        self._reaping.note(node.rpartition("/")[0])
        if is_own and await self._zookeeper.exists(life) is not None:
            await self._zookeeper.multi([DeleteNode(life)])


def _is_home_or_above(node: str) -> bool:
    """Whether a node is one that homes, or what is staged, stand below."""
    return node == CHUNKS or RECORD not in node.rpartition("/")[0]
