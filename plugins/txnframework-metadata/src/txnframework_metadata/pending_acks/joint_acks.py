"""Acknowledgments of one subscription on one segment that take effect in the step of their transaction."""

from __future__ import annotations

import asyncio

from txnframework.interfaces import IPlannedCursor
from txnframework.model import index_keys
from txnframework.model.ack_overlap import AckContext, judge
from txnframework.model.acks import AckRequest
from txnframework.model.cursor import Cursor, CursorMove
from txnframework.model.ids import METADATA_FAMILY
from txnframework.model.indexes import ACKS_BY_SEGMENT_SUBSCRIPTION
from txnframework.model.joint import JointAck
from txnframework.model.metadata import IndexRange, Record


class JointAcks:
    """
    Plans of steps, one after the other: a second one would expect the same version of the cursor, and be refused.

    A step requires that no acknowledgment of the subscription on the segment is stored. This refuses more than those of
    the same messages, and needs no reading.
    """

    def __init__(self, cursor: IPlannedCursor) -> None:
        self._cursor = cursor
        self._turn = asyncio.Lock()
        self._vacant: IndexRange = index_keys.prefix_range(
            ACKS_BY_SEGMENT_SUBSCRIPTION, cursor.segment, cursor.subscription
        )

    async def plan(self, request: AckRequest) -> JointAck | None:
        """Return the plan of a request, or None; see ``IJointPendingAcks.plan_joint``."""
        if request.processed is not None or any(ack.cumulative for ack in request.acks):
            return None
        await self._turn.acquire()
        planned: JointAck | None = None
        try:
            move = await self._planned(request)
            if move is not None:
                planned = JointAck(move, (self._vacant,))
        finally:
            if planned is None:
                self._turn.release()
        return planned

    async def finish(self, planned: JointAck, written: Record | None) -> None:
        """End a plan, and let the next one begin."""
        try:
            await self._cursor.finish(planned.move, written)
        finally:
            self._turn.release()

    async def _planned(self, request: AckRequest) -> CursorMove | None:
        move = await self._cursor.plan(request.branch, request.incarnation, request.acks)
        if move is None:
            # Unknown since a step that was refused, unless another plan is under way.
            await self._cursor.load()
            move = await self._cursor.plan(request.branch, request.incarnation, request.acks)
        if move is None or _may_take_effect(request, move.before):
            return move
        await self._cursor.finish(move, None)
        return None


def _may_take_effect(request: AckRequest, cursor: Cursor) -> bool:
    """Return whether none of the messages is acknowledged, and the cursor admits transactions of this family; pure."""
    if not cursor.admits(METADATA_FAMILY):
        return False
    return not judge(request.acks, AckContext((), (), (), (), cursor)).conflict
