"""The entries that a step appends to each segment."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from txnframework.broker import Host, OpenSegment
from txnframework.client._base import RetryPolicy
from txnframework.client._joint.refusals import StepsNeeded
from txnframework.client._messages import MessageID
from txnframework.client._planned import PlannedSend, by_producer
from txnframework.client._sends.joint_sends import JointEntry, JointSends
from txnframework.errors import NotFound
from txnframework.interfaces import IColocatedLedger, IJointBuffer
from txnframework.model.colocated import LedgerAppend
from txnframework.model.ids import Branch
from txnframework.model.positions import Limit, Position
from txnframework.model.reads import Isolation, ReadRequest

_PAGE = Limit(1_000)


class SegmentAppends:
    """The entries that a step appends to one segment; several producers may have some."""

    def __init__(self, name: str, buffer: IJointBuffer, reference: object, before: Position) -> None:
        self.name = name
        self._buffer = buffer
        self._reference = reference
        self._before = before
        self._entries: list[JointEntry] = []

    @classmethod
    async def of(cls, opened: OpenSegment) -> SegmentAppends:
        """Return an object for an open segment; raise StepsNeeded if its plugins append by themselves only."""
        ledger, buffer = opened.ledger, opened.buffer
        if not IColocatedLedger.providedBy(ledger) or not IJointBuffer.providedBy(buffer):
            raise StepsNeeded
        return cls(opened.name, buffer, ledger.reference, await buffer.tail_seen())

    def add(self, entries: Sequence[JointEntry]) -> None:
        """Append these entries, too, behind those that were added before."""
        self._entries += entries

    def request(self) -> LedgerAppend:
        """Return the part of the step."""
        return LedgerAppend(self._reference, tuple([one.append for one in self._entries]))

    async def confirm(self, positions: Sequence[Position] | None, branch: Branch, retry: RetryPolicy) -> None:
        """
        Give the messages their ids, and wake readers.

        :param positions: of the entries; None if the step was applied and its reply was lost. They are then read.
        :raises NotFound: the entries were trimmed or deleted meanwhile.
        """
        if positions is None:
            positions = await retry.run(self._stored, branch)
        for entry, position in zip(self._entries, positions, strict=True):
            entry.confirm(self.name, position)
        await self._buffer.appended_jointly(positions[-1])

    async def _stored(self, branch: Branch) -> list[Position]:
        """Return the positions of the entries of a branch, which are behind those that were seen before the step."""
        found: list[Position] = []
        after = self._before
        while len(found) < len(self._entries):
            page = await self._buffer.read(ReadRequest(after, _PAGE, Isolation.READ_UNCOMMITTED))
            if page.upto <= after:
                break
            found += [one.position for one in page.entries if one.branch == branch]
            after = page.upto
        if len(found) < len(self._entries):
            raise NotFound(f"{self.name} has {len(found)} of {len(self._entries)} entries of {branch.txn_id}")
        return found


class JointAppends:
    """The messages of a transaction, by producer and by segment."""

    def __init__(self, host: Host, branch: Branch, principal: str) -> None:
        self._host = host
        self._branch = branch
        self._principal = principal
        self._segments: dict[str, SegmentAppends] = {}
        self._sends: list[tuple[Sequence[PlannedSend], JointSends]] = []

    async def add(self, planned: Sequence[PlannedSend], until: ExitStack, held: ExitStack) -> None:
        """
        Number, route and encode messages.

        Their observation ends with the stack ``until``. They hold the quotas of their producers until ``held`` is
        closed.

        :raises StepsNeeded: some of them cannot be part of a step.
        """
        # In one order, so that two transactions never wait for each other's quotas.
        for sends, some in sorted(by_producer(planned).items(), key=lambda item: id(item[0])):
            messages = [sends.observed(one.message, self._branch, until) for one in some]
            begun = await sends.begin_joint(messages, self._branch, self._principal)
            if begun is None:
                raise StepsNeeded
            held.callback(begun.close)
            self._sends.append((some, begun))
            for name, routed in begun.by_segment.items():
                (await self._segment(name, begun.life)).add(tuple(begun.entries_of(routed, self._host.config.client)))

    def requests(self) -> tuple[LedgerAppend, ...]:
        """Return the parts of the step, by segment."""
        return tuple([one.request() for one in self._segments.values()])

    async def confirm(self, positions: Sequence[Sequence[Position]] | None) -> None:
        """Give all messages their ids."""
        retry = RetryPolicy(self._host.environment, self._host.config.client)
        for at, segment in enumerate(self._segments.values()):
            await segment.confirm(None if positions is None else positions[at], self._branch, retry)

    def ids(self) -> dict[PlannedSend, MessageID]:
        """Return the ids of the messages."""
        return {one: begun.id_of(at) for planned, begun in self._sends for at, one in enumerate(planned)}

    async def _segment(self, name: str, life: int) -> SegmentAppends:
        known = self._segments.get(name)
        if known is not None:
            return known
        opened = await self._host.segments.segment(name)
        if not opened.is_of(life):
            raise StepsNeeded
        self._segments[name] = found = await SegmentAppends.of(opened)
        return found
