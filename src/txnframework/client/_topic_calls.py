"""Topics as whole things: making, splitting, compacting and deleting them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from txnframework.broker import Compactor, LatestByKey, Order
from txnframework.client._calls import Calls
from txnframework.errors import InvalidInput, TopicExists, TopicNotFound
from txnframework.model.layout import Layout


class TopicCalls(Calls):
    """What a client can be asked of topics, without sending or receiving."""

    async def create_topic(self, topic: str, *, segments: int = 1, exist_ok: bool = False) -> None:
        """
        Make a topic of so many segments; a ``persistent://`` topic has one.

        :raises InvalidInput: its name begins with ``__``, or it cannot have so many segments.
        :raises TopicExists: it is there already, unless ``exist_ok``; it then stays as it is.
        """
        try:
            await self.host.topics.create(self._topic(topic), segments)
        except TopicExists:
            if not exist_ok:
                raise

    async def undecided(self, topic: str) -> dict[str, int]:
        """
        Return, by segment, how many messages may not be read yet, as the first of them is of an open transaction.

        What was aborted behind it is counted as well, as nobody looked at it yet.

        :raises TopicNotFound: there is no such topic.
        """
        layout = await self.host.topics.layout(self._topic(topic))
        return await self._retrying.run(lambda: self.host.backlog.undecided(layout))

    async def upkeep(self) -> None:
        """
        Do now what clients do in the background, for programs that do not live for so long.

        A sweep over a bounded number of transactions of each family: those that are overdue, or whose process is gone,
        are aborted, what has ended takes effect, what is done is forgotten. Then trimming, collecting abort records and
        finishing deletions, of all topics, unless another process is doing so.
        """
        await self.host.coordinators()  # what is open is swept
        await self.host.sweeps.sweep()
        await self.host.upkeep.all_topics()

    async def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """
        Delete a topic with its messages, its subscriptions and what is kept of transactions in it.

        Open transactions that took part in it can still be committed: what they did elsewhere counts. Producers and
        consumers of the topic get TopicNotFound. A topic of this name may be made again and has nothing to do with it.

        :param force: also if somebody uses it.
        :raises TopicInUse: it has subscriptions, or open transactions took part in it; nothing was changed.
        :raises TopicNotFound: there is no such topic.
        """
        name = self._topic(topic)
        tried = False
        # A topic of this name that somebody makes while this is tried again is not meant.
        life = await self._retrying.run(lambda: self.host.topics.deleting.life(name))

        async def delete() -> None:
            nonlocal tried
            try:
                await self.host.topics.delete(name, force=force, life=life)
            except TopicNotFound as gone:
                if not (tried and gone.deleted):  # otherwise it was decided here, and another process finished it
                    raise
            finally:
                tried = True

        await self._retrying.run(delete)

    async def delete_namespace(self, namespace: str, *, force: bool = False) -> None:
        """
        Delete every topic of a namespace (``tenant/namespace``), after a look that none is in use.

        What was deleted when this fails stays so; repeat it. Raises as ``delete_topic`` does.
        """
        tenant, slash, name = namespace.partition("/")
        if not (tenant and slash and name) or "/" in name:
            raise InvalidInput(f"{namespace!r} is not a namespace: write tenant/namespace")
        await self._retrying.run(partial(self.host.topics.delete_all, tenant, name, force=force))

    async def layout(self, topic: str) -> Layout:
        """
        Return a topic's segments: ``active()`` are those that take messages now, ``name_of(id)`` their full names.

        :raises TopicNotFound: there is no such topic.
        """
        return await self.host.topics.layout(self._topic(topic))

    async def split(self, topic: str, segment_id: int) -> tuple[int, int]:
        """
        Split an active segment in the middle of its hash range; return the children's ids.

        :raises LayoutConflict: it is not active, or holds one hash value only, or the topic is persistent.
        """
        layout = await self.host.topics.split(self._topic(topic), segment_id)
        low, high = layout.segments[segment_id].children
        return low, high

    async def merge(self, topic: str, segment_id: int, other_id: int) -> int:
        """
        Merge two active neighbours; return the child's id.

        :raises LayoutConflict: one is not active, or they are not neighbours, or the topic is persistent.
        """
        layout = await self.host.topics.merge(self._topic(topic), segment_id, other_id)
        (child,) = layout.segments[segment_id].children
        return child

    async def compact(
        self, topic: str, compactor: Callable[[], Compactor] = LatestByKey, *, order: Order = "position"
    ) -> None:
        """
        Write what is to be kept of a topic beside it, for readers with ``compacted=True``; the topic stays as it is.

        Messages that are committed by now are looked at, aborted ones never. A repeated compaction goes on from what
        the one before kept. It is written for each segment on its own: a key that has moved to another segment by a
        split stands in both, the later one last.

        :param compactor: makes what decides about one segment; default: the last message of each key stays.
        :param order: of ``position``, or of ``commit``, for which everything is looked at anew each time, and the
            outcomes must still be kept (``transactions.retention_ms``).
        :raises CommitOrderUnknown: they are not.
        :raises Fenced: somebody else began to compact the topic later.
        :raises TopicNotFound: there is no such topic.
        """
        if order not in ("position", "commit"):
            raise InvalidInput(f"messages are compacted in order of 'position' or 'commit', not {order!r}")
        layout = await self.host.topics.layout(self._topic(topic))
        await self._retrying.run(lambda: self.host.compacting.compact(layout, compactor, order))
