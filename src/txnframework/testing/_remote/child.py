"""The process of one client: it opens what it was told to, and does what it is asked."""

from __future__ import annotations

import asyncio
import socket
import traceback
from contextlib import AbstractAsyncContextManager
from typing import Any

from zope.interface import providedBy
from zope.interface.interface import Method

from txnframework.errors import TxnFrameworkError
from txnframework.testing._remote.frames import Call, Cancel, Frames, Known, Leave, Opening, Reference, Reply
from txnframework.testing.clock import VirtualEnvironment
from txnframework.testing.harness import Belonging, Harness


def run_client(link: socket.socket, opening: Opening) -> None:
    """Live until the test leaves, or is gone."""
    asyncio.run(_live(link, opening))


async def _live(link: socket.socket, opening: Opening) -> None:
    frames = Frames(*await asyncio.open_connection(sock=link))
    client = _Client(frames, opening)
    try:
        async with client.opening() as opened:
            client.hand_out(opened)
            client.reply(None, opened)
            await client.answer()
    except Exception as error:
        # A failure of the opening or of the closing, whichever is under way.
        client.fail(None, error)
    else:
        client.reply(None, None)
    await frames.flush()
    await frames.close()


class _Client:
    """The objects that were handed out, by number, and the calls under way."""

    def __init__(self, frames: Frames, opening: Opening) -> None:
        self._frames = frames
        self._identity = opening.identity
        self._environment = VirtualEnvironment(opening.seed, opening.now_ms)
        self._harness: Harness[Any] = opening.kind(opening.directory, self._environment)
        self._objects: list[Any] = [self._harness]
        self._calls: dict[int, asyncio.Task[None]] = {}

    def opening(self) -> AbstractAsyncContextManager[Any]:
        """Return the context in which the client is open."""
        if self._identity is None:
            return self._harness.open()
        assert isinstance(self._harness, Belonging)
        return self._harness.open_as(self._identity)

    async def answer(self) -> None:
        """Do what comes, until the test leaves or is gone."""
        while (frame := await self._frames.receive()) is not None:
            if isinstance(frame, Leave):
                return
            if isinstance(frame, Cancel):
                if (task := self._calls.get(frame.call)) is not None:
                    task.cancel()
            else:
                assert isinstance(frame, Call)
                # Time comes from the test, with what it asks for, and nothing is done before its time.
                if frame.now_ms > self._environment.now_ms():
                    await self._environment.advance(frame.now_ms - self._environment.now_ms())
                self._calls[frame.call] = asyncio.create_task(self._make(frame))

    async def _make(self, call: Call) -> None:
        try:
            arguments = [self._objects[one.number] if isinstance(one, Known) else one for one in call.arguments]
            called = self._objects[call.number]
            self.reply(call.call, await getattr(called, call.method)(*arguments), called)
            await self._frames.flush()
        except Exception as error:
            self.fail(call.call, error)
        finally:
            del self._calls[call.call]

    def hand_out(self, value: Any) -> Reference | None:
        """Return a reference to an object of a role, kept here from now on; None for a plain value."""
        interfaces = tuple(providedBy(value))
        if not interfaces:
            return None
        if not any(value is known for known in self._objects):
            self._objects.append(value)
        number = next(number for number, known in enumerate(self._objects) if known is value)
        return Reference(number, type(value), interfaces, _facts_of(value))

    def reply(self, call: int | None, value: Any, called: object = None) -> None:
        """Tell what a call returned, and what the called object says of itself now."""
        reply = Reply(call, self.hand_out(value) or value, None, self._environment.now_ms(), _facts_of(called))
        self._frames.send(reply)

    def fail(self, call: int | None, error: Exception) -> None:
        """Tell what a call raised."""
        if not isinstance(error, TxnFrameworkError):
            # Nobody expects it: the test's report should say where it comes from.
            error.add_note("".join(traceback.format_exception(error)))
        self._frames.send(Reply(call, None, error, self._environment.now_ms()))


def _facts_of(value: object) -> dict[str, Any]:
    """Return the attributes that the object's interfaces name."""
    return {
        name: getattr(value, name)
        for interface in providedBy(value)
        for name, description in interface.namesAndDescriptions(all=True)
        if not isinstance(description, Method)
    }
