"""Reading ahead of consumers: at the end of a segment, nothing is read until the segment grows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from txnframework.broker.dispatch.deliveries import Deliveries
from txnframework.broker.dispatch.open_acks import OpenAcks
from txnframework.broker.dispatch.read_ahead import ReadAhead
from txnframework.config import SubscriptionsSection
from txnframework.errors import Unavailable
from txnframework.model import EARLIEST, Position
from txnframework.model.cursor import Cursor
from txnframework.model.reads import EntryPage, ReadRequest
from txnframework.testing.clock import run_ready


class Buffer:
    """A segment that can be read up to a position set by the test."""

    def __init__(self) -> None:
        self.announced = Position(1, -1)
        self.grown = asyncio.Event()

    async def read(self, request: ReadRequest) -> EntryPage:
        """Return a page without entries, up to what is announced."""
        return EntryPage((), max(request.after.entry, self.announced))

    async def advanced(self, beyond: Position) -> Position:
        """Wait until more is announced."""
        while self.announced <= beyond:
            self.grown.clear()
            await self.grown.wait()
        return self.announced

    def announce(self, position: Position) -> None:
        """Let more be read."""
        self.announced = position
        self.grown.set()


async def test_the_end_is_read_once_until_the_segment_has_advanced() -> None:
    """A cancelled wait for more entries needs no second read, and misses none of them."""
    buffer = Buffer()
    segment: Any = type("Segment", (), {"buffer": buffer, "ledger": None})()
    reading = ReadAhead(segment, Deliveries(), SubscriptionsSection(read_entries_max=10))
    reading.begin_at(Position(1, -1))
    assert not reading.at_end
    assert await reading.read() is None
    assert reading.at_end
    waits = asyncio.ensure_future(reading.until_advanced())
    await run_ready()
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    assert reading.at_end
    buffer.announce(Position(1, 0))
    await reading.until_advanced()
    assert not reading.at_end
    page = await reading.read()
    assert page is not None
    assert page.upto == Position(1, 0)


async def test_reading_that_begins_anew_is_not_at_the_end() -> None:
    """This holds whatever an earlier reading found."""
    segment: Any = type("Segment", (), {"buffer": Buffer(), "ledger": None})()
    reading = ReadAhead(segment, Deliveries(), SubscriptionsSection(read_entries_max=10))
    reading.begin_at(Position(1, -1))
    assert await reading.read() is None
    reading.begin_at(Position(0, -1))
    assert not reading.at_end
    assert await reading.read() is not None


async def test_behind_a_page_with_room_left_nothing_is_read_until_the_segment_has_advanced() -> None:
    """A page below its limit shows the end, so no further read is needed until the segment grows."""
    buffer = Buffer()
    segment: Any = type("Segment", (), {"buffer": buffer, "ledger": None})()
    woken: list[None] = []
    reading = ReadAhead(segment, Deliveries(), SubscriptionsSection(read_entries_max=2))
    reading.begin_at(Position(1, -1))
    reading.take(EntryPage((), Position(1, 1), (Position(1, 0), Position(1, 1))), Cursor(1, EARLIEST), OpenAcks({}, 1))
    assert not reading.at_end
    reading.take(EntryPage((), Position(1, 2), (Position(1, 2),)), Cursor(1, EARLIEST), OpenAcks({}, 1))
    assert reading.at_end
    buffer.announce(Position(1, 2))
    reading.watch(lambda: woken.append(None))
    await run_ready()
    assert reading.at_end
    assert not woken
    buffer.announce(Position(1, 3))
    await run_ready()
    reading.raise_failure()
    assert not reading.at_end
    assert woken


async def test_looking_out_fails_once_and_begins_anew_with_the_reading() -> None:
    """The reader gets the error once; after a seek, reading ahead continues at the new position."""
    buffer = Buffer()
    buffer.announced = Position(1, 5)
    segment: Any = type("Segment", (), {"buffer": buffer, "ledger": None})()
    reading = ReadAhead(segment, Deliveries(), SubscriptionsSection(read_entries_max=2))
    reading.begin_at(Position(1, 9))
    reading.watch(lambda: None)
    await run_ready()
    reading.begin_at(Position(1, 4))
    reading.at_end = True
    reading.watch(lambda: None)
    await run_ready()
    assert not reading.at_end
    reading.raise_failure()

    async def failing(_: Position) -> Position:
        raise Unavailable("away")

    buffer.advanced = failing  # type: ignore[method-assign]
    reading.watch(lambda: None)
    await run_ready()
    with pytest.raises(Unavailable):
        reading.raise_failure()
    reading.raise_failure()
