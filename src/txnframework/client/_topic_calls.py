"""Topics as whole things: making, splitting, compacting and deleting them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from txnframework.broker import Compactor, LatestByKey, Order
from txnframework.client._arguments import whole_number
from txnframework.client._calls import Calls, Name
from txnframework.errors import InvalidInput, TopicExists, TopicNotFound, excerpt
from txnframework.model.layout import HASH_MAX, Layout
from txnframework.model.names import TopicName, check_namespace


class TopicCalls(Calls):
    """What a client can be asked of topics, without sending or receiving."""

    async def create_topic(self, topic: Name, *, segments: int = 1, exist_ok: bool = False) -> None:
        """
        Make a topic of so many segments; a ``persistent://`` topic has one. Cancelled: it is made all the same.

        :raises InvalidInput: its name begins with ``__`` or breaks a rule of ``model.names.check_new_name``, or it
            cannot have so many segments.
        :raises TopicExists: it is there already, unless ``exist_ok``; it then stays as it is.
        """
        named = self._topic(topic)
        whole_number(segments, "segments", 1, HASH_MAX + 1)
        try:
            await self.host.steps.finish(
                lambda: self.host.topics.create(named, segments),
                (str(named), f"{named.tenant}/{named.namespace}"),
            )
        except TopicExists:
            if not exist_ok:
                raise

    async def undecided(self, topic: Name) -> dict[str, int]:
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

    async def delete_topic(self, topic: Name, *, force: bool = False) -> None:
        """
        Delete a topic with its messages, its subscriptions and what is kept of transactions in it.

        Open transactions that took part in it can still be committed: what they did elsewhere counts. Producers and
        consumers of the topic get TopicNotFound. A topic of this name may be made again and has nothing to do with it.

        Cancelled: it is deleted all the same.

        :param force: also if somebody uses it.
        :raises TopicInUse: it has subscriptions, or open transactions took part in it; nothing was changed.
        :raises TopicNotFound: there is no such topic.
        """
        name = self._topic(topic)
        await self._finish(name, lambda: self._delete(name, force))

    async def _delete(self, name: TopicName, force: bool) -> None:
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

        What was deleted when this fails stays so; repeat it. Cancelled: they are deleted all the same. Raises as
        ``delete_topic`` does.
        """
        tenant, name = check_namespace(namespace)
        delete = partial(self.host.topics.delete_all, tenant, name, force=force)
        await self.host.steps.finish(lambda: self._retrying.run(delete), (namespace,))

    async def layout(self, topic: Name) -> Layout:
        """
        Return a topic's segments: ``active()`` are those that take messages now, ``name_of(id)`` their full names.

        :raises TopicNotFound: there is no such topic.
        """
        return await self.host.topics.layout(self._topic(topic))

    async def split(self, topic: Name, segment_id: int) -> tuple[int, int]:
        """
        Split an active segment in the middle of its hash range; return the children's ids. Cancelled: it is split all
        the same.

        :raises LayoutConflict: it is not active, or holds one hash value only, or the topic is persistent.
        """
        named = self._topic(topic)
        whole_number(segment_id, "segment_id", 0)
        layout = await self._finish(named, lambda: self.host.topics.split(named, segment_id))
        low, high = layout.segments[segment_id].children
        return low, high

    async def merge(self, topic: Name, segment_id: int, other_id: int) -> int:
        """
        Merge two active neighbours; return the child's id. Cancelled: they are merged all the same.

        :raises LayoutConflict: one is not active, or they are not neighbours, or the topic is persistent.
        """
        for given, what in ((segment_id, "segment_id"), (other_id, "other_id")):
            whole_number(given, what, 0)
        named = self._topic(topic)
        layout = await self._finish(named, lambda: self.host.topics.merge(named, segment_id, other_id))
        (child,) = layout.segments[segment_id].children
        return child

    async def compact(
        self, topic: Name, compactor: Callable[[], Compactor] = LatestByKey, *, order: Order = "position"
    ) -> None:
        """
        Write what is to be kept of a topic beside it, for readers with ``compacted=True``; the topic stays as it is.

        Messages that are committed by now are looked at, aborted ones never. A repeated compaction in the order of
        positions goes on from what the one before kept in that order. It is written for each segment on its own: a key
        that has moved to another segment by a split stands in both, the later one last.

        Cancelled: it is given up, what was kept before stays, and the next compaction removes what this one wrote.

        :param compactor: makes what decides about one segment; default: the last message of each key stays, and a null
            deletes its key.
        :param order: of ``position``, or of ``commit``, for which everything is looked at anew each time, and the
            outcomes must still be kept (``transactions.retention_ms``).
        :raises CommitOrderUnknown: they are not.
        :raises CompactedInOtherOrder: the topic was compacted in the order of commits, and was trimmed since.
        :raises Fenced: somebody else began to compact the topic later.
        :raises TopicNotFound: there is no such topic.
        """
        if order not in ("position", "commit"):
            raise InvalidInput(f"messages are compacted in order of 'position' or 'commit', not {excerpt(order)}")
        layout = await self.host.topics.layout(self._topic(topic))
        await self._retrying.run(lambda: self.host.compacting.compact(layout, compactor, order))
