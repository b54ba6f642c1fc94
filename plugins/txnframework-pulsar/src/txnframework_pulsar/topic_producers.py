"""The producers that are connected to a topic: their names, and which of them may be the only one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from txnframework.client import Client
from txnframework.model.layout import Layout
from txnframework.model.names import TopicName
from txnframework_pulsar.faults import Refused
from txnframework_pulsar.limits import Limits
from txnframework_pulsar.peer import Peer
from txnframework_pulsar.producers import ProducerHandle
from txnframework_pulsar.topic_epochs import TopicEpochs
from txnframework_pulsar.topics import Topics
from txnframework_pulsar.wire import messages_pb2 as pb


@dataclass(slots=True)
class _Connected:
    """
    The producers of one topic by name; ``sole``: the one that has exclusive access.

    ``opening``: the number of producers that are being opened, or that wait.
    """

    by_name: dict[str, ProducerHandle] = field(default_factory=dict)
    sole: ProducerHandle | None = None
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    opening: int = 0


@dataclass(frozen=True, slots=True)
class OpenedProducer:
    """A producer with what its client learns: the last sequence id of its name, and the epoch of a sole producer."""

    topic: str
    handle: ProducerHandle
    last_sequence_id: int
    topic_epoch: int | None


class TopicProducers:
    """
    The producers of all topics that are connected to this gateway.

    One producer has a name, as sequence ids belong to names. A producer with exclusive access is the only one of its
    topic: the gateway serves all clients (``turn``), so it decides alone. Programs that use the framework without a
    gateway are not kept out.

    The topic's epoch (``topic_epochs``) grows with each producer that gets exclusive access. One that comes back with
    an earlier epoch was replaced, and is refused.
    """

    def __init__(self, client: Client, topics: Topics, epochs: TopicEpochs, limits: Limits) -> None:
        self._client = client
        self._topics = topics
        self._epochs = epochs
        self._limits = limits
        self._connected: dict[str, _Connected] = {}

    def names(self, topic: str) -> tuple[str, ...]:
        """Return the names of the producers of a topic."""
        known = self._connected.get(topic)
        return () if known is None else tuple(known.by_name)

    async def open(self, command: pb.Producer, peer: Peer, waits: Callable[[str], None]) -> OpenedProducer:
        """
        Open the producer that a client asks for.

        A client that chooses a name counts on from the last sequence id. Otherwise its first messages would be taken
        for copies of those that the name sent before.

        While a backlog quota refuses producers, none is opened, as by a broker. A client whose message was refused
        opens its producer again: this error makes it report the refusal and wait longer before each attempt.

        :param waits: called with the producer's name if it has to wait for exclusive access.
        :raises Refused: the name is in use, or access is refused.
        :raises BacklogQuotaExceeded: a subscription of the topic is too far behind.
        """
        topic, layout = await self._topics.opened(command.topic)
        quota = self._client.host.backlog_quotas.of(topic)
        if quota is not None:
            await quota.require_room()
        if command.initial_subscription_name:
            await self._client.subscribe(topic, command.initial_subscription_name)
        opened = await self._client.producer(topic, name=command.producer_name or None, stop_after_failure=True)
        handle = ProducerHandle(opened, command.producer_id, self._limits, peer)
        handle.epoch = command.epoch
        try:
            epoch = await self._admit(topic, layout, handle, command, waits)
            last = await self._client.last_sequence_id(topic, opened.name) if command.producer_name else None
        except BaseException:
            await self.release(str(topic), handle)
            raise
        return OpenedProducer(str(topic), handle, -1 if last is None else last, epoch)

    async def release(self, topic: str, handle: ProducerHandle) -> None:
        """Close a producer after its sends, and let the next one have exclusive access; a second call is allowed."""
        try:
            await handle.close()
        finally:
            self._forget(topic, handle)

    def _forget(self, topic: str, handle: ProducerHandle) -> None:
        known = self._connected.get(topic)
        if known is None:
            return
        if known.by_name.get(handle.opened.name) is handle:
            del known.by_name[handle.opened.name]
        if known.sole is handle:
            known.sole = None
        if not known.by_name:
            self._wake_first(known)
        self._drop_if_unused(topic, known)

    # -- access ---------------------------------------------------------------------------------------

    async def _admit(
        self,
        topic: TopicName,
        layout: Layout,
        handle: ProducerHandle,
        command: pb.Producer,
        waits: Callable[[str], None],
    ) -> int | None:
        """Register a producer; return the topic's epoch for one that has exclusive access."""
        known = self._connected.setdefault(str(topic), _Connected())
        mode = command.producer_access_mode
        known.opening += 1
        try:
            async with known.turn:
                await self._replace(known, str(topic), handle, generated=not command.user_provided_producer_name)
                if mode == pb.Producer.SHARED:
                    if known.sole is not None or known.waiting:
                        raise Refused(pb.PRODUCER_BUSY, f"{topic} has a producer with exclusive access")
                    known.by_name[handle.opened.name] = handle
                    return None
                await self._check_epoch(topic, layout, command)
                if mode == pb.Producer.EXCLUSIVE_WITH_FENCING:
                    await self._end_all(known, str(topic))
                elif mode == pb.Producer.EXCLUSIVE and (known.by_name or known.waiting):
                    raise Refused(pb.PRODUCER_FENCED, f"{topic} has other producers")
                if not known.by_name and (mode != pb.Producer.WAIT_FOR_EXCLUSIVE or not known.waiting):
                    return await self._become_sole(known, layout, handle, command)
            return await self._wait_for_turn(known, layout, handle, command, waits)
        finally:
            known.opening -= 1
            self._drop_if_unused(str(topic), known)

    async def _wait_for_turn(
        self,
        known: _Connected,
        layout: Layout,
        handle: ProducerHandle,
        command: pb.Producer,
        waits: Callable[[str], None],
    ) -> int:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        known.waiting.append(place)
        waits(handle.opened.name)
        try:
            while True:
                await place
                async with known.turn:
                    if not known.by_name:
                        known.waiting.remove(place)
                        return await self._become_sole(known, layout, handle, command)
                    # Another producer came first, with fencing: wait for its end.
                    known.waiting.remove(place)
                    place = asyncio.get_running_loop().create_future()
                    known.waiting.appendleft(place)
        except BaseException:
            if place in known.waiting:
                known.waiting.remove(place)
            if not known.by_name:
                self._wake_first(known)
            raise

    async def _become_sole(
        self, known: _Connected, layout: Layout, handle: ProducerHandle, command: pb.Producer
    ) -> int:
        # The name is taken before the epoch is stored, so that no other producer is admitted meanwhile.
        known.by_name[handle.opened.name] = known.sole = handle
        asked = command.topic_epoch if command.HasField("topic_epoch") else None
        return await self._epochs.next(*layout.created_as, asked)

    async def _check_epoch(self, topic: TopicName, layout: Layout, command: pb.Producer) -> None:
        if command.HasField("topic_epoch") and command.topic_epoch < await self._epochs.last(*layout.created_as):
            raise Refused(pb.PRODUCER_FENCED, f"another producer got exclusive access to {topic}")

    async def _replace(self, known: _Connected, topic: str, handle: ProducerHandle, *, generated: bool) -> None:
        """
        Close an earlier producer of the same name.

        A client that lost its connection comes back under its generated name with a higher epoch.

        :raises Refused: a client uses this name.
        """
        earlier = known.by_name.get(handle.opened.name)
        if earlier is None:
            return
        if not earlier.closing and not (generated and handle.epoch > earlier.epoch):
            raise Refused(pb.PRODUCER_BUSY, f"producer {handle.opened.name} is connected to {topic} already")
        await self.release(topic, earlier)

    async def _end_all(self, known: _Connected, topic: str) -> None:
        """Close all producers of a topic; what they have begun to store is stored before this returns."""
        for one in tuple(known.by_name.values()):
            one.end()
            await self.release(topic, one)

    @staticmethod
    def _wake_first(known: _Connected) -> None:
        for one in known.waiting:
            if not one.done():
                one.set_result(None)
            return

    def _drop_if_unused(self, topic: str, known: _Connected) -> None:
        if not known.by_name and not known.opening and self._connected.get(topic) is known:
            del self._connected[topic]
