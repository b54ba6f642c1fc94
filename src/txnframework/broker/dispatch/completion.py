"""Whether a subscription has finished a segment, as anybody can read it from the stores."""

from __future__ import annotations

from txnframework.broker.segments import OpenSegment, SegmentSubscription
from txnframework.errors import EntryTrimmed
from txnframework.model.acks import AckState
from txnframework.model.cursor import Cursor, state_of
from txnframework.model.entries import EntryView
from txnframework.model.positions import Limit, Position
from txnframework.model.reads import ReadableEntry, ReadRequest

_READ = Limit(100, 1_048_576)


async def finished_at(segment: OpenSegment, subscription: SegmentSubscription) -> int | None:
    """
    Return the incarnation of the cursor under which everything in a sealed segment is acknowledged; None: it is not.

    A dispatch that has delivered and finished everything comes to the same result, because it reads the same records.

    :raises SubscriptionNotFound: the subscription does not exist.
    """
    tail = await segment.ledger.tail()
    if not tail.sealed:
        return None
    cursor = await subscription.cursor.load()
    after = cursor.mark_delete
    while after < tail.last_confirmed:
        try:
            page = await segment.buffer.read(ReadRequest(after, _READ))
        except EntryTrimmed:
            left = await segment.ledger.ledgers(-1, 1)
            after = Position(left[0].ledger_id, -1) if left else tail.last_confirmed
            continue
        if not all(_is_acknowledged(cursor, entry, segment.name) for entry in page.entries):
            return None
        upto = max(page.upto, page.entries[-1].position) if page.entries else page.upto
        if upto <= after:
            return None  # what follows is not decided yet
        after = upto
    return cursor.incarnation


def _is_acknowledged(cursor: Cursor, entry: ReadableEntry, segment: str) -> bool:
    at = entry.position
    count = EntryView(entry.data, at, segment).count
    places = (Position(at.ledger_id, at.entry_id, index) for index in range(count))
    return all(state_of(cursor, place) is AckState.DELETED for place in places)
