"""Routing of a producer's messages to the segments of its topic, which follows splits and merges."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from txnframework.broker import Host
from txnframework.client._base import RetryPolicy
from txnframework.client._sends.batches import OutgoingMessage, hash_of
from txnframework.client._sends.segment_sender import BeyondWindow, Following, SegmentSender
from txnframework.errors import Closed, LedgerSealed, TopicNotFound
from txnframework.model.entries import EntryMessage
from txnframework.model.layout import Layout, SegmentState
from txnframework.model.names import SegmentName, TopicName
from txnframework.runtime.tasks import start_task


class SegmentRouter:
    """
    Passes messages to the sender of their segment, by the hash of key or sequence id.

    When a segment was sealed, the messages that wait for it continue to its children, in order.
    """

    def __init__(
        self,
        host: Host,
        retry: RetryPolicy,
        target: TopicName | SegmentName,
        layout: Layout,
        producer: str,
        stop_after_failure: bool,
    ) -> None:
        self.layout = layout
        """The layout by which messages are routed."""
        self.stopped_by: str | None = None
        """
        Why later messages outside of transactions are refused, after one that was not stored.

        A text, because an error that is raised many times keeps the frames of all callers.
        """
        self._host = host
        self._retry = retry
        self._producer = producer
        self._target = target
        self._only = target if isinstance(target, SegmentName) else None
        self._stops_after_failure = stop_after_failure
        self._beyond = BeyondWindow(host.metrics, str(target if self._only is None else self._only.topic), producer)
        self._senders: dict[int, SegmentSender] = {}
        self._rerouting: asyncio.Task[None] | None = None
        self._follow(layout)

    def segment_of(self, message: EntryMessage) -> int:
        """Return the id of the segment to which a message goes."""
        return self._sole if self._sole is not None else self.layout.route(hash_of(message, self._producer)).id

    def put(self, outgoing: OutgoingMessage) -> None:
        """Send a message after all earlier ones of its segment."""
        if self.stopped_by is not None and outgoing.branch is None:
            outgoing.fail(Closed(self.stopped_by))
            return
        segment_id = self.segment_of(outgoing.message)
        sender = self._senders.get(segment_id)
        if sender is None:
            sender = self._senders[segment_id] = self._new_sender(segment_id)
        sender.put(outgoing)

    def joint_routes(self, messages: Sequence[OutgoingMessage]) -> dict[str, list[OutgoingMessage]] | None:
        """
        Return messages by the name of their segment, in order, for a step that appends them past the senders.

        None if it would overtake earlier messages of one of the segments, or while a change of the layout is followed.
        """
        if self._rerouting is not None:
            return None
        routed: dict[int, list[OutgoingMessage]] = {}
        for one in messages:
            routed.setdefault(self.segment_of(one.message), []).append(one)
        if any(number in self._senders and self._senders[number].has_unsent for number in routed):
            return None
        return {self._name_of(number): some for number, some in routed.items()}

    async def catch_up(self) -> None:
        """Follow a change of the layout that has refused a step, so that the next one is routed by it."""
        if self._rerouting is None:
            self._rerouting = start_task(self._follow_stored())
            self._rerouting.add_done_callback(self._rerouted)
        await asyncio.wait({self._rerouting})

    async def _follow_stored(self) -> None:
        layout = await self._retry.run(self._host.topics.finish_changes, self.layout.topic)
        if layout.continues(self.layout):
            await self._move_to(layout)

    def fail_later(self, error: BaseException) -> None:
        """After a message outside of transactions was not stored: refuse later ones, if the producer is to do so."""
        if not self._stops_after_failure or self.stopped_by is not None:
            return
        why = str(error) or type(error).__name__
        self.stopped_by = f"producer {self._producer} stopped after a message that was not stored: {why}"
        for sender in tuple(self._senders.values()):
            sender.refuse_waiting(Closed(self.stopped_by))

    async def close(self) -> None:
        """Wait for the messages in flight, and fail those that nothing sends any more."""
        while self._rerouting is not None or any(sender.busy for sender in self._senders.values()):
            if self._rerouting is not None:
                await asyncio.wait({self._rerouting})
            for sender in tuple(self._senders.values()):
                await sender.idle()
        # No task is left that could send the waiting messages.
        for sender in self._senders.values():
            sender.give_up(Closed(f"producer {self._producer} was closed"))

    def _follow(self, layout: Layout) -> None:
        """Route by this layout. If it has one active segment, messages are not hashed."""
        self.layout = layout
        active = layout.active()
        self._names: dict[int, str] = {}
        if self._only is not None:
            self._sole: int | None = self._only.segment_id
        else:
            self._sole = active[0].id if len(active) == 1 else None

    def _name_of(self, segment_id: int) -> str:
        found = self._names.get(segment_id)
        if found is None:
            found = self._names[segment_id] = str(self.layout.name_of(segment_id))
        return found

    def _new_sender(self, segment_id: int) -> SegmentSender:
        layout = self.layout
        ancestors = tuple((str(layout.name_of(one.id)), one) for one in layout.ancestors(segment_id))
        name = str(layout.name_of(segment_id))
        following = Following(self._has_migrated, self._reroute_soon if self._only is None else None)
        failed = self.fail_later if self._stops_after_failure else None
        return SegmentSender(
            self._host, self._retry, self._producer, name, ancestors, following, layout.life, self._beyond, failed
        )

    async def _has_migrated(self, life: int) -> bool:
        """Return whether the topic has another life, after a migration that is decided was finished."""
        layout = await self._retry.run(self._host.topics.finish_changes, self.layout.topic)
        return layout.life != life

    def _reroute_soon(self) -> None:
        if self._rerouting is None:
            self._rerouting = start_task(self._reroute())
            self._rerouting.add_done_callback(self._rerouted)

    def _rerouted(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step never runs, so ``_reroute`` has not failed the waiting sends.
        if self._rerouting is task:
            self._rerouting = None
            self._fail_stopped()

    def _fail_stopped(self) -> None:
        for sender in self._senders.values():
            if sender.stopped:
                sender.fail(
                    Closed(f"producer {self._producer} was stopped while it followed a change of {self._target}")
                )

    async def _reroute(self) -> None:
        """Finish the layout change that sealed a segment, then send its waiting messages to the children, in order."""
        try:
            while stopped := {number: sender for number, sender in self._senders.items() if sender.stopped}:
                try:
                    layout = await self._retry.run(self._host.topics.finish_changes, self.layout.topic)
                except Exception as error:  # raised by the waiting sends; later sends retry
                    for sender in stopped.values():
                        sender.fail(error)
                    continue
                if not layout.continues(self.layout):
                    # The topic was deleted and created again: these messages do not belong to the new topic.
                    for sender in stopped.values():
                        sender.fail(TopicNotFound(str(layout.topic), deleted=True))
                    continue
                await self._move_to(layout)
                for number, sender in stopped.items():
                    if number in self._senders:  # sealed or deleted without a layout change, so it has no children
                        sender.fail(sender.refused or LedgerSealed(str(layout.name_of(number))))
        except BaseException:
            self._fail_stopped()
            raise
        finally:
            self._rerouting = None

    async def _move_to(self, layout: Layout) -> None:
        stale: dict[int, SegmentSender] = {}
        # A merged segment has a second parent, whose sends in flight must end before later messages go to the child.
        # Otherwise messages of one key could overtake each other. Meanwhile new sends still follow the old layout, and
        # may open a sender to another replaced segment. So this repeats until no such sender is found.
        while found := {
            number: sender
            for number, sender in self._senders.items()
            if number not in stale and layout.segments[number].state is SegmentState.REPLACED
        }:
            stale |= found
            for sender in found.values():
                sender.stopped = True
            for sender in found.values():
                await sender.idle()
        has_migrated = layout.life != self.layout.life
        self._follow(layout)
        for number in stale:
            del self._senders[number]
        # The messages of two merged parents continue in the order in which they were sent. An entry claims every
        # sequence id between its first and last one. So entries of the second parent would be refused after those of
        # the first parent.
        for outgoing in sorted((one for sender in stale.values() for one in sender.waiting), key=lambda one: one.order):
            outgoing.has_migrated = outgoing.has_migrated or has_migrated
            self.put(outgoing)
