"""One call's messages on their way: whoever called waits once for all of them, however many there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from txnframework.client._messages import MessageID


class Room:
    """
    Bounds how many messages a producer has in flight.

    Those who want to send have their turn in the order of their calls, each until all of its messages have found room.
    """

    def __init__(self, messages_max: int) -> None:
        self._free = messages_max
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until everybody who came before has found room."""
        async with self._turn:
            yield

    async def take(self, wanted: int) -> int:
        """Within the turn: wait until there is room for a message; return for how many, at most ``wanted``."""
        while not self._free:
            self._freed.clear()
            await self._freed.wait()
        taken = min(wanted, self._free)
        self._free -= taken
        return taken

    def give(self, messages: int) -> None:
        """So many have come to an end."""
        self._free += messages
        self._freed.set()


class Sending:
    """
    One call's messages, by their numbers from 0, and what became of each.

    Once it was given up nothing of it is told any more, and what of it has not been sent by then is left out.
    """

    def __init__(self, room: Room, messages: int) -> None:
        self._room = room
        self._outcomes: list[MessageID | Exception | None] = [None] * messages
        self._in_flight = 0
        self._left = messages
        self._all_ended = asyncio.Event()
        self._given_up = False

    async def room_for(self, wanted: int) -> int:
        """Wait until some of the next ``wanted`` messages may be sent; return how many. Within the room's turn."""
        taken = await self._room.take(wanted)
        self._in_flight += taken
        return taken

    def end(self, at: int, outcome: MessageID | Exception) -> None:
        """Message ``at`` has come to an end; what it was first told stays."""
        if self._given_up or self._outcomes[at] is not None:
            return
        self._outcomes[at] = outcome
        self._left -= 1
        self._in_flight -= 1
        self._room.give(1)
        if not self._left:
            self._all_ended.set()

    def is_over(self, at: int) -> bool:
        """Whether nobody waits for message ``at`` any more."""
        return self._given_up or self._outcomes[at] is not None

    def outcome(self, at: int) -> MessageID | Exception | None:
        """Return where message ``at`` stands, or why it could not be sent; None: it has not ended."""
        return self._outcomes[at]

    async def ended(self) -> tuple[MessageID, ...]:
        """Wait until every message has come to an end; return where they stand, or raise the first one's error."""
        if self._left:
            await self._all_ended.wait()
        for outcome in self._outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return tuple(outcome for outcome in self._outcomes if isinstance(outcome, MessageID))

    def give_up(self) -> None:
        """Nobody waits any more: what is in flight may come to stand there or not. Without any, nothing happens."""
        self._given_up = True
        self._room.give(self._in_flight)
        self._in_flight = 0
