from __future__ import annotations

import asyncio

import pytest

from txnframework.client._messages import MessageID
from txnframework.client._sends.batches import SendCall, SendQuota
from txnframework.model import Position

AT = MessageID("s", Position(1, 1))


async def _quiet() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_whoever_asks_first_finds_room_for_all_of_its_messages_first() -> None:
    """A short call does not overtake the rest of a long one, which would reorder messages of one key."""
    quota = SendQuota(2)
    put: list[str] = []
    sendings = {"long": SendCall(quota, 5), "short": SendCall(quota, 1)}

    async def send(name: str, count: int) -> None:
        async with quota.turn:
            left = count
            while left:
                taken = await sendings[name].acquire(left)
                put.extend([name] * taken)
                left -= taken

    tasks = [asyncio.ensure_future(send("long", 5)), asyncio.ensure_future(send("short", 1))]
    for number in range(5):
        await _quiet()
        assert put == [*["long"] * 5, "short"][: number + 2]
        sendings["long"].end(number, AT)
    await asyncio.gather(*tasks)
    assert len(put) == 6


async def test_a_call_that_is_given_up_gives_its_room_back_once() -> None:
    """Later results of the cancelled call are ignored, and release nothing again."""
    quota = SendQuota(3)
    first = SendCall(quota, 3)
    assert await first.acquire(3) == 3
    first.end(0, AT)
    first.give_up()
    first.give_up()
    first.end(1, AT)
    assert first.outcome(1) is None
    assert first.is_over(2)
    second = SendCall(quota, 9)
    assert await second.acquire(9) == 3


async def test_a_call_ends_with_its_last_message_and_tells_the_first_error() -> None:
    """Each message keeps its first outcome; an error does not stop the other messages of the call."""
    sending = SendCall(SendQuota(3), 3)
    await sending.acquire(3)
    ended = asyncio.ensure_future(sending.ended())
    sending.end(2, ValueError("second"))
    sending.end(1, ValueError("first"))
    sending.end(1, AT)
    await _quiet()
    assert not ended.done()
    sending.end(0, AT)
    with pytest.raises(ValueError, match="first"):
        await ended
    assert await SendCall(SendQuota(1), 0).ended() == ()
