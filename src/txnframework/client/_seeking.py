"""Where a subscription goes when someone seeks."""

from __future__ import annotations

from txnframework.broker import Host, Start
from txnframework.client._membership import Membership
from txnframework.client._messages import MessageID
from txnframework.errors import InvalidInput
from txnframework.model.positions import EARLIEST, Position


async def sought(host: Host, membership: Membership, to: MessageID | int | Start) -> dict[str, Position]:
    """
    Return, for the segments whose cursors are to move, up to where everything is done then.

    :raises InvalidInput: that is nothing that can be sought.
    """
    if isinstance(to, MessageID):
        return _up_to(membership, to)
    if to == "earliest":
        return dict.fromkeys(membership.wanted(), EARLIEST)
    if isinstance(to, bool) or not (to == "latest" or isinstance(to, int)):
        raise InvalidInput(f"a message's id, a time in ms, 'earliest' or 'latest' can be sought, not {to!r}")
    found = {}
    for segment in membership.wanted():
        opened = await host.segment(segment)
        if isinstance(to, int):
            found[segment] = await opened.ledger.find_time(to)
        else:
            found[segment] = await opened.buffer.max_read_position()
    return found


def entry_before(position: Position) -> Position:
    """Return where the entry before one would stand."""
    return Position(position.ledger_id, position.entry_id - 1)


def _up_to(membership: Membership, message: MessageID) -> dict[str, Position]:
    """Return where to go for a message to come next: what descends from its segment begins anew."""
    at = message.position
    before = Position(at.ledger_id, at.entry_id, at.batch_index - 1) if at.batch_index > 0 else entry_before(at)
    descendants = (
        segment
        for segment in membership.wanted()
        if any(feed.place.segment == message.segment for feed in membership.ancestors(segment))
    )
    return {**dict.fromkeys(descendants, EARLIEST), message.segment: before}
