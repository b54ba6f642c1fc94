"""Where a subscription goes when someone seeks."""

from __future__ import annotations

from collections.abc import Collection

from txnframework.broker import Host, Start
from txnframework.client._arguments import whole_number
from txnframework.client._messages import Message, MessageID, check_message_id
from txnframework.errors import InvalidInput, NotFound, OutcomeUnknown, excerpt
from txnframework.model.layout import Layout
from txnframework.model.positions import EARLIEST, TIME_MS_MAX, Position

Target = MessageID | int | Start
"""A message, which comes next then, a time in ms since 1970, or one of the two ends."""


LATE_IDS = "one that was sent in a transaction may get its id with the commit"
"""What a buffer tells of a message before it has its place; see ``ICommitOrderBuffer``."""


async def sought(host: Host, layouts: Collection[Layout], wanted: tuple[str, ...], to: Target) -> dict[str, Position]:
    """
    Return, for those of the ``wanted`` segments whose cursors are to move, up to where everything is done then.

    :raises InvalidInput: that is nothing that can be sought.
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
    """Return what is raised when a store is away after some cursors were moved: it is not as if nothing had changed."""
    return OutcomeUnknown(f"subscription {subscription} was moved on some segments, and not on {segment}; seek again")


def entry_before(position: Position) -> Position:
    """Return where the entry before one would stand."""
    return Position(position.ledger_id, position.entry_id - 1)


async def require_there(host: Host, message: MessageID) -> None:
    """
    Raise InvalidInput if no message of the segment can have this id: behind it is nothing, whatever is to come.

    So it is with what a buffer tells of a message that gets its place with the commit.
    """
    try:
        opened = await host.segment(message.segment)
    except NotFound:
        return  # it is gone: what descends from it begins anew
    if message.position.ledger_id > (await opened.ledger.tail()).open_ledger_id:
        raise InvalidInput(f"there is no message at {message}; {LATE_IDS}")


def _up_to(layouts: Collection[Layout], wanted: tuple[str, ...], message: MessageID) -> dict[str, Position]:
    """Return where to go for a message to come next: what descends from its segment begins anew."""
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
