"""The process of one client: it opens the client and executes calls."""

from __future__ import annotations

import asyncio
import os
import socket
import traceback
from contextlib import AbstractAsyncContextManager
from typing import Any

from zope.interface import providedBy
from zope.interface.interface import Method

from txnframework.errors import TxnFrameworkError
from txnframework.testing._remote.frames import Call, Cancel, Frames, Known, Leave, Opening, Reference, Reply
from txnframework.testing.clock import VirtualEnvironment
from txnframework.testing.harness import Harness, Paired

_IDENTITIES = frozenset({"location", "reference"})
"""Attributes that are only compared; their objects stay here."""


def run_client(link: socket.socket, opening: Opening) -> None:
    """Run until the test asks to leave or has ended."""
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
        # The error of the opening or of the closing, whichever was in progress.
        client.fail(None, error)
    else:
        client.reply(None, None)
    await frames.flush()
    await frames.close()


class _Client:
    """The objects that were handed out, by number, and the calls in progress."""

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
        assert isinstance(self._harness, Paired)
        return self._harness.open_as(self._identity)

    async def answer(self) -> None:
        """Execute frames until the test asks to leave or has ended."""
        while (frame := await self._frames.receive()) is not None:
            if isinstance(frame, Leave):
                return
            if isinstance(frame, Cancel):
                if (task := self._calls.get(frame.call)) is not None:
                    task.cancel()
            else:
                assert isinstance(frame, Call)
                # The clock follows the test's clock; it is advanced before the call starts.
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
        """Return a reference to an object with interfaces, which is kept from now on; None for a plain value."""
        interfaces = tuple(providedBy(value))
        if not interfaces:
            return None
        if not any(value is known for known in self._objects):
            self._objects.append(value)
        number = next(number for number, known in enumerate(self._objects) if known is value)
        return Reference(number, type(value), interfaces, _facts_of(value))

    def reply(self, call: int | None, value: Any, called: object = None) -> None:
        """Send the result of a call, with the current attributes of the called object."""
        reply = Reply(call, self.hand_out(value) or value, None, self._environment.now_ms(), _facts_of(called))
        self._frames.send(reply)

    def fail(self, call: int | None, error: Exception) -> None:
        """Send the error of a call."""
        if not isinstance(error, TxnFrameworkError):
            # An unexpected error: its traceback is added so that the test report shows where it was raised.
            error.add_note("".join(traceback.format_exception(error)))
        self._frames.send(Reply(call, None, error, self._environment.now_ms()))


def _facts_of(value: object) -> dict[str, Any]:
    """Return the attributes that the object's interfaces declare; of an identity only what it is equal to."""
    return {
        name: _token(getattr(value, name)) if name in _IDENTITIES else getattr(value, name)
        for interface in providedBy(value)
        for name, description in interface.namesAndDescriptions(all=True)
        if not isinstance(description, Method)
    }


def _token(value: object) -> tuple[int, int] | None:
    """Return what stands for an object that stays here: equal for the same object of the same process."""
    return None if value is None else (os.getpid(), id(value))
