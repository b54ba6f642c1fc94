"""The stored progress, and which of several it is."""

from __future__ import annotations

import pytest
from geo_world import World

from txnframework.errors import InvalidInput
from txnframework.model.positions import EARLIEST, Position
from txnframework_geo._progress import Progress, decode, encode

SEGMENT = "segment://public/default/left/0000-ffff-0"
PROGRESS = Progress(3, "berlin", ("topic://public/default/left",), {"left": 1}, {SEGMENT: Position(4, 20)})


def test_what_is_stored_is_read_again() -> None:
    late = Progress(3, "berlin", PROGRESS.topics, {"left": 1}, {SEGMENT: Position(4, 20)}, {SEGMENT: (Position(4, 7),)})
    for one in (PROGRESS, late):
        assert decode(encode(one), "geo-default") == one
    assert (PROGRESS.end_of("another"), PROGRESS.held_from(SEGMENT)) == (EARLIEST, Position(4, 20))
    assert late.held_from(SEGMENT) == Position(4, 6)
    assert late.reaches(SEGMENT, Position(4, 6))
    assert not late.reaches(SEGMENT, Position(4, 7))


@pytest.mark.parametrize("stored", [None, b"", b"[]", b'{"format": 1}', encode(PROGRESS).replace(b"4:20", b"4;20")])
def test_what_is_no_progress_is_refused(stored: bytes | None) -> None:
    with pytest.raises(InvalidInput, match="choose another --name"):
        decode(stored, "geo-default")


async def test_a_late_copy_of_the_first_progress_is_dropped() -> None:
    """A process that was paused before it stored the first progress, for longer than producers are remembered."""
    world = World()

    async with world.source.open() as source:
        await world.create(source)
        await world.send(source)
        assert await world.copy() == 4
        first, *_ = await world.target.read("geo-default")
        for _ in range(2):
            async with world.target.open() as target, await target.producer("geo-default") as producer:
                await producer.send(first.value)
            assert await world.copy() == 0
        await world.send(source)
        assert await world.copy() == 4
    await world.assert_same()
