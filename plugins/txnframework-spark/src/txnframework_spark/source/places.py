"""Conversion of the places in options to positions after which a segment is read."""

from __future__ import annotations

from txnframework.broker import Host
from txnframework.errors import EntryTrimmed
from txnframework.interfaces import IManagedLedger
from txnframework.model.positions import EARLIEST, EntryRange, Limit, Position
from txnframework_spark.errors import InvalidOption
from txnframework_spark.options.places import Edge, Place


async def first_left(ledger: IManagedLedger) -> Position:
    """Return the position before the first entry that was not trimmed."""
    end = (await ledger.tail()).last_confirmed
    try:
        await ledger.read(EntryRange(EARLIEST, end), Limit(1))
    except EntryTrimmed as error:
        return end if error.first is None else before(error.first)
    return EARLIEST


async def place_in(host: Host, segment: str, place: Place, readable: Position) -> Position:
    """Return the position before the entry that ``place`` names; ``readable``: the segment's max read position.

    :raises InvalidOption: the entry does not exist yet.
    """
    if place is Edge.LATEST:
        return readable
    ledger = (await host.segment(segment)).ledger
    if place is Edge.EARLIEST:
        return await first_left(ledger)
    assert isinstance(place, Position)
    if before(place) > (await ledger.tail()).last_confirmed:
        raise InvalidOption(
            "startingOffsets",
            f"{segment} has no entry {place.entry} yet, and so none after it; its last one is"
            f" {(await ledger.tail()).last_confirmed}",
        )
    return before(place)


async def place_at(host: Host, segment: str, at_ms: int) -> Position:
    """Return the position before the first entry appended at ``at_ms`` or later, by the store's clock."""
    return await (await host.segment(segment)).ledger.find_time(at_ms)


def before(entry: Position) -> Position:
    """Return the position before an entry."""
    return Position(entry.ledger_id, entry.entry_id - 1)
