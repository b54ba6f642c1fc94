"""The target positions of a seek."""

from __future__ import annotations

from collections.abc import Collection

from txnframework.broker import Host, Start
from txnframework.client._arguments import whole_number
from txnframework.client._messages import Message, MessageID, check_message_id
from txnframework.errors import InvalidInput, NotFound, OutcomeUnknown, excerpt
from txnframework.model.layout import Layout
from txnframework.model.positions import EARLIEST, TIME_MS_MAX, Position

Target = MessageID | int | Start
"""The message to deliver next, a time in ms since 1970, or one of the two ends."""


LATE_IDS = "one that was sent in a transaction may get its id with the commit"
"""A hint for ids of messages whose position is not final before the commit; see ``ICommitOrderBuffer``."""


async def sought(host: Host, layouts: Collection[Layout], wanted: tuple[str, ...], to: Target) -> dict[str, Position]:
    """
    Return the new mark-delete position for those of the ``wanted`` segments that have to move.

    :raises InvalidInput: ``to`` is not a valid target.
    """
    if isinstance(to, MessageID):
        check_message_id(to)
        await require_there(host, to)
        return _up_to(layouts, wanted, to)
    if to == "earliest":
        return dict.fromkeys(wanted, EARLIEST)
    if isinstance(to, bool) or not (to == "latest" or isinstance(to, int)):
        given = "a message: name its id" if isinstance(to, Message) else excerpt(to)
        raise InvalidInput(f"a message's id, a time in ms, 'earliest' or 'latest' can be sought, not {given}")
    if isinstance(to, int):
        whole_number(to, "a time to seek, in ms since 1970,", 0, TIME_MS_MAX)
    found = {}
    for segment in wanted:
        opened = await host.segment(segment)
        if isinstance(to, int):
            found[segment] = await opened.ledger.find_time(to)
        else:
            found[segment] = await opened.buffer.max_read_position()
    return found


def partly_moved(subscription: str, segment: str) -> OutcomeUnknown:
    """Return the error for a store that became unavailable after some cursors were moved."""
    return OutcomeUnknown(f"subscription {subscription} was moved on some segments, and not on {segment}; seek again")


def entry_before(position: Position) -> Position:
    """Return the position before an entry."""
    return Position(position.ledger_id, position.entry_id - 1)


async def require_there(host: Host, message: MessageID) -> None:
    """
    Raise InvalidInput if the id lies after the segment's open ledger, so that no message can have it.

    A buffer returns such ids for messages that get their position with the commit.
    """
    try:
        opened = await host.segment(message.segment)
    except NotFound:
        return  # the segment was deleted: its descendants restart at their beginning
    if message.position.ledger_id > (await opened.ledger.tail()).open_ledger_id:
        raise InvalidInput(f"there is no message at {message}; {LATE_IDS}")


def _up_to(layouts: Collection[Layout], wanted: tuple[str, ...], message: MessageID) -> dict[str, Position]:
    """Return the positions at which a message is delivered next; descendants of its segment restart."""
    if message.segment not in wanted:
        topics = " or ".join(str(layout.topic) for layout in layouts)
        raise InvalidInput(f"{message.segment} is not among the segments of {topics} that are to be moved")
    at = message.position
    before = Position(at.ledger_id, at.entry_id, at.batch_index - 1) if at.batch_index > 0 else entry_before(at)
    descendants = (
        str(layout.name_of(segment_id))
        for layout in layouts
        for segment_id in layout.segments
        if any(str(layout.name_of(one.id)) == message.segment for one in layout.ancestors(segment_id))
    )
    return {**{one: EARLIEST for one in descendants if one in wanted}, message.segment: before}
