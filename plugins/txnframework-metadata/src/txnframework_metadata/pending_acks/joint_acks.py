"""Acknowledgments of one subscription on one segment that take effect in the step of their transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from txnframework.interfaces import ICursor
from txnframework.model import index_keys
from txnframework.model.ack_overlap import AckContext, judge
from txnframework.model.acks import AckRequest
from txnframework.model.cursor import Cursor, CursorMove, unite
from txnframework.model.indexes import ACKS_BY_SEGMENT_SUBSCRIPTION
from txnframework.model.joint import JointAck
from txnframework.model.metadata import IndexRange, Record


class JointAcks:
    """
    Plans of steps, one after the other: a second one would expect the same version of the cursor, and be refused.

    A step requires that no acknowledgment of the subscription on the segment is stored. This refuses more than those of
    the same messages, and needs no reading.
    """

    def __init__(self, cursor: ICursor) -> None:
        self._cursor = cursor
        self._turn = asyncio.Lock()
        self._vacant: IndexRange = index_keys.prefix_range(
            ACKS_BY_SEGMENT_SUBSCRIPTION, cursor.segment, cursor.subscription
        )

    async def plan(self, requests: Sequence[AckRequest]) -> JointAck | None:
        """Return the plan of requests, or None; see ``IPendingAckStore.plan_joint``."""
        incarnations = {one.incarnation for one in requests}
        if len(incarnations) > 1 or not all(map(_is_individual, requests)):
            return None
        await self._turn.acquire()
        planned: JointAck | None = None
        try:
            move = await self._planned(incarnations.pop(), requests)
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

    async def _planned(self, incarnation: int, requests: Sequence[AckRequest]) -> CursorMove | None:
        parts = tuple([(one.branch, one.acks) for one in requests])
        move = await self._cursor.plan(incarnation, parts)
        if move is None:
            # Unknown since a step that was refused, unless another plan is under way.
            await self._cursor.load()
            move = await self._cursor.plan(incarnation, parts)
        if move is None or _may_take_effect(requests, move.before):
            return move
        await self._cursor.finish(move, None)
        return None


def _is_individual(request: AckRequest) -> bool:
    return request.processed is None and not any(ack.cumulative for ack in request.acks)


def _may_take_effect(requests: Sequence[AckRequest], cursor: Cursor) -> bool:
    """Return whether no message is acknowledged, or is in two of the requests; pure."""
    for at, request in enumerate(requests):
        if judge(request.acks, AckContext((), (), (), (), cursor)).conflict:
            return False
        if at + 1 < len(requests):
            cursor = unite(cursor, request.acks)
    return True
