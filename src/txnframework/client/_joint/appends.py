"""The entries that a step appends to each segment."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from txnframework.broker import Host
from txnframework.client._base import RetryPolicy
from txnframework.client._joint.refusals import StepsNeeded
from txnframework.client._messages import MessageID
from txnframework.client._planned import PlannedSend, by_producer
from txnframework.client._sends.batches import OutgoingMessage, SendCall, take_batch
from txnframework.errors import NotFound
from txnframework.interfaces import IPlannableBuffer
from txnframework.model.entries import encode_entry
from txnframework.model.ids import Branch
from txnframework.model.ledger import Append
from txnframework.model.positions import Limit, Position
from txnframework.model.reads import Isolation, ReadRequest
from txnframework.model.steps import LedgerAppend

_PAGE = Limit(1_000)


@dataclass(eq=False, slots=True)
class _SegmentAppends:
    """
    The entries of one segment, and the messages of each; several producers may have some.

    ``before``: a position before all of them.
    """

    buffer: IPlannableBuffer
    reference: object
    before: Position
    entries: list[Append]
    messages: list[list[PlannedSend]]


class JointAppends:
    """
    The messages of a transaction, as entries of their segments. ``ids``: those of the messages, after ``confirm``.

    They hold the quotas of their producers until ``release``.
    """

    def __init__(self, host: Host, branch: Branch, principal: str) -> None:
        self.ids: dict[PlannedSend, MessageID] = {}
        self._host = host
        self._branch = branch
        self._principal = principal
        self._segments: dict[str, _SegmentAppends] = {}
        self._calls: list[SendCall] = []

    async def add(self, planned: Sequence[PlannedSend], until: ExitStack | None) -> None:
        """
        Number, route and encode messages. Their observation, if there is any, ends with the stack ``until``.

        :raises StepsNeeded: some of them cannot be part of a step.
        """
        # In one order, so that two transactions never wait for each other's quotas.
        for sends, some in sorted(by_producer(planned).items(), key=lambda item: id(item[0])):
            messages = [one.message for one in some]
            if until is not None:
                messages = [sends.observed(one, self._branch, until) for one in messages]
            begun = await sends.begin_joint(messages, self._branch, self._principal)
            if begun is None:
                raise StepsNeeded
            self._calls.append(begun.call)
            for name, routed in begun.by_segment.items():
                self._encode(await self._segment(name, begun.life), sends.name, some, routed)

    def _encode(
        self, segment: _SegmentAppends, producer: str, planned: Sequence[PlannedSend], routed: list[OutgoingMessage]
    ) -> None:
        """
        Add the entries of routed messages of one producer, in order.

        They claim no sequences. A claim finds a copy that an earlier attempt has stored, and the step has none: after a
        lost reply, the header of its transaction shows whether it was applied.
        """
        bounds, waiting = self._host.config.client, deque(routed)
        while waiting:
            some = take_batch(waiting, bounds.entry_messages_max, bounds.entry_bytes_max)
            data = encode_entry([one.message for one in some], producer, self._branch)
            segment.entries.append(Append(data, len(some), self._branch, principal=self._principal))
            segment.messages.append([planned[one.at] for one in some])

    def requests(self) -> tuple[LedgerAppend, ...]:
        """Return the parts of the step, by segment."""
        return tuple([LedgerAppend(one.reference, tuple(one.entries)) for one in self._segments.values()])

    async def confirm(self, positions: Sequence[Sequence[Position]] | None) -> None:
        """
        Give all messages their ids, and wake readers.

        :param positions: of the entries; None if the step was applied and its reply was lost. They are then read.
        :raises NotFound: the entries were trimmed or deleted meanwhile.
        """
        for place, (name, segment) in enumerate(self._segments.items()):
            at = await self._stored(name, segment) if positions is None else positions[place]
            for messages, position in zip(segment.messages, at, strict=True):
                for index, one in enumerate(messages):
                    self.ids[one] = MessageID(name, Position(position.ledger_id, position.entry_id, index))
            await segment.buffer.appended_jointly(at[-1])

    def release(self, _: object = None) -> None:
        """Return the quotas; to be called once the step is over, whatever came of it."""
        for one in self._calls:
            one.give_up()

    async def _segment(self, name: str, life: int) -> _SegmentAppends:
        """Return the entries of a segment; raise StepsNeeded if its plugins append by themselves only."""
        known = self._segments.get(name)
        if known is not None:
            return known
        opened = await self._host.segments.segment(name)
        ledger, buffer = opened.ledger, opened.buffer
        if not opened.is_of(life) or not IPlannableBuffer.providedBy(buffer):
            raise StepsNeeded
        found = self._segments[name] = _SegmentAppends(buffer, ledger.reference, await buffer.tail_seen(), [], [])
        return found

    async def _stored(self, name: str, segment: _SegmentAppends) -> list[Position]:
        """Return the positions of the entries that the step has appended to a segment."""
        retry = RetryPolicy(self._host.environment, self._host.config.client)
        return await retry.run(self._read, name, segment)

    async def _read(self, name: str, segment: _SegmentAppends) -> list[Position]:
        found: list[Position] = []
        after, count = segment.before, len(segment.entries)
        while len(found) < count:
            page = await segment.buffer.read(ReadRequest(after, _PAGE, Isolation.READ_UNCOMMITTED))
            if page.upto <= after:
                raise NotFound(f"{name} has {len(found)} of {count} entries of {self._branch.txn_id}")
            found += [one.position for one in page.entries if one.branch == self._branch]
            after = page.upto
        return found
